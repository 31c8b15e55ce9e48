"""Tables of the checks for masked gradients: a row a check, a column a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.records import Record
from bench.report.table import NORMS, Cell, Column, Notes, Table, ordered
from bench.types import Status

CHECKS = "masking_checks"
FAILED = " FAIL"


def checks_tables(records: Sequence[Record], title: str) -> list[Table]:
    """Return one table a norm."""
    tables = []
    for norm in ordered(r.settings["norm"] for r in records):
        own = [r for r in records if r.settings["norm"] == norm]
        tables.append(_table(own, f"{title}: masking checks, {NORMS.get(norm, norm)}"))
    return tables


def _table(records: Sequence[Record], title: str) -> Table:
    notes = Notes()
    # Models that were checked give the rows; the others say why they were not.
    rows: dict[tuple[str, str], None] = {}
    for r in records:
        rows |= {(c["name"], c["passes"]): None for c in r.details.get("checks", ())}
    names = list(rows) or [("all", "")]
    cells = [tuple(_cell(r, name, notes) for r in records) for name, _ in names]
    n = next((r.n for r in records if r.n), None)
    lines = [f"The first {n} images. {MEANING}"] if n else []
    lines += [f"{r.label} failed {r.note}" for r in records if r.note and r.value is not None]
    return Table(
        title,
        ("check", "passes with"),
        tuple(Column(r.label) for r in records),
        tuple(zip(names, cells, strict=True)),
        (*lines, *notes.lines()),
    )


MEANING = (
    "Shares, and differences of accuracy to the white box, are in percent. A failed check says "
    "that the attack failed rather than that the model is robust; passing all proves nothing."
)


def _cell(record: Record, name: str, notes: Notes) -> Cell:
    if record.value is None:
        return Cell(status=record.status, mark=notes.mark(record.note))
    check: Mapping[str, Any] = next(c for c in record.details["checks"] if c["name"] == name)
    if check["value"] is None:
        return Cell(status=Status.NOT_APPLICABLE, mark=notes.mark(check["note"]))
    scale, places = (100.0, 1) if check["percent"] else (1.0, 2)
    mark = FAILED if check["verdict"] == "fail" else ""
    return Cell(check["value"] * scale, mark=mark, places=places)


def checks_lines(records: Sequence[Record]) -> list[str]:
    """Return what stands under a table of accuracies: who failed none of how many checks.

    Which ones failed stands in the notes of the rows.
    """
    passed: dict[int, list[str]] = {}
    late: dict[str, int] = {}
    for r in records:
        checks = r.details.get("checks", {})
        if checks.get("failed") == []:
            passed.setdefault(len(checks["passed"]), []).append(r.label)
        if checks.get("unfinished"):
            late[r.label] = len(checks["unfinished"])
    none = [f"none of {n} failed for {', '.join(ordered(names))}" for n, names in passed.items()]
    lines = [f"Masking checks: {'; '.join(none)}."] if none else []
    if late:
        of_each = ", ".join(f"{n} of {label}" for label, n in late.items())
        lines.append(f"Masking checks not made for want of time: {of_each}.")
    return lines
