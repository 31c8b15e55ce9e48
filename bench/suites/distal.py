"""Suite ``distal``: how certain a model gets of noise, and whether its density sees through it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bench.errors import InputError
from bench.registry import SUITES
from bench.suites.options import require_counts
from bench.tasks.base import DataRef, Plan, Task
from bench.tasks.distal import SCORE, Distal, DistalTask
from bench.tasks.scoring import Scored


@SUITES.register("distal", version=1)
@dataclass(frozen=True, kw_only=True)
class DistalSuite:
    """Uniform noise that is changed until a class is certain, with log p(x) beside it.

    Both are asked of the network behind a refinement. The images stay in the shards.

    Options:
        n: How many images; image i becomes class i modulo the number of classes.
        steps: Steps of each image.
        step_size: Of a step, in units of the [0, 1] pixel range.
        draws: Behind each gradient of a stochastic model.
    """

    n: int = 100
    steps: int = 200
    step_size: float = 0.01
    draws: int = 8

    def __post_init__(self) -> None:
        require_counts("distal", n=self.n, steps=self.steps, draws=self.draws)
        if not 0 < self.step_size < math.inf:
            raise InputError(
                f"'--set distal.step_size={self.step_size}': expected a number above 0"
            )

    def tasks(self, plan: Plan) -> Sequence[Task]:
        """Return the one task."""
        data = DataRef(
            spec="uniform",
            like=plan.data.spec,
            n=min(self.n, plan.data.limit or self.n),
            root=plan.data.root,
            download=plan.data.download,
        )
        measure = Distal(
            data=data,
            steps=self.steps,
            step_size=self.step_size,
            draws=self.draws,
            input_noise=plan.input_noise,
        )
        return [
            DistalTask(measure, Scored(data=plan.data, score=SCORE, input_noise=plan.input_noise))
        ]
