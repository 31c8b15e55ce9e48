"""Selective prediction: the risk when only the most confident images are answered."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bench.metrics.arrays import correctness, scores
from bench.metrics.grouped import grouped_sums
from bench.registry import METRICS
from bench.types import Array


@dataclass(frozen=True, eq=False)
class RiskCounts:
    """Images and errors of each distinct confidence, ``(..., G)``, the highest first."""

    images: Array
    errors: Array

    def aurc(self) -> Array:
        """Return the mean over k of the expected risk of the k most confident, ``(...,)``.

        A group of c images and e errors after k0 images and e0 errors adds
        sum_j (e0 + e j / c) / (k0 + j) = e + (e0 - e k0 / c) (H(k0 + c) - H(k0)).
        """
        k = np.cumsum(self.images, axis=-1)
        k0 = k - self.images
        e0 = np.cumsum(self.errors, axis=-1) - self.errors
        h = _harmonic(int(k[..., -1].max()))
        spans = h[k.astype(np.int64)] - h[k0.astype(np.int64)]
        slope = self.errors / np.maximum(self.images, 1)
        total = (self.errors + (e0 - slope * k0) * spans).sum(axis=-1)
        return np.asarray(total / k[..., -1])

    def e_aurc(self) -> Array:
        """Return the AURC above that of the same errors put last, ``(...,)``."""
        images, errors = self.images.sum(axis=-1), self.errors.sum(axis=-1)
        oracle = RiskCounts(
            np.stack([images - errors, errors], axis=-1),
            np.stack([np.zeros_like(errors), errors], axis=-1),
        )
        return np.asarray(np.maximum(self.aurc() - oracle.aurc(), 0.0))


def _harmonic(n: int) -> Array:
    """Return H(0) .. H(n)."""
    return np.concatenate([[0.0], np.cumsum(1.0 / np.arange(1, n + 1))])


@dataclass(frozen=True, eq=False)
class ByConfidence:
    """Predictions grouped by confidence, to count risks for many resamples.

    Attributes:
        group: ``(N,)`` the group of each image; 0 holds the highest confidence.
        n_groups: How many distinct confidences.
        wrong: ``(N,)`` 1.0 where the prediction is wrong.
    """

    group: Array
    n_groups: int
    wrong: Array

    def counts(self, weights: Array) -> RiskCounts:
        """Return the counts of resamples that hold image i ``weights[..., i]`` times."""
        return RiskCounts(
            grouped_sums(weights, self.group, self.n_groups),
            grouped_sums(weights * self.wrong, self.group, self.n_groups),
        )


def by_confidence(confidence: npt.ArrayLike, correct: npt.ArrayLike) -> ByConfidence:
    """Group ``(N,)`` predictions by confidence, after checking the arguments."""
    confidence = scores("confidence", confidence)
    wrong = 1.0 - correctness("correct", correct, len(confidence))
    distinct, group = np.unique(-confidence, return_inverse=True)
    return ByConfidence(group, len(distinct), wrong)


@METRICS.register("aurc", better="lower", interval="bootstrap", bounds=(0.0, 1.0))
def aurc(confidence: npt.ArrayLike, correct: npt.ArrayLike) -> float:
    """Return the area under the risk-coverage curve, Geifman et al. (2019), equation 2.

    Mean over k of the error rate of the k most confident images. Equal confidences count with
    their mean risk, which is the expectation over their orders: order does not matter.

    Args:
        confidence: ``(N,)``, any scale; higher = more confident.
        correct: ``(N,)`` booleans.

    Raises:
        InputError: An array is empty, holds NaN, or does not fit the other.
    """
    grouped = by_confidence(confidence, correct)
    return float(grouped.counts(np.ones_like(grouped.wrong)).aurc())


@METRICS.register("e_aurc", better="lower", interval="bootstrap", bounds=(0.0, 1.0))
def e_aurc(confidence: npt.ArrayLike, correct: npt.ArrayLike) -> float:
    """Return the excess AURC: above a model whose errors are its least confident answers.

    Geifman et al. (2019), section 4. Arguments and errors as in `aurc`.
    """
    grouped = by_confidence(confidence, correct)
    return float(grouped.counts(np.ones_like(grouped.wrong)).e_aurc())
