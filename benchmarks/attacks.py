"""Our attacks beside foolbox and torchattacks: the same model, images and steps, in one run.

    python benchmarks/attacks.py --quick
    python benchmarks/attacks.py --network resnet2b --checkpoint FILE --data FILE.npz --json OUT

Contenders take turns; each time is the smallest of the rounds, and a ratio is to the floor of the
same run: the least work that the task takes. Every result is shown to the model again here.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from matches import Match, Section


def parse() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--quick", action="store_true", help="fewer images and steps: under two minutes")
    add("--images", type=int, help="how many images (default 128, quick 32)")
    add("--rounds", type=int, help="how often each contender runs (default 3, quick 2)")
    add("--steps", type=int, help="steps of gradient attacks (default 20, quick 10)")
    add("--threads", type=int, default=1)
    add("--sections", help="names separated by commas (default all)")
    add("--network", default="digits", help="digits (shipped), resnet20 or resnet2b")
    add("--checkpoint", type=Path, help="weights of the network")
    add("--data", type=Path, help="NPZ file of CIFAR-10 images")
    add("--eps", type=float, help="L-infinity budget (default by network)")
    add("--json", type=Path, help="write all figures to this file")
    return parser.parse_args()


# Budgets at which each network keeps 20 to 70 % of the images: nobody is done early.
BUDGETS = {
    "digits": (0.1, 0.5, (0.025, 0.05, 0.1, 0.15, 0.2)),
    "resnet20": (0.4 / 255, 0.05, tuple(e / 255 for e in (0.1, 0.2, 0.4, 0.8, 1.6))),
    "resnet2b": (2 / 255, 0.25, tuple(e / 255 for e in (0.5, 1, 2, 4, 8))),
}


def all_sections() -> dict[str, Callable[[Match], Section]]:
    """Return the comparisons by name."""
    import by_draws
    import by_gradient
    import by_query

    return {
        "pgd-linf": by_gradient.pgd_linf,
        "pgd-l2": by_gradient.pgd_l2,
        "sweep": by_gradient.sweep,
        "apgd": by_gradient.apgd,
        "minimum-l2": by_gradient.minimum_l2,
        "minimum-linf": by_gradient.minimum_linf,
        "square": by_query.square,
        "boundary": by_query.boundary,
        "pointwise": by_query.pointwise,
        "eot": by_draws.eot,
        "refined": by_draws.refined,
    }


def prepare(options: argparse.Namespace) -> Match:
    """Return the model, the images and the sizes."""
    import torch
    from cifar import load_images, load_network
    from matches import Match

    import bench
    from bench.data import to_tensor

    quick, few = options.quick, options.images or (32 if options.quick else 128)
    if options.network == "digits":
        data = bench.load_dataset("digits")
        x, y = to_tensor(data.images[:few]), torch.as_tensor(data.labels)[:few]
        model, jem = bench.load_model("baseline"), bench.load_model("jem")
    else:
        if options.checkpoint is None or options.data is None:
            sys.exit(f"--network {options.network} needs --checkpoint and --data")
        x, y = load_images(options.data, few)
        model = jem = load_network(options.network, options.checkpoint)
    for one in (model, jem):
        one.eval().requires_grad_(False)
    linf, l2, grid = BUDGETS[options.network]
    return Match(
        model=model,
        jem=jem,
        x=x,
        y=y,
        linf=options.eps or linf,
        l2=l2,
        sweep=grid,
        steps=options.steps or (10 if quick else 20),
        queries=100 if quick else 500,
        walk=200 if quick else 1000,
        few=min(few, 8 if quick else 16),
    )


def measure(section: Section, rounds: int) -> dict[str, Any]:
    """Return the figures of every contender, the floor first."""
    from turns import take_turns

    timings = take_turns({"floor": section.floor, **section.contenders}, rounds)
    floor = timings["floor"]
    rows: dict[str, Any] = {}
    for name, timing in timings.items():
        if timing.failure is not None:
            rows[name] = {"skipped": timing.failure}
            continue
        rows[name] = {
            "cpu": min(timing.cpu),
            "wall": min(timing.wall),
            "x floor": min(timing.cpu) / min(floor.cpu),
            "x floor, wall": min(timing.wall) / min(floor.wall),
            "rounds cpu": timing.cpu,
            **({} if name == "floor" else section.judge(timing.result)),
        }
    rows |= {name: {"skipped": reason} for name, reason in section.skipped.items()}
    return rows


def show(section: Section, rows: dict[str, Any]) -> None:
    """Print the table of a section."""
    from rich.console import Console
    from rich.table import Table

    hidden = ("rounds cpu", "skipped")
    columns = list(dict.fromkeys(k for row in rows.values() for k in row if k not in hidden))
    table = Table(title=section.title, caption=f"floor: {section.floor_is}", title_justify="left")
    table.add_column("")
    for column in columns:
        table.add_column(column, justify="right")
    for name, row in rows.items():
        if "skipped" not in row:
            table.add_row(name, *(shown(column, row.get(column)) for column in columns))
    console = Console(width=None if sys.stdout.isatty() else 110)
    console.print(table)
    for name, row in rows.items():
        if "skipped" in row:
            console.print(f"  {name}: not run ({row['skipped']})", markup=False)


def shown(column: str, value: Any) -> str:
    """Return a figure as the table shows it."""
    if value is None:
        return ""
    if isinstance(value, list):
        return " ".join(f"{100 * v:.1f}" for v in value)
    if column in ("robust", "mean accuracy"):
        return f"{100 * value:.1f} %"
    if column == "over eps":
        return f"{value:.0e}" if value > 1e-6 else ""
    return f"{value:.3f}" if value < 10 else f"{value:.1f}"


def main() -> None:
    """Run the sections and print them as they come."""
    options = parse()
    # Before torch is imported; waiting threads that spin would be timed too.
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(options.threads)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import torch
    from matches import gradient

    torch.set_num_threads(options.threads)
    sections = all_sections()
    wanted = options.sections.split(",") if options.sections else list(sections)
    unknown = [name for name in wanted if name not in sections]
    if unknown:
        sys.exit(f"no section {', '.join(unknown)}; expected some of {', '.join(sections)}")
    match = prepare(options)
    for _ in range(3):  # the first passes of a process are slower
        gradient(match.model, match.x, match.y)
    packages = ("torch", "foolbox", "torchattacks")
    figures: dict[str, Any] = {
        "machine": {"processor": processor(), "threads": options.threads},
        "versions": {name: version(name) for name in packages},
        "network": options.network,
        "images": len(match.x),
        "quick": options.quick,
    }
    for name in wanted:
        section = sections[name](match)
        rows = measure(section, options.rounds or (2 if options.quick else 3))
        show(section, rows)
        figures[name] = {"title": section.title, "floor is": section.floor_is, "rows": rows}
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=1, default=str) + "\n")


def version(package: str) -> str | None:
    """Return the installed version of a package."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def processor() -> str:
    """Return the name of the processor, where the system tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]}, {len(names)} visible" if names else platform.processor()


if __name__ == "__main__":
    main()
