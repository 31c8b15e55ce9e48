"""``bench show``."""

from __future__ import annotations

import json
from pathlib import Path

import click

from bench.cli import options
from bench.errors import InputError, StoreError, UnknownName


@click.command("show")
@click.argument("run", required=False)
@options.metric
@options.output_format
@options.runs
def command(run: str | None, metric: str | None, format_: str, runs: Path) -> None:
    """Print one stored run: what was asked, the versions, the leaderboards, the failures.

    RUN is an id or its beginning; the newest run where it is left out.
    """
    from bench.cli.printing import print_records
    from bench.store import Store

    store = Store(runs)
    known = store.runs()
    run = chosen(run, known, runs)
    header, records = store.read_header(run), store.read_records(run)
    if header is None or not records:
        file = store.run_folder(run) / ("run.json" if header is None else "records.jsonl")
        raise StoreError(
            f"run '{run}' cannot be read: '{file}' is missing or damaged; give its 'bench run' "
            "command again, which computes only what is missing"
        )
    if format_ == "table":
        click.echo(f"run {run}")
        for key, value in json.loads(header["request"]).items():
            if value not in (None, False, {}, []):
                click.echo(f"  {key}: {value}")
        click.echo(
            "  versions: " + ", ".join(f"{k} {v}" for k, v in header.get("versions", {}).items())
        )
        click.echo()
    print_records(records, format_, metric)
    for trace in header.get("traces", ()):
        click.echo(trace, err=True)


def chosen(run: str | None, known: list[str], runs: Path) -> str:
    """Return the id that is meant."""
    if run is None and not known:
        raise InputError(f"no runs in '{runs}'; start one with 'bench run', or name another --runs")
    if run is None:
        return known[-1]
    fitting = [name for name in known if name == run or name.startswith(run)]
    if run in known or len(fitting) == 1:
        return run if run in known else fitting[0]
    raise UnknownName("run", run, fitting or known, "'bench list runs' shows all")
