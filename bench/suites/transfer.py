"""Suite ``transfer``: what is adversarial for the network, shown to the refined model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.registry import SUITES
from bench.suites.budgets import attack_options, budgets_of, norm_of, require_order
from bench.suites.options import require_budgets, require_counts
from bench.tasks.base import Plan, Task
from bench.tasks.transfer import Transfer, Transferred
from bench.types import Norm


@SUITES.register("transfer", version=1)
@dataclass(frozen=True, kw_only=True)
class TransferSuite:
    """Adversarial images made against JEM-0, evaluated on JEM-N.

    The same images for every N of ``--refine-steps 0,1,10``; N = 0 is the network that was
    attacked. Nothing is searched again for a refined model, so its rows say what refinement does to
    images that do not know of it, and not how robust it is: that is suite ``robustness``.

    Options:
        attacks: Names of registered attacks, one of each norm.
        steps: Steps of an attack that takes steps.
        restarts: Random starts of an attack that restarts.
        draws: How often a refined model is asked for each image.
        linf: Budgets instead of the data set's.
        l2: Budgets instead of the data set's.
        settings: Options by attack, from ``--set``.
    """

    attacks: tuple[str, ...] = ("pgd-linf", "pgd-l2")
    steps: int = 40
    restarts: int = 2
    draws: int = 20
    linf: tuple[float, ...] = ()
    l2: tuple[float, ...] = ()
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_counts("transfer", steps=self.steps, restarts=self.restarts, draws=self.draws)
        require_budgets("transfer", "linf", self.linf)
        require_budgets("transfer", "l2", self.l2)

    def tasks(self, plan: Plan) -> Sequence[Task]:
        """Return a task for each attack."""
        own = {Norm.LINF: self.linf, Norm.L2: self.l2}
        common = {"steps": self.steps, "restarts": self.restarts}
        tasks = []
        for name in self.attacks:
            norm, given = norm_of(name), self.settings.get(name, {})
            require_order("transfer", norm, own.get(norm, ()), given)
            measure = Transferred(
                data=plan.data,
                attack=name,
                eps=budgets_of("transfer", plan, norm, own),
                options=attack_options(name, common, given),
                draws=self.draws,
            )
            tasks.append(Transfer(norm, measure, plan.refine_steps))
        return tasks
