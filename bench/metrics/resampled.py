"""Metrics on many resamples at once: rank or bin the images once, then only count.

A metric that is not named here is called on each resample by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bench.metrics.arrays import class_labels, confidences, correctness, probabilities, scores
from bench.metrics.bins import Bins, equal_width, fill
from bench.metrics.calibration import N_BINS
from bench.metrics.grouped import grouped_sums
from bench.metrics.proper import brier_per_image, hit_per_image, nll_per_image
from bench.metrics.rank_counts import Ranking
from bench.metrics.resampling import drawn
from bench.metrics.selective import RiskCounts, by_confidence
from bench.types import Array

Metric = Callable[..., Any]
Summarise = Callable[..., Any]
"""Counts ``(R, N)``, or those of the ID and of the OOD side, to what metrics are read from."""

RANKED: Mapping[str, Callable[[Ranking], Array]] = {
    "auroc": Ranking.auroc,
    "fpr95_ood": lambda ranking: ranking.fpr_at_tpr(0.95, "ood"),
    "fpr95_id": lambda ranking: ranking.fpr_at_tpr(0.95, "id"),
    "aupr_in": lambda ranking: ranking.average_precision("id"),
    "aupr_out": lambda ranking: ranking.average_precision("ood"),
}
BINNED: Mapping[str, Callable[[Bins], Array]] = {
    "ece": Bins.ece,
    "mce": Bins.mce,
    "rmsce": Bins.rmsce,
    "debiased_ece": Bins.debiased_ece,
}
SELECTIVE: Mapping[str, Callable[[RiskCounts], Array]] = {
    "aurc": RiskCounts.aurc,
    "e_aurc": RiskCounts.e_aurc,
}


def evaluator(metrics: Mapping[str, Metric], *arrays: Array) -> Callable[..., dict[str, Array]]:
    """Return the function from counts to the values ``(R,)`` of each metric on ``arrays``.

    Metrics of one family are read from one ranking, one set of bins or one risk curve.
    """
    parts: list[tuple[Summarise, Mapping[str, Callable[[Any], Array]]]] = []
    for prepare, family in _FAMILIES:
        chosen = {name: family[name] for name in metrics if name in family}
        if chosen:
            parts.append((prepare(*arrays), chosen))
    for name in metrics.keys() - {*RANKED, *BINNED, *SELECTIVE}:
        values = _ALONE[name](*arrays) if name in _ALONE else _one_by_one(metrics[name], *arrays)
        parts.append((values, {name: np.asarray}))

    def evaluate(*counts: Array) -> dict[str, Array]:
        result: dict[str, Array] = {}
        for summarise, readers in parts:
            summary = summarise(*counts)
            result |= {name: read(summary) for name, read in readers.items()}
        return result

    return evaluate


def _rankings(id_scores: Array, ood_scores: Array) -> Summarise:
    sides = scores("id_scores", id_scores), scores("ood_scores", ood_scores)
    distinct = np.unique(np.concatenate(sides))
    of_id, of_ood = (np.searchsorted(distinct, side) for side in sides)
    n = len(distinct)
    return lambda id_counts, ood_counts: Ranking(
        grouped_sums(id_counts, of_id, n), grouped_sums(ood_counts, of_ood, n)
    )


def _bins(confidence: Array, correct: Array) -> Summarise:
    confidence = confidences("confidence", confidence)
    correct = correctness("correct", correct, len(confidence))
    bin_of = equal_width(confidence, N_BINS)
    return lambda counts: fill(bin_of, N_BINS, confidence, correct, counts)


def _risks(confidence: Array, correct: Array) -> Summarise:
    return by_confidence(confidence, correct).counts


_FAMILIES: tuple[tuple[Callable[..., Summarise], Mapping[str, Callable[[Any], Array]]], ...] = (
    (_rankings, RANKED),
    (_bins, BINNED),
    (_risks, SELECTIVE),
)


def _classwise(probs: Array, labels: Array) -> Summarise:
    probs = probabilities("probs", probs)
    labels = class_labels("labels", labels, probs.shape)
    classes = [_bins(p, labels == k) for k, p in enumerate(probs.T)]
    return lambda counts: np.mean([bins(counts).ece() for bins in classes], axis=0)


def _mean_of(per_image: Callable[..., Array]) -> Callable[..., Summarise]:
    def prepare(*arrays: Array) -> Summarise:
        values = per_image(*arrays)
        infinite = np.isinf(values)
        finite = np.where(infinite, 0.0, values)  # 0 draws of infinity are 0, not NaN

        def means(counts: Array) -> Array:
            mean = counts @ finite / counts.sum(axis=1)
            return np.where(counts @ infinite.astype(np.float64) > 0, np.inf, mean)

        return means

    return prepare


_ALONE: Mapping[str, Callable[..., Summarise]] = {
    "accuracy": _mean_of(hit_per_image),
    "nll": _mean_of(nll_per_image),
    "brier": _mean_of(brier_per_image),
    "classwise_ece": _classwise,
}


def _one_by_one(metric: Metric, *arrays: Array) -> Summarise:
    def values(*counts: Array) -> Array:
        of_array = counts if len(counts) == len(arrays) else counts * len(arrays)
        return np.array(
            [
                metric(*(a[drawn(row)] for a, row in zip(arrays, rows, strict=True)))
                for rows in zip(*of_array, strict=True)
            ]
        )

    return values
