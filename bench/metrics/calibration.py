"""Calibration errors: how far a confidence of 0.8 is from coming true 80 times in 100.

All take confidences in [0, 1] and give a fraction. An ECE without its bins, edges and number of
images is not a number one can compare: the defaults are 20 bins of equal width (JEM, HDGE).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.metrics.arrays import class_labels, confidences, correctness, probabilities
from bench.metrics.bins import Bins, equal_mass, equal_width, fill
from bench.registry import METRICS
from bench.types import Array

N_BINS = 20
REFLECTED: Mapping[str, Any] = {
    "interval": "reflected-bootstrap",
    "bounds": (0.0, 1.0),
    "calibration": True,
}


def width_bins(confidence: npt.ArrayLike, correct: npt.ArrayLike, n_bins: int) -> Bins:
    """Return the sums over equal-width bins, after checking the arguments."""
    confidence = confidences("confidence", confidence)
    correct = correctness("correct", correct, len(confidence))
    return fill(equal_width(confidence, n_bins), n_bins, confidence, correct)


@METRICS.register("ece", better="lower", **REFLECTED)
def ece(confidence: npt.ArrayLike, correct: npt.ArrayLike, *, n_bins: int = N_BINS) -> float:
    """Return the expected calibration error, Guo et al. (2017), equation 3.

    Sum over bins of |sum of confidences - number correct| / N. Bins are (l, u] with edges k/B
    in float64; the first also holds 0 and the last 1. It is biased upwards: a calibrated
    model does not show 0 (`debiased_ece`, `expected_calibrated_ece`).

    Args:
        confidence: ``(N,)`` probabilities of the predicted classes.
        correct: ``(N,)`` booleans.
        n_bins: B.

    Raises:
        InputError: An array is empty, holds NaN, is out of range or does not fit the other.
    """
    return float(width_bins(confidence, correct, n_bins).ece())


@METRICS.register("mce", better="lower", **REFLECTED)
def mce(confidence: npt.ArrayLike, correct: npt.ArrayLike, *, n_bins: int = N_BINS) -> float:
    """Return the maximum calibration error, Guo et al. (2017), equation 5.

    The largest |mean confidence - accuracy| of a bin that holds an image, be it one; bins and
    errors as in `ece`.
    """
    return float(width_bins(confidence, correct, n_bins).mce())


@METRICS.register("rmsce", better="lower", **REFLECTED)
def rmsce(confidence: npt.ArrayLike, correct: npt.ArrayLike, *, n_bins: int = N_BINS) -> float:
    """Return the root mean squared calibration error, Hendrycks et al. (2019), equal width.

    Root of the mean over images of (mean confidence - accuracy)^2 of the image's bin; bins and
    errors as in `ece`.
    """
    return float(width_bins(confidence, correct, n_bins).rmsce())


@METRICS.register(
    "debiased_ece", better="lower", interval="bootstrap", bounds=(0.0, 1.0), calibration=True
)
def debiased_ece(
    confidence: npt.ArrayLike, correct: npt.ArrayLike, *, n_bins: int = N_BINS
) -> float:
    """Return the ECE less its estimated bias, Kumar et al. (2019), section 5, for the L1 norm.

    In each bin the noise of the gap is taken as normal, with the variance the bin shows; the
    excess E|N(gap, variance)| - |gap| is subtracted, in closed form where the paper samples.
    The sum is clipped at 0. Bins and errors as in `ece`.
    """
    return float(width_bins(confidence, correct, n_bins).debiased_ece())


@METRICS.register("adaptive_ece", better="lower", **REFLECTED)
def adaptive_ece(
    confidence: npt.ArrayLike, correct: npt.ArrayLike, *, n_bins: int = N_BINS
) -> float:
    """Return the ECE over bins of equal mass, Nixon et al. (2019), for the top class.

    Bins end at quantiles of the confidence. Equal confidences are never split, so that the
    order of the images does not matter; bins may merge. Arguments and errors as in `ece`.
    """
    confidence = confidences("confidence", confidence)
    correct = correctness("correct", correct, len(confidence))
    return float(fill(equal_mass(confidence, n_bins), n_bins, confidence, correct).ece())


@METRICS.register("classwise_ece", better="lower", **REFLECTED)
def classwise_ece(probs: npt.ArrayLike, labels: npt.ArrayLike, *, n_bins: int = N_BINS) -> float:
    """Return the mean over classes k of the ECE of p_k against [label = k], all images.

    Static calibration error, Nixon et al. (2019), equation 3; bins as in `ece`.

    Args:
        probs: ``(N, K)``, rows sum to 1.
        labels: ``(N,)`` class numbers.
        n_bins: B.

    Raises:
        InputError: ``probs`` are no probabilities, or ``labels`` do not fit them.
    """
    probs = probabilities("probs", probs)
    labels = class_labels("labels", labels, probs.shape)
    classes = range(probs.shape[1])
    return float(np.mean([width_bins(probs[:, k], labels == k, n_bins).ece() for k in classes]))


@dataclass(frozen=True, eq=False)
class ReliabilityTable:
    """One row a bin, ``(B,)`` each; means of empty bins are NaN.

    Attributes:
        lower: The bin holds confidences above this (the first also 0) ...
        upper: ... and up to this.
        count: How many images.
        confidence: Their mean confidence.
        accuracy: The share of right predictions.
    """

    lower: Array
    upper: Array
    count: Array
    confidence: Array
    accuracy: Array


def reliability_table(
    confidence: npt.ArrayLike, correct: npt.ArrayLike, n_bins: int = N_BINS
) -> ReliabilityTable:
    """Return what a reliability diagram draws; bins, arguments and errors as in `ece`."""
    bins = width_bins(confidence, correct, n_bins)
    edges = np.arange(n_bins + 1) / n_bins
    images = np.where(bins.images > 0, bins.images, np.nan)
    count = bins.images.astype(np.int64)
    return ReliabilityTable(
        edges[:-1], edges[1:], count, bins.confidence / images, bins.correct / images
    )
