"""What logits say: probabilities, confidence, correctness and ties, in float64."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bench.errors import InputError
from bench.metrics.arrays import class_labels, logit_matrix
from bench.types import Array


def log_softmax(logits: Array) -> Array:
    """Return log p(y | x), ``(N, K)``, of checked float64 logits; -inf logits stay -inf."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


def confidence_and_correct(logits: npt.ArrayLike, labels: npt.ArrayLike) -> tuple[Array, Array]:
    """Return max p(y | x) ``(N,)`` float64, and whether that class is the label ``(N,)`` bool.

    The softmax is taken in float64: in float32 many confidences collapse into exactly 1. Of
    equal top logits the first class is the prediction, as in `accuracy`; `ties` counts them.

    Args:
        logits: ``(N, K)``.
        labels: ``(N,)`` class numbers.

    Raises:
        InputError: The logits hold NaN or +inf, or the labels do not fit.
    """
    logits = logit_matrix("logits", logits)
    labels = class_labels("labels", labels, logits.shape)
    return np.exp(log_softmax(logits).max(axis=1)), logits.argmax(axis=1) == labels


def ties(logits: npt.ArrayLike, threshold: float = 1e-4) -> int:
    """Return how many images have a top logit less than ``threshold`` above the second.

    Another batch size or thread count may turn the verdict of these.

    Raises:
        InputError: The logits hold NaN or +inf, or the threshold is negative.
    """
    if not threshold >= 0:
        raise InputError(f"threshold={threshold}; expected a margin of at least 0")
    logits = logit_matrix("logits", logits)
    second, first = np.partition(logits, (-2, -1), axis=1)[:, -2:].T
    return int((first - second < threshold).sum())
