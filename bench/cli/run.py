"""``bench run``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from bench.errors import InputError
from bench.request import DEFAULT_MODELS, DEFAULT_SUITES, Machine, Request
from bench.specs import parse_settings


def split_names(texts: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of repeated options and comma lists; a spec with options stays whole."""
    names: list[str] = []
    for text in texts:
        plain = ":" not in text and "?" not in text
        names += [part.strip() for part in text.split(",")] if plain else [text]
    return tuple(name for name in names if name)


def split_numbers(text: str) -> tuple[int, ...]:
    """Return the numbers of a comma list."""
    try:
        return tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        raise InputError(
            f"'--refine-steps {text}': expected whole numbers joined by commas, e.g. 0,1,10"
        ) from None


def read_config(path: Path) -> dict[str, Any]:
    """Return the keys of a TOML file: the long options, with underscores.

    Raises:
        InputError: The file cannot be read.
    """
    import tomllib

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"'--config {path}' cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"'--config {path}' is not TOML: {error}") from error


def build_request(options: dict[str, Any]) -> Request:
    """Return the request of parsed options."""
    return Request(
        models=split_names(options["model"]) or DEFAULT_MODELS,
        suites=split_names(options["suite"]) or DEFAULT_SUITES,
        dataset=options["dataset"],
        refine_steps=split_numbers(options["refine_steps"]),
        network=options["network"],
        checkpoint=options["checkpoint"],
        protocol=options["protocol"],
        limit=options["limit"],
        seed=options["seed"],
        settings=parse_settings(options["settings"]),
        data_root=options["data_root"],
        download=options["download"],
        trust=options["trust"],
    )


def request_of_run(path: Path) -> Request:
    """Return the request that a stored ``run.json`` holds.

    Raises:
        InputError: The file holds none.
    """
    try:
        plain = json.loads(json.loads(path.read_text())["request"])
        plain["models"], plain["suites"] = tuple(plain["models"]), tuple(plain["suites"])
        plain["refine_steps"] = tuple(plain["refine_steps"])
        return Request(**plain)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"'--from {path}' holds no request ({error}); expected RUNS/<run id>/run.json"
        ) from error


@click.command("run")
@click.option(
    "--model",
    multiple=True,
    help="Name, ckpt:NETWORK@FILE or py:FILE.py:FACTORY; "
    "repeat it or join names by commas.  [default: all four]",
)
@click.option(
    "--suite",
    multiple=True,
    help="Repeat it or join names by commas.  [default: accuracy, calibration, ood, robustness]",
)
@click.option(
    "--dataset", default="digits", show_default=True, help="Name, npz:FILE or folder:DIR."
)
@click.option(
    "--refine-steps",
    default="0",
    show_default=True,
    help="N of JEM-N; a comma list gives a row for each.",
)
@click.option("--network", help="Architecture of registered models.")
@click.option("--checkpoint", help="File of weights instead of those found by name.")
@click.option(
    "--protocol",
    type=click.Choice(["default", "paper"]),
    default="default",
    show_default=True,
    help="'paper' adds the papers' input noise for every model.",
)
@click.option("--limit", type=int, help="First images of every set only; rows are set apart.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME.OPTION=VALUE",
    help="Option of a suite or attack, e.g. pgd-linf.steps=100.",
)
@click.option("--config", type=click.Path(path_type=Path), help="TOML file with these options.")
@click.option(
    "--from",
    "from_run",
    type=click.Path(path_type=Path),
    metavar="RUN.JSON",
    help="Repeat a stored run's request.",
)
@click.option("--data-root", help="Where downloaded data sets lie.")
@click.option("--download", is_flag=True, help="Fetch data sets that are missing.")
@click.option("--trust", is_flag=True, help="Load weight files even if that runs their code.")
@click.option("--device", default="auto", show_default=True)
@click.option(
    "--batch-size",
    default="auto",
    show_default=True,
    help="Images through a model at once; no number depends on it beyond rounding.",
)
@click.option("--threads", type=int, default=1, show_default=True, help="CPU threads a process.")
@click.option("--executor", default="local", show_default=True, help="local or local:N processes.")
@click.option(
    "--runs",
    type=click.Path(path_type=Path),
    default=Path("runs"),
    show_default=True,
    help="Folder of results.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the records as JSON.")
@click.option(
    "--format",
    "format_",
    default="table",
    show_default=True,
    help="table, markdown, csv, json or latex.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be computed.")
@click.pass_context
def command(ctx: click.Context, /, **options: Any) -> int:
    r"""Run suites on models and print the leaderboards.

    What is stored already is not computed again: the same command goes on where it stopped.

    \b
      bench run --model jem --suite ood
      bench run --model py:mymodel.py:make --suite robustness --set pgd-linf.steps=50
    """
    if options["config"] is not None:
        _apply_config(ctx, options)
    request = request_of_run(options["from_run"]) if options["from_run"] else build_request(options)
    size = options["batch_size"]
    if size != "auto" and not str(size).isdigit():
        raise InputError(f"'--batch-size {size}': expected 'auto' or a whole number")
    machine = Machine(
        device=options["device"],
        micro_batch=Machine.micro_batch if size == "auto" else int(size),
        threads=options["threads"],
        executor=options["executor"],
        runs=Path(options["runs"]),
    )
    if options["dry_run"]:
        return _dry_run(request, machine)
    return _run(request, machine, "json" if options["as_json"] else options["format_"])


def _apply_config(ctx: click.Context, options: dict[str, Any]) -> None:
    """Fill in what the command line leaves to its defaults from the configuration file."""
    from bench.errors import UnknownName

    names = {"settings": "set", "as_json": "json", "format_": "format"}
    known = {names.get(key, key): key for key in options if key not in ("config", "from_run")}
    for key, value in read_config(options["config"]).items():
        name = key.replace("-", "_")
        if name not in known:
            raise UnknownName(f"option in '{options['config']}'", key, known)
        target = known[name]
        source = ctx.get_parameter_source(target)
        if source is not None and source.name == "COMMANDLINE":
            continue
        if target in ("model", "suite", "settings"):
            value = tuple(value) if isinstance(value, list) else (value,)
        elif target == "refine_steps":
            value = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        parameter = next(p for p in ctx.command.params if p.name == target)
        options[target] = parameter.type_cast_value(ctx, value)


def _run(request: Request, machine: Machine, format_: str) -> int:
    from bench.report import FORMATS
    from bench.store import Store

    if format_ not in FORMATS:
        from bench.errors import UnknownName

        raise UnknownName("format", format_, FORMATS)
    from bench.replay import replay

    records = replay(request, Store(machine.runs))
    if records is None:
        from bench.cli.progress import TerminalProgress
        from bench.runner import execute

        with TerminalProgress() as progress:
            run = execute(request, machine, progress)
        records = list(run.records)
    print_records(records, format_)
    return 1 if any(record.status == "failed" for record in records) else 0


def print_records(records: list[Any], format_: str, metric: str | None = None) -> None:
    """Print records on stdout, as wide as the terminal where there is one."""
    import shutil
    import sys

    from bench.report import render

    terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if terminal else None
    text = render(records, format_, metric=metric, width=width, colour=terminal)
    click.echo(text, nl=False)


def _dry_run(request: Request, machine: Machine) -> int:
    from bench.planning import plan_run
    from bench.store import Store
    from bench.work import pinned_threads

    store = Store(machine.runs)
    with pinned_threads(machine.threads):
        plan = plan_run(request, [str(machine.runs / "weights")])
    shards = list(plan.shards())
    missing = {s.key for _, s in shards if store.read_shard(s.key) is None}
    click.echo(f"run {request.run_id}: {len(missing)} of {len(shards)} shards to compute")
    for model in plan.models:
        for task in model.tasks:
            keys = [s.key for parts in task.shards.values() for s in parts]
            todo = sum(key in missing for key in keys)
            click.echo(f"  {model.model.label:20} {task.task.name:28} {todo} of {len(keys)}")
    return 0
