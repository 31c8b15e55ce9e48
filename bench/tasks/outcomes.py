"""From what attacks did to every image to numbers at each budget.

Every function yields rows without what is the same for all of them: the attack's settings, the
checks, the notes. ``budgets`` starts with 0, the clean images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from scipy.special import bdtr

from bench import metrics
from bench.attacking.draw_accuracy import mean_accuracy, vote_accuracy, worst_accuracy
from bench.attacking.sources import SOURCES
from bench.tasks.base import Arrays, Reduction, Row
from bench.tasks.draws import mean_interval
from bench.types import Array, Norm

TIE = 1e-4  # a margin below which another batch size may turn a verdict
DRAW_METRICS: dict[str, Callable[..., torch.Tensor]] = {
    "robust_accuracy": mean_accuracy,
    "vote_accuracy": vote_accuracy,
    "worst_of_draws": worst_accuracy,
}


def _share(metric: str, right: Array, eps: float, reduction: Reduction, **more: Any) -> Row:
    """Return the row of a share of images, ``(N,)`` bool, with Wilson's interval."""
    n, count = len(right), int(right.sum())
    low, high = metrics.wilson(count, n, reduction.level)
    return Row(
        metric=metric,
        value=count / n,
        low=low,
        high=high,
        interval="wilson",
        n=n,
        settings={"eps": eps},
        **more,
    )


def deterministic_rows(
    titles: Sequence[str], parts: Sequence[Arrays], budgets: Sequence[float], reduction: Reduction
) -> Iterator[Row]:
    """Yield the share of images that no attack breaks, at every budget."""
    broken = np.stack([part["broken"][:, : len(budgets) - 1] for part in parts])
    margins = np.min([part["margin"][:, : len(budgets) - 1] for part in parts], axis=0)
    clean = parts[0]["clean_pred"] == parts[0]["label"]
    yield _share("robust_accuracy", clean, 0.0, reduction, details={"ties": 0})
    for e, eps in enumerate(budgets[1:]):
        details: dict[str, Any] = {"ties": int((np.abs(margins[:, e]) < TIE).sum())}
        if len(parts) > 1:
            alone = broken[:, :, e] & (broken[:, :, e].sum(axis=0) == 1)
            details["broken_by_one_only"] = dict(
                zip(titles, alone.sum(axis=1).tolist(), strict=True)
            )
        right = np.logical_not(broken[:, :, e].any(axis=0))
        yield _share("robust_accuracy", right, eps, reduction, details=details)


def stochastic_rows(
    titles: Sequence[str], parts: Sequence[Arrays], budgets: Sequence[float], reduction: Reduction
) -> Iterator[Row]:
    """Yield mean, vote and worst of the draws at every budget.

    Among several attacks the winner of each image is the one with the lowest rank on the selection
    draws; its scoring draws had no part in that (DESIGN, section 9).
    """
    label, every = parts[0]["label"], np.arange(len(parts[0]["label"]))
    yield from _of_draws(parts[0]["clean_drawn"], label, 0.0, reduction, {})
    for e, eps in enumerate(budgets[1:]):
        winner = np.argmin([part["rank"][:, e] for part in parts], axis=0)
        drawn = np.stack([part["drawn"][:, e] for part in parts])[winner, every]
        source = np.stack([part["source"][:, e] for part in parts])[winner, every]
        won = {"won": _shares(titles, winner, source)}
        yield from _of_draws(drawn, label, eps, reduction, won)


def _of_draws(
    classes: Array, label: Array, eps: float, reduction: Reduction, details: dict[str, Any]
) -> Iterator[Row]:
    """Yield the three accuracies of classes ``(N, R)``.

    The mean resamples images and draws. Vote and worst belong to a fixed set of draws, in which
    each image is right or wrong: Wilson over the images.
    """
    n, draws = classes.shape
    for metric, kind in DRAW_METRICS.items():
        value = float(kind(torch.from_numpy(classes), torch.from_numpy(label)))
        if metric == "robust_accuracy":
            right = (classes == label[:, None]).astype(np.float64)
            low, high, method = mean_interval(right, reduction)
        else:
            low, high = metrics.wilson(round(value * n), n, reduction.level)
            method = "wilson"
        yield Row(
            metric=metric,
            value=value,
            low=low,
            high=high,
            interval=method,
            n=n,
            settings={"eps": eps},
            details={"draws": draws, **details},
        )


def _shares(titles: Sequence[str], winner: Array, source: Array) -> dict[str, float]:
    """Return the share of images whose winner each attack and gradient found."""
    pairs = list(zip(winner.tolist(), source.tolist(), strict=True))
    found = {}
    for attack, gradient in sorted(set(pairs)):
        prefix = f"{titles[attack]}: " if len(titles) > 1 else ""
        found[prefix + SOURCES[gradient]] = pairs.count((attack, gradient)) / len(pairs)
    return found


def fixed_noise_rows(
    parts: Sequence[Arrays], budgets: Sequence[float], reduction: Reduction
) -> Iterator[Row]:
    """Yield what is left where the attack knows the noise, if that was asked for."""
    known = [part["fixed_noise"] for part in parts if "fixed_noise" in part]
    if known:
        for e, eps in enumerate(budgets[1:]):
            right = np.all([k[:, e] for k in known], axis=0)
            yield _share("fixed_noise_accuracy", right, eps, reduction)


def distance_rows(norm: Norm, parts: Sequence[Arrays], reduction: Reduction) -> Iterator[Row]:
    """Yield the median distance of the nearest adversarial images, and what they cost."""
    found = [np.where(_adversarial(part), part[norm.value][:, -1], np.inf) for part in parts]
    distance = np.min(found, axis=0)
    ends = median_interval(distance, reduction.level)
    median, low, high = (value if np.isfinite(value) else None for value in ends)
    yield Row(
        metric="median_distance",
        value=median,
        low=low,
        high=high,
        interval="order-statistics",
        n=len(distance),
        details={"found": int(np.isfinite(distance).sum())},
        note="no adversarial image was found for half of the images" if median is None else None,
    )
    queries = np.sum([part["queries"] for part in parts], axis=0)
    yield Row(metric="mean_queries", value=float(queries.mean()), n=len(queries))


def _adversarial(part: Arrays) -> Array:
    """Say for which images the last column, the one without budget, holds an adversarial one."""
    return np.asarray(part["broken" if "broken" in part else "found"][:, -1])


def median_interval(values: Array, level: float) -> tuple[float, float, float]:
    """Return the median and an interval between two order statistics.

    How many of N values lie below the true median is binomial, so the interval needs no shape of
    their distribution; values may be infinite.
    """
    ordered, n = np.sort(values), len(values)
    low, high = ordered[(n - 1) // 2], ordered[n // 2]
    at_most = bdtr(np.arange(n + 1), n, 0.5)  # scipy.stats takes a second to import
    below = max(0, int(np.searchsorted(at_most, (1 - level) / 2)) - 1)
    median = low if low == high else (low + high) / 2
    return float(median), float(ordered[below]), float(ordered[n - 1 - below])


def passes(parts: Sequence[Arrays]) -> dict[str, float]:
    """Return the mean evaluations an image by source, of a stochastic model."""
    spent: dict[str, float] = {}
    for part in parts:
        for name, values in part.items():
            if name.startswith("spent_"):
                source = name.removeprefix("spent_")
                spent[source] = spent.get(source, 0.0) + float(np.mean(values))
    return spent
