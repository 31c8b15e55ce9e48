"""Means over images of what the predictions are worth: accuracy, NLL and Brier score."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from bench.metrics.arrays import class_labels, logit_matrix, probabilities
from bench.metrics.predictions import log_softmax
from bench.registry import METRICS
from bench.types import Array


def hit_per_image(logits: npt.ArrayLike, labels: npt.ArrayLike) -> Array:
    """Return 1 where the top logit is the label's, else 0, ``(N,)``."""
    logits = logit_matrix("logits", logits)
    labels = class_labels("labels", labels, logits.shape)
    return np.asarray(logits.argmax(axis=1) == labels, np.float64)


def nll_per_image(logits: npt.ArrayLike, labels: npt.ArrayLike) -> Array:
    """Return -log p(label | x), ``(N,)``."""
    logits = logit_matrix("logits", logits)
    labels = class_labels("labels", labels, logits.shape)
    picked = log_softmax(logits)[np.arange(len(labels)), labels]
    return np.asarray(0.0 - picked)  # not -picked, which makes a sure and right answer -0.0


def brier_per_image(probs: npt.ArrayLike, labels: npt.ArrayLike) -> Array:
    """Return the sum over classes of (p_k - [label = k])^2, ``(N,)``."""
    probs = probabilities("probs", probs)
    labels = class_labels("labels", labels, probs.shape)
    error = probs.copy()
    error[np.arange(len(labels)), labels] -= 1.0
    return np.asarray(np.einsum("nk,nk->n", error, error))


@METRICS.register("accuracy", better="higher", interval="wilson", bounds=(0.0, 1.0))
def accuracy(logits: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """Return the share of images whose top logit is the label's.

    Of equal top logits the first class counts; `ties` says how many images that decides.

    Args:
        logits: ``(N, K)``.
        labels: ``(N,)`` class numbers.

    Raises:
        InputError: The logits hold NaN or +inf, or the labels do not fit.
    """
    return float(hit_per_image(logits, labels).mean())


@METRICS.register("nll", better="lower", interval="bootstrap", bounds=(0.0, math.inf))
def nll(logits: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """Return the mean of -log p(label | x), in nats, by log-softmax in float64.

    Nothing is clipped: a label whose logit lies 100 below the top costs 100, and infinity comes
    out only where the label's logit is -inf. Arguments and errors as in `accuracy`.
    """
    return float(nll_per_image(logits, labels).mean())


@METRICS.register("brier", better="lower", interval="bootstrap", bounds=(0.0, 2.0))
def brier(probs: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """Return the mean over images of sum_k (p_k - [label = k])^2, in 0 .. 2 (Brier 1950).

    The sum runs over all classes, also with two: scikit-learn's binary score is half of it.

    Args:
        probs: ``(N, K)``, rows sum to 1.
        labels: ``(N,)`` class numbers.

    Raises:
        InputError: ``probs`` are no probabilities, or ``labels`` do not fit them.
    """
    return float(brier_per_image(probs, labels).mean())
