"""What a table is before it is text: columns, rows of cells, notes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from bench.records import Record
from bench.registry import METRICS
from bench.types import Status

NORMS = {"linf": "L∞", "l2": "L2", "l0": "L0"}
# Metrics that ship, so that a stored run is printed without importing what computed it.
PERCENT = frozenset(
    {"accuracy", "auroc", "fpr95_ood", "fpr95_id", "aupr_in", "aupr_out", "robust_accuracy"}
    | {
        "vote_accuracy",
        "worst_of_draws",
        "fixed_noise_accuracy",
        "ece",
        "mce",
        "rmsce",
        "adaptive_ece",
        "classwise_ece",
    }
    | {"debiased_ece"}
)
LOWER_IS_BETTER = frozenset(
    {"nll", "brier", "ece", "mce", "rmsce", "adaptive_ece", "classwise_ece", "debiased_ece"}
    | {"aurc", "e_aurc", "fpr95_ood", "fpr95_id"}
)


@dataclass(frozen=True)
class Column:
    """A column of numbers.

    Attributes:
        title: What stands above it.
        percent: Whether fractions are shown as percent.
        lower_is_better: Direction of the arrow; ``None``: no arrow.
    """

    title: str
    percent: bool = False
    lower_is_better: bool | None = None

    @property
    def heading(self) -> str:
        """The title with an arrow towards better values."""
        if self.lower_is_better is None:
            return self.title
        return f"{self.title} {'↓' if self.lower_is_better else '↑'}"


@dataclass(frozen=True)
class Cell:
    """A number with its interval, or why there is none.

    ``mark`` refers to a note; ``places`` are decimals, by default one of percent, else three.
    """

    value: float | None = None
    low: float | None = None
    high: float | None = None
    status: Status | None = None
    mark: str = ""
    places: int | None = None

    def text(self, percent: bool) -> str:
        """Return e.g. ``97.8 ±1.2``: the value and half the width of its interval."""
        if self.status in (Status.NOT_APPLICABLE, Status.FAILED):
            return f"{self.status}{self.mark}"
        if self.value is None:
            return f"–{self.mark}"
        scale, places = (100.0, 1) if percent else (1.0, 3)
        places = places if self.places is None else self.places
        text = f"{self.value * scale:.{places}f}"
        if self.low is not None and self.high is not None:
            text += f" ±{(self.high - self.low) / 2.0 * scale:.{places}f}"
        return text + self.mark


@dataclass(frozen=True)
class Table:
    """One leaderboard.

    Attributes:
        title: What it is, with the data set.
        keys: Headings of the columns that name a row.
        columns: The columns of numbers.
        rows: For each row its names and its cells.
        notes: What must stand below it.
    """

    title: str
    keys: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: tuple[tuple[tuple[str, ...], tuple[Cell, ...]], ...]
    notes: tuple[str, ...] = ()

    def texts(self) -> list[list[str]]:
        """Return every row as texts, names first."""
        return [
            [*names, *(cell.text(c.percent) for c, cell in zip(self.columns, cells, strict=True))]
            for names, cells in self.rows
        ]

    def headings(self) -> list[str]:
        """Return the headings, names first."""
        return [*self.keys, *(column.heading for column in self.columns)]


@dataclass
class Notes:
    """Collects reasons and gives each distinct one a mark."""

    texts: list[str] = field(default_factory=list)

    def mark(self, reason: str | None) -> str:
        """Return the mark of a reason, e.g. ``[1]``; nothing for no reason."""
        if not reason:
            return ""
        if reason not in self.texts:
            self.texts.append(reason)
        return f" [{self.texts.index(reason) + 1}]"

    def lines(self) -> tuple[str, ...]:
        """Return the notes with their marks."""
        return tuple(f"[{i}] {text}" for i, text in enumerate(self.texts, start=1))


def cell_of(record: Record | None, notes: Notes) -> Cell:
    """Return the cell of a record; the reason of a missing number becomes a note."""
    if record is None:
        return Cell()
    mark = notes.mark(record.note) if record.status is not Status.OK else ""
    return Cell(record.value, record.low, record.high, record.status, mark)


def column_of(metric: str, title: str | None = None) -> Column:
    """Return the column of a metric, with its unit and direction.

    What does not ship says both where it is registered (``percent=True``, ``better="lower"``); a
    metric that is not installed here has no arrow.
    """
    if metric in PERCENT or metric in LOWER_IS_BETTER:
        return Column(title or metric, metric in PERCENT, metric in LOWER_IS_BETTER)
    if metric not in METRICS:
        return Column(title or metric)
    facts = METRICS.entry(metric).facts
    lower = {"lower": True, "higher": False}.get(facts.get("better", ""))
    return Column(title or metric, bool(facts.get("percent")), lower)


def ordered(values: Iterable[str]) -> list[str]:
    """Return distinct values in the order of their first appearance."""
    return list(dict.fromkeys(values))


def sort_rows(
    rows: Sequence[tuple[tuple[str, ...], tuple[Cell, ...]]], column: Column
) -> tuple[tuple[tuple[str, ...], tuple[Cell, ...]], ...]:
    """Return the rows, best first by their first cell; rows without it last; ties keep order."""
    sign = 1.0 if column.lower_is_better else -1.0

    def place(row: tuple[tuple[str, ...], tuple[Cell, ...]]) -> tuple[bool, float]:
        value = row[1][0].value
        return (value is None, 0.0 if value is None else sign * value)

    return tuple(sorted(rows, key=place))
