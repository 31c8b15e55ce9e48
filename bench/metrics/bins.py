"""Confidence bins and the calibration errors that one set of bins gives.

`Bins` holds sums, so that a bootstrap resample is a `Bins` with leading axes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from bench.errors import InputError
from bench.metrics.grouped import grouped_sums
from bench.types import Array


@dataclass(frozen=True, eq=False)
class Bins:
    """Sums over the images of each bin, ``(..., B)``; leading axes are resamples.

    Attributes:
        images: How many images.
        confidence: Sum of the confidences.
        correct: How many predictions are right.
        squares: Sum of (confidence - correct)^2.
    """

    images: Array
    confidence: Array
    correct: Array
    squares: Array

    @property
    def gap(self) -> Array:
        """Mean confidence minus accuracy, ``(..., B)``; 0 in an empty bin."""
        return np.asarray((self.confidence - self.correct) / np.maximum(self.images, 1))

    @property
    def share(self) -> Array:
        """The share of all images, ``(..., B)``."""
        return np.asarray(self.images / self.images.sum(axis=-1, keepdims=True))

    def ece(self) -> Array:
        """Return the mean absolute gap, weighted by images, ``(...,)``."""
        return np.asarray((self.share * np.abs(self.gap)).sum(axis=-1))

    def mce(self) -> Array:
        """Return the largest absolute gap of a bin that holds images, ``(...,)``."""
        return np.asarray(np.abs(self.gap).max(axis=-1))

    def rmsce(self) -> Array:
        """Return the root of the mean squared gap, weighted by images, ``(...,)``."""
        return np.asarray(np.sqrt((self.share * self.gap**2).sum(axis=-1)))

    def debiased_ece(self) -> Array:
        """Return the ECE less the excess that noise in the gaps adds to it, ``(...,)``."""
        gap = np.abs(self.gap)
        sigma = np.sqrt(self._gap_variance())
        z = gap / np.where(sigma > 0, sigma, np.inf)
        # E|N(gap, sigma^2)|, a folded normal: what a repetition would show on average.
        folded = sigma * np.sqrt(2 / np.pi) * np.exp(-(z**2) / 2) + gap * (1 - 2 * ndtr(-z))
        excess = np.where(sigma > 0, folded - gap, 0.0)
        return np.asarray(np.maximum((self.share * (gap - excess)).sum(axis=-1), 0.0))

    def _gap_variance(self) -> Array:
        n = np.maximum(self.images, 1)
        spread = np.maximum(self.squares - n * self.gap**2, 0.0) / (n * np.maximum(n - 1, 1))
        # One image shows no spread: take that of a coin with its confidence.
        mean = self.confidence / n
        return np.where(self.images == 1, mean * (1 - mean), spread)


def equal_width(confidence: Array, n_bins: int) -> Array:
    """Return the bin number of each confidence, bins (k/B, (k+1)/B]; the first also holds 0.

    Edges are k / B in float64. `numpy.linspace` is another number in places (3/20), which moves
    a confidence of exactly 0.15.
    """
    check_bins(n_bins)
    return np.searchsorted(np.arange(1, n_bins) / n_bins, confidence, side="left")


def equal_mass(confidence: Array, n_bins: int) -> Array:
    """Return bin numbers of about equal counts; equal confidences share one bin.

    Bins are cut *at values*, the k N / B-th smallest, so fewer than B may come out.
    """
    check_bins(n_bins)
    n = len(confidence)
    last = (np.arange(1, n_bins) * n + n_bins - 1) // n_bins - 1  # ceil(k N / B), from 0
    cuts = np.unique(np.sort(confidence)[last])
    return np.searchsorted(cuts, confidence, side="left")


def fill(
    bin_of: Array, n_bins: int, confidence: Array, correct: Array, weights: Array | None = None
) -> Bins:
    """Return the sums of each bin; ``weights`` ``(..., N)`` are counts of resamples."""
    weights = np.ones_like(confidence) if weights is None else weights
    columns = (np.ones_like(confidence), confidence, correct, (confidence - correct) ** 2)
    return Bins(*(grouped_sums(weights * column, bin_of, n_bins) for column in columns))


def check_bins(n_bins: int) -> None:
    """Refuse less than one bin."""
    if n_bins < 1:
        raise InputError(f"n_bins={n_bins}; expected at least 1 bin")
