"""Task: accuracy under attack, the worst attack counting for every image."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from bench import metrics
from bench.attacking.draw_accuracy import mean_accuracy, vote_accuracy, worst_accuracy
from bench.tasks.attacked import Attacked
from bench.tasks.base import (
    Arrays,
    Failure,
    Measure,
    Reduction,
    Results,
    Row,
    arrays_of,
    first_failure,
)
from bench.types import Array, Norm

TIE = 1e-4  # a margin below which another batch size may turn a verdict
FLAT = 0.05  # share of images without gradient from which a row says so
MASKED = (
    "no gradient at {:.0f} % of the images: there the attack walks at random, and the accuracy "
    "says nothing about robustness (masked gradients)"
)
GRADIENTS = "static+straight-through"  # what the candidates of a stochastic model come from
PROVISIONAL = (
    "provisional: adaptive attacks not run (only static transfer and straight-through gradients)"
)


@dataclass(frozen=True)
class Robustness:
    """Robust accuracy at every budget of one norm.

    The number is the per-image worst case over the attacks. For a stochastic model there are
    three: the mean over draws, the vote, and the worst of all draws; each stands beside its value
    on clean images (eps 0), since the worst of many draws falls without any attack.

    Attributes:
        norm: Of all the attacks.
        attacks: One or more measures with the same budgets.
        refine_steps: N of JEM-N, for the record.
    """

    norm: Norm
    attacks: tuple[Attacked, ...]
    refine_steps: int = 0

    needs_model: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """E.g. ``robustness/linf``."""
        return f"robustness/{self.norm}"

    @property
    def measures(self) -> tuple[Measure, ...]:
        """The attacks."""
        return self.attacks

    def _settings(self, eps: float) -> dict[str, Any]:
        options = dict(self.attacks[0].options)
        return {
            "attack": "+".join(a.attack for a in self.attacks),
            "norm": self.norm.value,
            "eps": eps,
            **{k: v for k, v in options.items() if v is not None},
            **({"gradient": GRADIENTS} if "scoring_draws" in options else {}),
            "refine_steps": self.refine_steps,
        }

    def missing(self, failure: Failure) -> Iterator[Row]:
        """Yield a row for each budget, with the reason in place of the number."""
        for eps in (0.0, *self.attacks[0].eps):
            yield Row(
                metric="robust_accuracy",
                status=failure.status,
                note=failure.reason,
                settings=self._settings(eps),
            )

    def rows(self, results: Results, reduction: Reduction) -> Iterator[Row]:
        """Yield rows by budget; eps 0 is the clean accuracy on the same images."""
        failure = first_failure(self.attacks, results)
        if failure is not None:
            yield from self.missing(failure)
            return
        parts = [arrays_of(measure, results) for measure in self.attacks]
        if "broken" in parts[0]:
            yield from self._deterministic(parts, reduction)
        else:
            yield from self._stochastic(parts, reduction)

    def _deterministic(self, parts: list[Arrays], reduction: Reduction) -> Iterator[Row]:
        clean_right = parts[0]["clean_pred"] == parts[0]["label"]
        broken = np.any([part["broken"] for part in parts], axis=0)
        margins = np.min([part["margin"] for part in parts], axis=0)
        queries = float(np.mean(np.sum([part["queries"] for part in parts], axis=0)))
        flat = float(np.mean(parts[0]["flat"][clean_right])) if clean_right.any() else 0.0
        right = [clean_right, *(~broken).T]
        ties = [0, *(np.abs(margins) < TIE).sum(axis=0).tolist()]
        for eps, correct, tied in zip((0.0, *self.attacks[0].eps), right, ties, strict=True):
            low, high = metrics.wilson(int(correct.sum()), len(correct), reduction.level)
            yield Row(
                metric="robust_accuracy",
                value=float(correct.mean()),
                low=low,
                high=high,
                interval="wilson",
                n=len(correct),
                settings=self._settings(eps),
                details={
                    "ties": int(tied),
                    "zero_gradient": flat,
                    **({"mean_queries": queries} if eps else {}),
                },
                note=MASKED.format(100 * flat) if flat > FLAT else None,
            )

    def _stochastic(self, parts: list[Arrays], reduction: Reduction) -> Iterator[Row]:
        """Yield mean, vote and worst of the draws.

        With several attacks the one with the lowest mean accuracy at a budget counts as a whole:
        a worst case per image over draws that score would be biased (DESIGN, section 9).
        """
        label = parts[0]["label"]
        drawn = [parts[0]["clean_drawn"]]
        for e in range(len(self.attacks[0].eps)):
            candidates = [part["drawn"][:, e] for part in parts]
            drawn.append(min(candidates, key=lambda c: float((c == label[:, None]).mean())))
        for eps, classes in zip((0.0, *self.attacks[0].eps), drawn, strict=True):
            for metric, kind in DRAW_METRICS.items():
                value = float(kind(torch.from_numpy(classes), torch.from_numpy(label)))
                low, high, method = _interval(metric, value, classes, label, reduction)
                yield Row(
                    metric=metric,
                    value=value,
                    low=low,
                    high=high,
                    interval=method,
                    n=len(label),
                    settings=self._settings(eps),
                    details={"draws": classes.shape[1]},
                    note=PROVISIONAL,
                )


DRAW_METRICS: dict[str, Callable[..., torch.Tensor]] = {
    "robust_accuracy": mean_accuracy,
    "vote_accuracy": vote_accuracy,
    "worst_of_draws": worst_accuracy,
}


def _interval(
    metric: str, value: float, classes: Array, label: Array, reduction: Reduction
) -> tuple[float, float, str]:
    """Return the interval of a value over draws ``(N, R)``, and how it was made.

    The mean resamples images and draws. Vote and worst belong to a fixed set of draws, in which
    each image is right or wrong: Wilson over the images.
    """
    n, draws = classes.shape
    if metric != "robust_accuracy":
        return (*metrics.wilson(round(value * n), n, reduction.level), "wilson")
    right = (classes == label[:, None]).astype(np.float64)
    rng = np.random.default_rng([reduction.seed, *b"draws"])
    images = rng.multinomial(n, np.full(n, 1.0 / n), size=reduction.resamples)
    times = rng.multinomial(draws, np.full(draws, 1.0 / draws), size=reduction.resamples)
    values = ((images @ right) * times).sum(axis=1) / (n * draws)
    tail = (1.0 - reduction.level) / 2.0
    low, high = np.quantile(values, [tail, 1.0 - tail])
    if low == high:  # all right or all wrong: no resample moves it, but the images are a sample
        return (*metrics.wilson(round(value * n), n, reduction.level), "wilson")
    return min(float(low), value), max(float(high), value), "bootstrap-images-draws"
