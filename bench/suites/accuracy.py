"""Suite ``accuracy``: how often, and how sure, the classifier is right on test images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.registry import SUITES
from bench.suites.options import require_counts, require_metrics
from bench.tasks.base import Plan, Task
from bench.tasks.classification import Classification
from bench.tasks.logits import Logits


@SUITES.register("accuracy", version=1)
@dataclass(frozen=True, kw_only=True)
class AccuracySuite:
    """Accuracy, negative log-likelihood and Brier score on the test images.

    Options:
        metrics: Names of registered metrics of logits and labels.
        draws: How often a stochastic model is asked for each image.
    """

    metrics: tuple[str, ...] = ("accuracy", "nll", "brier")
    draws: int = 8

    def __post_init__(self) -> None:
        require_counts("accuracy", draws=self.draws)

    def tasks(self, plan: Plan) -> Sequence[Task]:
        """Return one task, of all the metrics."""
        require_metrics("accuracy", self.metrics, pair=False)
        return [Classification("accuracy", clean_logits(plan, self.draws), tuple(self.metrics))]


def clean_logits(plan: Plan, draws: int) -> Logits:
    """Return the measure that accuracy and calibration share, so that it runs once.

    Under the papers' protocol an unrefined model sees each image with noise added once; a
    refined one adds the noise itself, to each of its chains.
    """
    if plan.input_noise and not plan.refine_steps:
        return Logits(data=plan.data, draws=draws, input_noise=plan.input_noise)
    return Logits(data=plan.data, draws=draws if plan.stochastic else 1)
