"""Suite ``noise``: accuracy on test images with Gaussian noise added."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.registry import SUITES
from bench.tasks.base import Plan, Task
from bench.tasks.classification import Classification
from bench.tasks.logits import Logits


@SUITES.register("noise", version=1)
@dataclass(frozen=True, kw_only=True)
class NoiseSuite:
    """Accuracy under Gaussian noise that is added once to each test image.

    Options:
        levels: Standard deviations of the noise, in units of the [0, 1] pixel range.
        metrics: Names of registered metrics of logits and labels.
    """

    levels: tuple[float, ...] = (0.1, 0.2, 0.4)
    metrics: tuple[str, ...] = ("accuracy",)

    def tasks(self, plan: Plan) -> Sequence[Task]:
        """Return one task for each level."""
        return [
            Classification(
                name=f"noise/{level:g}",
                measure=Logits(data=plan.data, input_noise=level),
                metric_names=tuple(self.metrics),
            )
            for level in self.levels
        ]
