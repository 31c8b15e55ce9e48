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
from bench.types import Array

TIE = 1e-4  # a margin below which another batch size may turn a verdict (DESIGN, section 7)


@dataclass
class Finding:
    """What a recheck came to.

    Attributes:
        images: How many images were looked at.
        ties: Verdicts that came out otherwise within the tolerance: rounding decides them.
        deviation: The largest change of a number, as a share of the largest number of its kind.
        differences: What is not so, one line each.
    """

    images: int = 0
    ties: int = 0
    deviation: float = 0.0
    differences: list[str] = field(default_factory=list)


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
    again = measure(model, batch, context)
    if set(again) != set(stored.arrays):
        finding.differences.append(
            f"holds {', '.join(sorted(stored.arrays))}; expected {', '.join(sorted(again))}"
        )
        return finding
    for name, values in again.items():
        compare(finding, name, values, stored)
    return finding


def compare(
    finding: Finding, name: str, found: Array, stored: Stored, values: Array | None = None
) -> None:
    """Note where the stored array of that name, or ``values``, is not what was found.

    Floats may differ by the tolerance times the largest of them, at least 1.
    """
    values = stored.arrays[name] if values is None else values
    if values.shape != found.shape:
        finding.differences.append(f"{name} has shape {values.shape}; expected {found.shape}")
        return
    if np.issubdtype(found.dtype, np.floating):
        scale = max(1.0, float(np.abs(found[np.isfinite(found)]).max(initial=0.0)))
        with np.errstate(invalid="ignore"):  # infinity less infinity
            apart = np.where(found == values, 0.0, np.abs(found - values) / scale)
        apart = np.nan_to_num(apart, nan=np.inf)
        finding.deviation = max(finding.deviation, float(apart.max(initial=0.0)))
        wrong = apart > stored.tolerance
    else:
        wrong = values != found
    finding.differences += listed(name, wrong, values, found, stored)


def listed(name: str, wrong: Array, values: Array, found: Array, stored: Stored) -> Iterator[str]:
    """Yield a line for each image with a wrong entry, which names its first one."""
    for row in np.flatnonzero(wrong.reshape(len(wrong), -1).any(axis=1)):
        place = tuple(int(i) for i in np.argwhere(wrong[row])[0]) if wrong.ndim > 1 else ()
        where = f"{name}{list(place)}" if place else name
        yield (
            f"image {stored.numbers[row]}: {where} is stored as {values[row][place]}, "
            f"found {found[row][place]}"
        )
