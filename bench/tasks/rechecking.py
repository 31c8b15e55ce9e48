"""Recheck what a shard says of its images, by asking the model again.

`recheck` takes a measure and what was stored of it. A measure is simply
done again, unless it registers a way of its own: for an attack that would be a new search
(`bench.tasks.rechecking_images`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import singledispatch
from typing import Any

import numpy as np

from bench.context import Context
from bench.models import LoadedModel
from bench.tasks.base import Arrays, Batch
from bench.tasks.draws import classes_of
from bench.tasks.logits import Logits
from bench.types import Array

# A margin below which another batch size may turn a verdict, as a share of the usual margin.
TIE = 1e-4


@dataclass
class Finding:
    """What a recheck came to.

    Attributes:
        images: How many images were looked at.
        ties: Verdicts that came out otherwise within the tolerance: rounding decides them.
        deviation: The largest change of a number, as a share of the largest number of its kind.
        differences: What is not so, one line each.
        unchecked: Stored arrays that were not looked at: only a new search could give them.
    """

    images: int = 0
    ties: int = 0
    deviation: float = 0.0
    differences: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Stored:
    """Stored arrays of some images, and the numbers of these in their data set."""

    arrays: Arrays
    numbers: Array
    tolerance: float = TIE


@singledispatch
def recheck(
    measure: Any, model: LoadedModel | None, batch: Batch, context: Context, stored: Stored
) -> Finding:
    """Compare stored arrays with what the model says now.

    Args:
        measure: A `bench.tasks.base.Measure`.
        model: The model, loaded anew, on the device of the batch.
        batch: The images.
        context: With the noise that the measure was given.
        stored: The arrays, one row an image.
    """
    finding = Finding(len(batch.x))
    _compare_all(finding, measure(model, batch, context), stored)
    return finding


@recheck.register
def _(
    measure: Logits, model: LoadedModel | None, batch: Batch, context: Context, stored: Stored
) -> Finding:
    """Compare logits, and the classes that they come to.

    Where logits are large, what rounding may change of them may be more than what lies between two
    classes.
    """
    finding, again = Finding(len(batch.x)), measure(model, batch, context)
    _compare_all(finding, again, stored)
    if not finding.differences:
        found, gaps = classes_of(again["logits"])
        values, _ = classes_of(stored.arrays["logits"])
        note_verdicts(finding, "class", values, found, gaps, stored, usual(gaps))
    return finding


def _compare_all(finding: Finding, again: Arrays, stored: Stored) -> None:
    """Note where stored arrays are not what was found."""
    if set(again) != set(stored.arrays):
        finding.differences.append(
            f"holds {', '.join(sorted(stored.arrays))}; expected {', '.join(sorted(again))}"
        )
        return
    for name, values in again.items():
        compare(finding, name, values, stored)


def compare(
    finding: Finding, name: str, found: Array, stored: Stored, scale: float | None = None
) -> None:
    """Note where the stored array of that name is not what was found.

    Floats may differ by the tolerance times ``scale``, by default the largest of them.
    """
    values = stored.arrays[name]
    if values.shape != found.shape:
        finding.differences.append(f"{name} has shape {values.shape}; expected {found.shape}")
        return
    if np.issubdtype(found.dtype, np.floating):
        scale = scale or float(np.abs(found[np.isfinite(found)]).max(initial=0.0)) or 1.0
        with np.errstate(invalid="ignore"):  # infinity less infinity
            apart = np.where(found == values, 0.0, np.abs(found - values) / scale)
        apart = np.nan_to_num(apart, nan=np.inf)
        finding.deviation = max(finding.deviation, float(apart.max(initial=0.0)))
        wrong = apart > stored.tolerance
    else:
        wrong = values != found
    finding.differences += listed(name, wrong, values, found, stored)


def usual(margins: Array) -> float:
    """Return the usual size of margins: what is small beside it, rounding decides.

    The median, since logits have any scale and a few margins may be much larger than the rest.
    """
    return float(np.median(np.abs(margins)))


def note_verdicts(
    finding: Finding,
    name: str,
    values: Array,
    found: Array,
    margins: Array,
    stored: Stored,
    scale: float,
) -> None:
    """Note verdicts that are not as stored; a margin small beside ``scale`` makes a tie of one."""
    differs = values != found
    tied = differs & (np.abs(margins) < stored.tolerance * scale)
    finding.ties += int(tied.sum())
    finding.differences += listed(name, differs & ~tied, values, found, stored)


def listed(name: str, wrong: Array, values: Array, found: Array, stored: Stored) -> Iterator[str]:
    """Yield a line for each image with a wrong entry, which names its first one."""
    for row in np.flatnonzero(wrong.reshape(len(wrong), -1).any(axis=1)):
        place = tuple(int(i) for i in np.argwhere(wrong[row])[0]) if wrong.ndim > 1 else ()
        where = f"{name}{list(place)}" if place else name
        yield (
            f"image {stored.numbers[row]}: {where} is stored as {values[row][place]}, "
            f"found {found[row][place]}"
        )
