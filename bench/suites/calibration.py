"""Suite ``calibration``: whether the confidence of the classifier is how often it is right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.registry import SUITES
from bench.suites.accuracy import clean_logits
from bench.suites.options import require_counts, require_metrics
from bench.tasks.base import Plan, Task
from bench.tasks.classification import Classification


@SUITES.register("calibration", version=1)
@dataclass(frozen=True, kw_only=True)
class CalibrationSuite:
    """Expected calibration error (20 bins) and its kin on the test images.

    Options:
        metrics: Names of registered metrics of logits and labels.
        draws: How often a stochastic model is asked for each image.
    """

    metrics: tuple[str, ...] = ("ece", "mce", "rmsce", "adaptive_ece", "classwise_ece", "aurc")
    draws: int = 8

    def __post_init__(self) -> None:
        require_counts("calibration", draws=self.draws)

    def tasks(self, plan: Plan) -> Sequence[Task]:
        """Return one task, of all the metrics."""
        require_metrics("calibration", self.metrics, pair=False)
        measure = clean_logits(plan, self.draws)
        return [Classification("calibration", measure, tuple(self.metrics))]
