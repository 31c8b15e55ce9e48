"""``bench run``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from bench.cli import options
from bench.errors import InputError, UnknownName
from bench.request import Machine, Request


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
    help="'paper' adds the papers' input noise for every model, and has JEM's attack.",
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
@options.runs
@click.option("--json", "as_json", is_flag=True, help="Print the records as JSON.")
@options.output_format
@click.option("--dry-run", is_flag=True, help="Say what would be computed.")
@click.pass_context
def command(ctx: click.Context, /, **given: Any) -> int:
    """Run suites on models and print the leaderboards.

    What is stored already is not computed again: the same command goes on where it stopped.

    \b
      bench run --model jem --suite ood
      bench run --model py:mymodel.py:make --suite robustness --set pgd-linf.steps=50
    """
    from bench.cli.requests import (
        apply_config,
        build_request,
        check_nothing_beside,
        request_of_run,
    )

    if given["config"] is not None:
        apply_config(ctx, given)
    if given["from_run"] is None:
        request = build_request(given)
    else:
        request = request_of_run(given["from_run"])
        check_nothing_beside(ctx, given)
    size = given["batch_size"]
    if size != "auto" and not str(size).isdecimal():
        raise InputError(f"'--batch-size {size}': expected 'auto' or a whole number")
    machine = Machine(
        device=given["device"],
        micro_batch=None if size == "auto" else int(size),
        threads=given["threads"],
        executor=given["executor"],
        runs=Path(given["runs"]),
    )
    if given["dry_run"]:
        return _dry_run(request, machine)
    return _run(request, machine, "json" if given["as_json"] else given["format_"])


def _run(request: Request, machine: Machine, format_: str) -> int:
    from bench.cli.printing import print_records
    from bench.replay import replay
    from bench.report import FORMATS
    from bench.store import Store

    if format_ not in FORMATS:
        raise UnknownName("format", format_, FORMATS)
    records = replay(request, Store(machine.runs))
    if records is None:
        from bench.cli.progress import TerminalProgress
        from bench.runner import execute

        with TerminalProgress() as progress:
            run = execute(request, machine, progress)
        records = list(run.records)
    print_records(records, format_)
    return 1 if any(record.status == "failed" for record in records) else 0


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
