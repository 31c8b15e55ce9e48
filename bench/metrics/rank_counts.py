"""Two sets of scores, ranked once: all that AUROC, FPR at a TPR and average precision need.

Scores are higher for in-distribution (ID) images. Images of equal score form one group, and no
threshold splits a group. `Ranking` holds counts, so a bootstrap resample is a `Ranking` too.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

from bench.errors import InputError
from bench.metrics.arrays import scores
from bench.types import Array

Side = Literal["id", "ood"]


@dataclass(frozen=True, eq=False)
class Ranking:
    """How many ID and OOD images have each distinct score, lowest score first.

    Attributes:
        id_counts: ``(..., G)`` counts; leading axes are resamples.
        ood_counts: The same for the OOD images.
    """

    id_counts: Array
    ood_counts: Array

    @cached_property
    def id_totals(self) -> Array:
        """ID images at or below each score, ``(..., G)``."""
        return np.cumsum(self.id_counts, axis=-1)

    @cached_property
    def ood_totals(self) -> Array:
        """OOD images at or below each score, ``(..., G)``."""
        return np.cumsum(self.ood_counts, axis=-1)

    def auroc(self) -> Array:
        """Return P(ID > OOD) + P(ID = OOD) / 2, ``(...,)``; integers until one division."""
        below = 2 * self.ood_totals - self.ood_counts
        wins = np.einsum("...g,...g->...", self.id_counts, below)
        return np.asarray(wins / (2 * self.id_totals[..., -1] * self.ood_totals[..., -1]))

    def fpr_at_tpr(self, tpr: float, positive: Side) -> Array:
        """Return the share of negatives at the first group that reaches ``tpr``, ``(...,)``."""
        positives, negatives = self._taken(positive)
        if positive == "id":  # thresholds fall from the top
            positives, negatives = positives[..., ::-1], negatives[..., ::-1]
        # 0.95 * 20 must ask for 19 positives, whatever the product rounds to.
        needed = np.ceil(tpr * positives[..., -1:] - 1e-9)
        first = np.argmax(positives >= needed, axis=-1)[..., None]
        taken = np.take_along_axis(negatives, first, axis=-1)[..., 0]
        return np.asarray(taken / negatives[..., -1])

    def average_precision(self, positive: Side) -> Array:
        """Return sum over groups of (recall step) * precision, ``(...,)``."""
        positives, negatives = self._taken(positive)
        counts = self.id_counts if positive == "id" else self.ood_counts
        # Resamples can begin with groups nobody was drawn from: 0 / 1 there, not 0 / 0.
        precision = positives / np.maximum(positives + negatives, 1)
        return np.asarray((counts * precision).sum(axis=-1) / counts.sum(axis=-1))

    def _taken(self, positive: Side) -> tuple[Array, Array]:
        """Return the positives and negatives that a threshold at each group takes."""
        if positive == "ood":
            return self.ood_totals, self.id_totals
        return _at_or_above(self.id_counts, self.id_totals), _at_or_above(
            self.ood_counts, self.ood_totals
        )


def _at_or_above(counts: Array, totals: Array) -> Array:
    return np.asarray(totals[..., -1:] - totals + counts)


def rank(id_scores: npt.ArrayLike, ood_scores: npt.ArrayLike) -> Ranking:
    """Rank ID ``(M,)`` against OOD ``(N,)`` scores; use it for several metrics of one pair.

    Raises:
        InputError: A side is empty, not one-dimensional, or holds NaN. Infinities are ordered.
    """
    low_to_high = np.sort(scores("id_scores", id_scores)), np.sort(scores("ood_scores", ood_scores))
    pooled = np.concatenate(low_to_high)
    order = np.argsort(pooled, kind="stable")  # timsort merges the two sorted runs in linear time
    pooled = pooled[order]
    ends = np.append(np.flatnonzero(pooled[1:] != pooled[:-1]), len(pooled) - 1)
    id_totals = np.cumsum((order < len(low_to_high[0])).astype(np.int64))[ends]
    id_counts = np.diff(id_totals, prepend=0)
    return Ranking(id_counts, np.diff(ends, prepend=-1) - id_counts)


def check_side(positive: str) -> None:
    """Refuse a side that is neither ``"id"`` nor ``"ood"``."""
    if positive not in ("id", "ood"):
        raise InputError(
            f"positive='{positive}' names no side; expected 'id' or 'ood', the one whose images "
            "count as positives"
        )
