"""What a perfectly calibrated model would show: the floor under a measured calibration error.

Outcomes are drawn from the predictions themselves, the consistency resampling of Bröcker &
Smith (2007), "Increasing the reliability of reliability diagrams".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bench.metrics.arrays import confidences
from bench.metrics.bins import equal_width, fill
from bench.metrics.calibration import N_BINS
from bench.types import Array


class CalibratedECE(NamedTuple):
    """The ECE of calibrated models: its mean, and the range that holds 95 % of them."""

    mean: float
    low: float
    high: float


def expected_calibrated_ece(
    confidence: npt.ArrayLike, n_bins: int = N_BINS, seed: int = 0, draws: int = 1000
) -> CalibratedECE:
    """Return the ECE that a calibrated model with these confidences shows, by simulation.

    Each draw makes prediction i right with probability ``confidence[i]`` and takes the `ece`.
    A measured ECE inside low .. high is no evidence of miscalibration.

    Args:
        confidence: ``(N,)`` probabilities of the predicted classes.
        n_bins: Bins of equal width, as in `ece`.
        seed: Seed of the NumPy generator.
        draws: How many simulated models.

    Raises:
        InputError: ``confidence`` is empty, holds NaN or leaves [0, 1].
    """
    confidence = confidences("confidence", confidence)
    bin_of = equal_width(confidence, n_bins)
    outcomes = correct_by_chance(confidence, draws, seed)
    values = np.array([fill(bin_of, n_bins, confidence, hits).ece() for hits in outcomes])
    low, high = np.quantile(values, (0.025, 0.975))
    return CalibratedECE(float(values.mean()), float(low), float(high))


def correct_by_chance(confidence: Array, draws: int, seed: int) -> Iterator[Array]:
    """Yield ``draws`` outcomes ``(N,)``, each right with probability ``confidence``."""
    rng = np.random.default_rng(seed % 2**64)
    return (rng.random(len(confidence)) < confidence for _ in range(draws))


def labels_by_chance(probs: Array, draws: int, seed: int) -> Iterator[Array]:
    """Yield ``draws`` sets of labels ``(N,)``, each drawn from its row of ``probs`` (N, K)."""
    rng = np.random.default_rng(seed % 2**64)
    below = np.cumsum(probs, axis=1)[:, :-1]
    return ((below <= rng.random((len(probs), 1))).sum(axis=1) for _ in range(draws))


def looks_calibrated(
    metric: Callable[..., float], predictions: Array, estimate: float, level: float, seed: int
) -> bool:
    """Say whether ``level`` of the calibrated models with these predictions show less.

    Args:
        metric: A calibration error of (confidence, correct) or of (probs, labels).
        predictions: ``(N,)`` confidences or ``(N, K)`` probabilities.
        estimate: What the model shows.
        level: Share of calibrated models that the answer "no" must exceed.
        seed: Seed of the simulation.
    """
    by_chance = correct_by_chance if predictions.ndim == 1 else labels_by_chance
    values = [metric(predictions, outcome) for outcome in by_chance(predictions, 200, seed)]
    return estimate <= float(np.quantile(values, level))
