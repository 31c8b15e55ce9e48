"""``bench show``."""

from __future__ import annotations

import json
from pathlib import Path

import click

from bench.cli import options
from bench.errors import StoreError, UnknownName


@click.command("show")
@click.argument("run")
@options.metric
@options.output_format
@options.runs
def command(run: str, metric: str | None, format_: str, runs: Path) -> None:
    """Print one stored run: what was asked, the versions, the leaderboards, the failures."""
    from bench.cli.printing import print_records
    from bench.store import Store

    store = Store(runs)
    known = store.runs()
    if run not in known:
        raise UnknownName("run", run, known, "'bench list runs' shows all")
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
