"""Suite ``smoke``: a little of everything, in seconds, to see whether an installation works."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench.registry import SUITES
from bench.suites.accuracy import AccuracySuite
from bench.suites.calibration import CalibrationSuite
from bench.suites.ood import OODSuite
from bench.suites.options import require_counts
from bench.suites.robustness import RobustnessSuite
from bench.tasks.base import Plan, Task

QUICK_ATTACK = RobustnessSuite(
    attacks=("pgd-linf", "pgd-l2"),
    gradients=("static", "straight-through"),
    steps=3,
    restarts=1,
    eot_samples=2,
    scoring_draws=4,
    checks=False,  # they would take longer than all the rest
)


@SUITES.register("smoke", version=2)
@dataclass(frozen=True, kw_only=True)
class SmokeSuite:
    """Every other suite on few images; its numbers mean nothing.

    Options:
        images: How many images of each set.
    """

    images: int = 40

    def __post_init__(self) -> None:
        require_counts("smoke", images=self.images)

    def tasks(self, plan: Plan) -> Sequence[Task]:
        """Return tiny tasks of each kind."""
        few = min(self.images, plan.data.limit or self.images)
        small = replace(plan, data=replace(plan.data, limit=few))
        return [
            *AccuracySuite(draws=2).tasks(small),
            *CalibrationSuite(draws=2).tasks(small),
            *OODSuite(n=few).tasks(small),
            *QUICK_ATTACK.tasks(small),
        ]
