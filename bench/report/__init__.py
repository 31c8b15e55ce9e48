"""From the store to a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bench.errors import UnknownName
from bench.records import Record

FORMATS = ("table", "markdown", "csv", "json", "latex")


def render(
    records: Sequence[Record],
    format: str = "table",
    *,
    metric: str | None = None,
    width: int | None = None,
    colour: bool = False,
) -> str:
    """Return the leaderboards of some records as text.

    Args:
        records: In the order in which rows and columns shall appear.
        format: One of `FORMATS`.
        metric: What out-of-distribution tables show; by default the AUROC.
        width: Columns of the terminal.
        colour: Whether the terminal understands colour.

    Raises:
        UnknownName: There is no such format.
    """
    from bench.report import formats
    from bench.report.leaderboard import leaderboards

    if format not in FORMATS:
        raise UnknownName("format", format, FORMATS)
    if format == "json":
        return formats.json_text(records)
    if format == "csv":
        return formats.csv_text(records)
    tables = leaderboards(records, metric)
    draw: dict[str, Callable[[], str]] = {
        "table": lambda: formats.terminal(tables, width, colour),
        "markdown": lambda: formats.markdown(tables),
        "latex": lambda: formats.latex(tables),
    }
    return draw[format]()
