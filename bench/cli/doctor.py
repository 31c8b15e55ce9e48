"""``bench doctor``."""

from __future__ import annotations

import importlib
import importlib.metadata
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import click

from bench.cli import options

State = Literal["ok", "note", "broken"]


@dataclass(frozen=True)
class Finding:
    """One thing looked at: its state, what was found, and what to do about it."""

    state: State
    what: str
    found: str
    remedy: str = ""


# Package, whether the benchmark needs it, and how to get it.
PACKAGES = (
    ("torch", True, "pip install 'torch>=2.6'"),
    ("torchvision", True, "pip install torchvision (the release that fits your torch)"),
    ("numpy", True, "pip install numpy"),
    ("scipy", True, "pip install 'scipy<2'"),
    ("sklearn", True, "pip install scikit-learn"),
    ("foolbox", True, "pip install foolbox"),
    ("matplotlib", True, "pip install matplotlib"),
    ("safetensors", True, "pip install safetensors"),
    ("torchattacks", False, "pip install --no-deps torchattacks tqdm (its pins are too old)"),
)
DISTRIBUTIONS = {"sklearn": "scikit-learn"}


@click.command("doctor")
@options.runs
def command(runs: Path) -> int:
    """Say what is installed, what works, and what to do about the rest."""
    marks = {"ok": "ok    ", "note": "note  ", "broken": "BROKEN"}
    colours = {"ok": "green", "note": "yellow", "broken": "red"}
    broken = 0
    for finding in _findings(runs):
        mark = click.style(marks[finding.state], fg=colours[finding.state])
        click.echo(f"{mark}  {finding.what:22} {finding.found}")
        if finding.remedy:
            click.echo(f"{'':30} → {finding.remedy}")
        broken += finding.state == "broken"
    click.echo(f"{broken} things are broken" if broken else "everything needed works")
    return 1 if broken else 0


def _findings(runs: Path) -> Iterator[Finding]:
    yield _python()
    for name, needed, remedy in PACKAGES:
        yield _package(name, needed, remedy)
    checks: tuple[tuple[str, Callable[[], Finding]], ...] = (
        ("safe loading", _safe_loading),
        ("device", _device),
        ("plug-ins", _registries),
        ("shipped weights", _weights),
        ("runs", lambda: _runs(runs)),
        ("a small run", _small_run),
    )
    for what, check in checks:
        try:
            yield check()
        except Exception as error:  # a broken part is a finding; the next one is looked at too
            yield Finding("broken", what, f"{type(error).__name__}: {error}")


def _python() -> Finding:
    good = sys.version_info >= (3, 11)
    remedy = "" if good else "install Python 3.11 or newer"
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    return Finding("ok" if good else "broken", "python", found, remedy)


def _package(name: str, needed: bool, remedy: str) -> Finding:
    try:
        importlib.import_module(name)
    except Exception as error:  # some packages raise more than ImportError when half-installed
        found = f"does not import: {error}"
        return Finding("broken" if needed else "note", name, found.splitlines()[0], remedy)
    return Finding("ok", name, importlib.metadata.version(DISTRIBUTIONS.get(name, name)))


def _safe_loading() -> Finding:
    import torch

    version = tuple(int(p) for p in torch.__version__.partition("+")[0].split(".")[:2])
    if version < (2, 10):
        return Finding(
            "note",
            "safe loading",
            f"torch {torch.__version__} can be made to crash by a crafted .pt file "
            "(CVE-2026-24747)",
            "upgrade to torch 2.10, or load .safetensors only",
        )
    return Finding("ok", "safe loading", ".pt files are read with weights_only=True")


def _device() -> Finding:
    import torch

    from bench.context import resolve_device

    device = resolve_device("auto")
    found = str(device)
    if device.type == "cuda":
        found += f" ({torch.cuda.get_device_name(device)})"
    return Finding("ok", "device", found)


def _registries() -> Finding:
    from importlib.metadata import entry_points

    from bench.registry import ENTRY_POINT_GROUP, REGISTRIES

    counts = ", ".join(f"{len(r)} {name}" for name, r in REGISTRIES.items())
    points = [p.name for p in entry_points(group=ENTRY_POINT_GROUP)]
    return Finding("ok", "plug-ins", f"{', '.join(points) or 'none'}; {counts}")


def _weights() -> Finding:
    import bench
    from bench.registry import MODELS

    ready, without = [], []
    for entry in MODELS.entries():
        if entry.facts.get("trainer") is None:
            continue
        try:
            bench.load_model(entry.name, folders=())
            ready.append(entry.name)
        except bench.BenchError:
            without.append(entry.name)
    remedy = f"bench train --model {without[0]} --dataset digits" if without else ""
    state: State = "note" if without else "ok"
    return Finding(state, "shipped weights", ", ".join(ready) or "none", remedy)


def _runs(runs: Path) -> Finding:
    from bench.store import Store

    existed = runs.exists()
    store = Store(runs)
    store.prepare()
    free = shutil.disk_usage(runs).free / 2**30
    count = len(store.runs())
    if not existed:
        shutil.rmtree(runs)
    found = f"'{runs}' can be written to, {count} runs, {free:.0f} GiB free"
    return Finding("ok", "runs", found)


def _small_run() -> Finding:
    import tempfile

    from torch import nn

    import bench

    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    with tempfile.TemporaryDirectory() as folder:
        run = bench.run(model, suite="smoke", runs=folder, device="cpu")
    if run.failed:
        reason = next(r.note for r in run.records if r.status == "failed")
        return Finding("broken", "a small run", str(reason))
    return Finding("ok", "a small run", f"{len(run.records)} records from {run.computed} shards")
