"""Task: metrics of a classifier's logits on labelled images."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from bench import metrics
from bench.metrics.predictions import log_softmax
from bench.registry import METRICS
from bench.tasks.base import (
    Failure,
    Measure,
    Reduction,
    Results,
    Row,
    arrays_of,
    first_failure,
)
from bench.tasks.logits import Logits
from bench.types import Array


@dataclass(frozen=True)
class Classification:
    """Registered metrics whose arguments come from logits and labels.

    A stochastic model answers several times an image: its answers are pooled, so a metric is that
    of the predictor which draws one answer at random, and intervals resample images, never
    answers. ``mc_error`` in the details is the standard error over the draws.

    Attributes:
        name: E.g. ``accuracy`` or ``calibration``.
        measure: Where the logits come from.
        metric_names: Which metrics.
    """

    name: str
    measure: Logits
    metric_names: tuple[str, ...]

    needs_model: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in self.metric_names:  # a name that does not exist is a bad request, not a row
            metrics.metric_inputs(name)

    @property
    def measures(self) -> tuple[Measure, ...]:
        """The logits."""
        return (self.measure,)

    def missing(self, failure: Failure) -> Iterator[Row]:
        """Yield a row for each metric, with the reason in place of the number."""
        for name in self.metric_names:
            yield Row(metric=name, status=failure.status, note=failure.reason)

    def rows(self, results: Results, reduction: Reduction) -> Iterator[Row]:
        """Yield a row for each metric."""
        failure = first_failure(self.measures, results)
        if failure is not None:
            yield from self.missing(failure)
            return
        arrays = arrays_of(self.measure, results)
        logits, labels = arrays["logits"], arrays["labels"]
        n, draws, _ = logits.shape
        pooled = Inputs(logits.reshape(n * draws, -1), np.repeat(labels, draws))
        clusters = np.repeat(np.arange(n), draws) if draws > 1 else None
        settings: dict[str, Any] = {"draws": draws} if draws > 1 else {}
        if self.measure.input_noise:
            settings["input_noise"] = self.measure.input_noise
        intervals = self._intervals(pooled, clusters, reduction)
        for name in self.metric_names:
            value = pooled.evaluate(name)
            low, high = intervals[name]
            details = self._details(name, pooled)
            if draws > 1:
                each = [Inputs(logits[:, r], labels).evaluate(name) for r in range(draws)]
                details["mc_error"] = float(np.std(each, ddof=1) / np.sqrt(draws))
            yield Row(
                metric=name,
                value=value,
                low=low,
                high=high,
                interval=metrics.interval_method(name, clusters),
                n=n,
                settings=settings,
                details=details,
            )

    def _intervals(
        self, inputs: Inputs, clusters: Array | None, reduction: Reduction
    ) -> dict[str, tuple[float, float]]:
        """Return the interval of every metric; those that take the same arrays share resamples."""
        groups: dict[tuple[str, ...], list[str]] = {}
        for name in self.metric_names:
            groups.setdefault(metrics.metric_inputs(name), []).append(name)
        found: dict[str, tuple[float, float]] = {}
        for names in groups.values():
            found |= metrics.joint_intervals(
                names,
                *inputs.arguments(names[0]),
                level=reduction.level,
                seed=reduction.seed,
                clusters=clusters,
                resamples=reduction.resamples,
            )
        return found

    def _details(self, name: str, inputs: Inputs) -> dict[str, Any]:
        if name == "accuracy":
            return {"ties": metrics.ties(inputs.logits)}
        if name == "ece":
            return ece_details(inputs)
        return {}


def ece_details(inputs: Inputs) -> dict[str, Any]:
    """Return what must stand beside an ECE: its bias, its floor, and the reliability table.

    The plain ECE is biased upwards; ``calibrated`` is what a perfectly calibrated model with the
    same confidences would show, with the range that holds 95 % of such results.
    """
    confidence, correct = inputs["confidence"], inputs["correct"]
    table = metrics.reliability_table(confidence, correct, n_bins=20)
    floor = metrics.expected_calibrated_ece(confidence, n_bins=20, seed=0)
    return {
        "n_bins": 20,
        "debiased": metrics.debiased_ece(confidence, correct, n_bins=20),
        "calibrated": floor.mean,
        "calibrated_low": floor.low,
        "calibrated_high": floor.high,
        "reliability": {name: column.tolist() for name, column in vars(table).items()},
    }


class Inputs:
    """The arrays that metrics ask for by name, made from logits and labels when asked for."""

    def __init__(self, logits: Array, labels: Array) -> None:
        self.logits, self.labels = logits, labels
        self._made: dict[str, Array] = {"logits": logits, "labels": labels}

    def __getitem__(self, name: str) -> Array:
        if name not in self._made:
            if name == "probs":
                self._made["probs"] = np.exp(log_softmax(self.logits.astype(np.float64)))
            else:
                confidence, correct = metrics.confidence_and_correct(self.logits, self.labels)
                self._made |= {"confidence": confidence, "correct": correct}
        return self._made[name]

    def arguments(self, metric: str) -> list[Array]:
        """Return the positional arguments of a metric."""
        return [self[name] for name in metrics.metric_inputs(metric)]

    def evaluate(self, metric: str) -> float:
        """Return the value of a metric."""
        return float(METRICS[metric](*self.arguments(metric)))
