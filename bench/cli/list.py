"""``bench list``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bench.cli import options

if TYPE_CHECKING:
    from bench.registry import Entry

KINDS = ("models", "trainers", "networks", "attacks", "datasets", "scores", "metrics", "suites")


@click.command("list")
@click.argument("kind", required=False)
@options.runs
def command(kind: str | None, runs: Path) -> None:
    """List what is registered, or what was run.

    KIND is models, trainers, networks, attacks, datasets, scores, metrics, suites or runs.
    """
    from bench.errors import UnknownName

    if kind is not None and kind not in (*KINDS, "runs"):
        raise UnknownName("kind of thing to list", kind, (*KINDS, "runs"))
    if kind == "runs":
        _list_runs(runs)
        return
    from bench.registry import REGISTRIES

    for name in [kind] if kind else KINDS:
        _list_entries(name, REGISTRIES[name].entries())
        for scheme, summary in REGISTRIES[name].schemes.items():
            click.echo(f"  {scheme + ':NAME':22} {summary}")


def _list_entries(kind: str, entries: Sequence[Entry[Any]]) -> None:
    click.secho(kind, bold=True)
    for entry in entries:
        options = ", ".join(f"{k}={v!r}" for k, v in entry.options.items())
        click.echo(f"  {entry.name:22} {entry.summary}")
        if options:
            click.secho(f"  {'':22} {options}", dim=True)


def _list_runs(root: Path) -> None:
    import json
    import time

    from bench.store import Store

    store = Store(root)
    ids = store.runs()
    if not ids:
        click.echo(f"no runs in '{root}'; start one with 'bench run --model jem --suite ood'")
    click.secho(f"{'ended':16}  {'data set':10}  {'state':12}  run: models, suites", bold=True)
    for run_id in ids:
        header = store.read_header(run_id)
        ended = time.strftime("%Y-%m-%d %H:%M", time.localtime(store.ended(run_id)))
        if header is None:
            click.echo(f"{ended:16}  {'?':10}  {'unreadable':12}  {run_id}")
            continue
        request = json.loads(header["request"])
        state = "complete" if header.get("complete") else "has failures"
        models, suites = ",".join(request["models"]), ",".join(request["suites"])
        dataset = str(request.get("dataset"))
        click.echo(f"{ended:16}  {dataset:10}  {state:12}  {run_id}: {models}, {suites}")
