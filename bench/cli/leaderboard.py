"""``bench leaderboard``."""

from __future__ import annotations

from pathlib import Path

import click

from bench.cli import options
from bench.errors import InputError


@click.command("leaderboard")
@click.option("--suite", help="Only this suite.")
@click.option("--dataset", help="Only this data set.")
@options.metric
@options.output_format
@options.runs
def command(
    suite: str | None, dataset: str | None, metric: str | None, format_: str, runs: Path
) -> None:
    """Print the leaderboards of all stored runs; of equal cells the newest counts."""
    from bench.cli.printing import print_records
    from bench.store import Store

    store = Store(runs)
    cells = {}
    for run_id in store.runs():
        for record in store.read_records(run_id):
            if suite not in (None, record.suite) or dataset not in (None, record.dataset):
                continue
            cells[record.cell] = record
    if not cells:
        raise InputError(
            f"no records in '{runs}'"
            + (f" of suite '{suite}'" if suite else "")
            + "; start a run with 'bench run', or name another folder with --runs"
        )
    print_records(list(cells.values()), format_, metric)
