"""``bench verify``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from bench.cli import options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.report.table import Table
    from bench.store import Store
    from bench.tasks.rechecking import Finding
    from bench.verifying_runs import Verification

SHOWN = 20  # differences of one shard
SEARCHED = "Not rechecked is what only a new search could tell: the shards do not hold its images."


@click.command("verify")
@click.argument("run", required=False)
@click.option("--sample", type=int, help="Only so many images of each shard, evenly spread.")
@click.option(
    "--tolerance",
    type=float,
    default=1e-4,
    show_default=True,
    help="How far numbers may move, and what share of the usual margin makes a tie: another "
    "machine rounds otherwise.",
)
@click.option("--device", default="auto", show_default=True)
@click.option(
    "--batch-size",
    type=int,
    help="Images through a model at once; that of the run, for a model that is random unasked.",
)
@click.option("--threads", type=int, default=1, show_default=True, help="CPU threads.")
@options.runs
def command(
    run: str | None,
    sample: int | None,
    tolerance: float,
    device: str,
    batch_size: int | None,
    threads: int,
    runs: Path,
) -> int:
    """Recheck a stored run: its verdicts, distances, scores and records.

    RUN is an id or its beginning; the newest run where it is left out. The model is loaded anew and
    shown the stored adversarial images; logits and scores are computed again; the records are
    reduced again. What only a new search could tell is counted as not rechecked. Exit status 1
    where something is not as it is stored.
    """
    from bench.cli.progress import TerminalProgress
    from bench.cli.requests import request_of_run
    from bench.cli.show import chosen
    from bench.request import Machine
    from bench.store import Store
    from bench.verifying_runs import verify

    store = Store(runs)
    run = chosen(run, store.runs(), runs)
    request = request_of_run(store.run_folder(run) / "run.json")
    machine = Machine(device=device, micro_batch=batch_size, threads=threads, runs=runs)
    with TerminalProgress() as progress:
        found = verify(run, request, machine, sample=sample, tolerance=tolerance, progress=progress)
    _print(found, store)
    return 0 if found.holds else 1


def _print(found: Verification, store: Store) -> None:
    from bench.report.formats import terminal

    click.echo(terminal([_table(found)]), nl=False)
    for shard in found.shards:
        _list(
            shard.finding.differences,
            f"{store.shard_path(shard.key)} ({shard.what} of {shard.dataset})",
        )
    _list(found.differences, str(store.run_folder(found.run_id) / "records.jsonl"))
    for remark in found.remarks:
        click.echo(f"note: {remark}")
    images = sum(shard.finding.images for shard in found.shards)
    asked = f"{len(found.shards)} shards, {images} images, {found.records} records"
    unchecked = any(shard.finding.unchecked for shard in found.shards)
    holds = f"all as stored{', but for what is not rechecked' if unchecked else ''}"
    click.echo(f"{asked}: {holds if found.holds else 'NOT as stored'}")


def _list(lines: Sequence[str], file: str) -> None:
    """Name a file and what in it is not so."""
    if lines:
        click.echo(file)
    for line in lines[:SHOWN]:
        click.echo(f"  {line}")
    if len(lines) > SHOWN:
        click.echo(f"  and {len(lines) - SHOWN} more")


def _table(found: Verification) -> Table:
    """Return a row for each kind of shard."""
    from bench.report.table import Cell, Column, Table

    groups: dict[tuple[str, str], list[Finding]] = {}
    for s in found.shards:
        groups.setdefault((s.label or "(no model)", s.what), []).append(s.finding)
    titles = ("shards", "images", "ties", "largest change", "differences", "not rechecked")
    rows, notes = [], []
    for names, findings in groups.items():
        counts = (
            len(findings),
            sum(f.images for f in findings),
            sum(f.ties for f in findings),
            max(f.deviation for f in findings),
            sum(len(f.differences) for f in findings),
            len(unchecked := sorted({name for f in findings for name in f.unchecked})),
        )
        if unchecked:
            notes.append(f"{', '.join(names)}: not rechecked: {', '.join(unchecked)}")
        cells = tuple(Cell(float(c), places=7 if isinstance(c, float) else 0) for c in counts)
        rows.append((names, cells))
    return Table(
        f"run {found.run_id}",
        ("model", "of"),
        tuple(map(Column, titles)),
        tuple(rows),
        (*([SEARCHED] if notes else []), *notes),
    )
