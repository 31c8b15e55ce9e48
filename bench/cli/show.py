"""``bench show``."""

from __future__ import annotations

import json
from pathlib import Path

import click

from bench.cli import options
from bench.errors import UnknownName


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
    header = store.read_header(run)
    if header is None:
        raise UnknownName("run", run, store.runs(), "'bench list runs' shows all")
    if format_ == "table":
        click.echo(f"run {run}")
        for key, value in json.loads(header["request"]).items():
            if value not in (None, False, {}, []):
                click.echo(f"  {key}: {value}")
        click.echo("  versions: " + ", ".join(f"{k} {v}" for k, v in header["versions"].items()))
        click.echo()
    print_records(store.read_records(run), format_, metric)
    for trace in header.get("traces", ()):
        click.echo(trace, err=True)
