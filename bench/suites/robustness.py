"""Suite ``robustness``: accuracy under attack over the data set's budgets."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.attacking.inputs import plan as plan_attack
from bench.errors import BenchError, InputError, MissingExtra, Unsupported
from bench.registry import ATTACKS, SUITES
from bench.suites.options import require_budgets, require_counts
from bench.tasks.attacked import STOCHASTIC_OPTIONS, Attacked
from bench.tasks.base import Plan, Task
from bench.tasks.robustness import Robustness
from bench.types import Norm


@SUITES.register("robustness", version=1)
@dataclass(frozen=True, kw_only=True)
class RobustnessSuite:
    """PGD in L-infinity and L2 over the data set's budgets; the worst attack of an image counts.

    A stochastic model is attacked through its static network and straight through its draws, and
    scored on draws that nothing before has seen; its rows are provisional until adaptive attacks
    are run too.

    Options:
        attacks: Names of registered attacks; several of one norm give a per-image worst case.
        steps: Steps of an attack that takes steps.
        restarts: Random starts of an attack that restarts; on a stochastic model one, since
            each search has a random and a warm start already.
        eot_samples: Draws behind a gradient of a stochastic model.
        selection_draws: Draws on which the winner of a stochastic model's candidates is chosen.
        scoring_draws: Draws on which it is scored.
        linf: Budgets instead of the data set's.
        l2: Budgets instead of the data set's.
        settings: Options by attack, from ``--set``.
    """

    attacks: tuple[str, ...] = ("pgd-linf", "pgd-l2")
    steps: int = 20
    restarts: int = 2
    eot_samples: int = 4
    selection_draws: int = 10
    scoring_draws: int = 20
    linf: tuple[float, ...] = ()
    l2: tuple[float, ...] = ()
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = ("steps", "restarts", "eot_samples", "selection_draws", "scoring_draws")
        require_counts("robustness", **{name: getattr(self, name) for name in names})
        require_budgets("robustness", "linf", self.linf)
        require_budgets("robustness", "l2", self.l2)

    def tasks(self, plan: Plan) -> Sequence[Task]:
        """Return a task for each norm."""
        by_norm: dict[Norm, list[Attacked]] = {}
        for name in self.attacks:
            norm = Norm(ATTACKS.entry(name).facts["norm"])
            measure = Attacked(
                data=plan.data,
                attack=name,
                eps=self._budgets(norm, plan),
                options=self._options(name, plan.stochastic),
            )
            _try(measure)
            by_norm.setdefault(norm, []).append(measure)
        return [
            Robustness(norm, tuple(measures), plan.refine_steps)
            for norm, measures in by_norm.items()
        ]

    def _budgets(self, norm: Norm, plan: Plan) -> tuple[float, ...]:
        own = {Norm.LINF: self.linf, Norm.L2: self.l2}.get(norm, ())
        budgets = tuple(own or plan.dataset.eps.get(norm.value, ()))
        if not budgets:
            raise InputError(
                f"data set '{plan.dataset.name}' names no budgets for {norm}; give some with "
                f"'--set robustness.{norm}=[0.01, 0.02]'"
            )
        return tuple(sorted(float(e) for e in budgets))

    def _options(self, name: str, stochastic: bool) -> dict[str, Any]:
        """Return what the suite sets of the options that the attack has, and what the user sets."""
        known = set(inspect.signature(ATTACKS[name]).parameters)
        common = {"steps": self.steps, "restarts": 1 if stochastic else self.restarts}
        if stochastic:
            common["eot_samples"] = self.eot_samples
        options = {k: v for k, v in common.items() if k in known}
        if stochastic:
            options |= {k: getattr(self, k) for k in STOCHASTIC_OPTIONS}
        return {**options, **self.settings.get(name, {})}


def _try(measure: Attacked) -> None:
    """Build the attack once, so that an impossible option is told before anything is computed."""
    options = {k: v for k, v in measure.options.items() if k not in STOCHASTIC_OPTIONS}
    try:
        with contextlib.suppress(Unsupported, MissingExtra):  # its rows will say so
            plan_attack(measure.attack, measure.eps, options)
    except BenchError:
        raise
    except (TypeError, ValueError) as error:
        raise InputError(
            f"attack '{measure.attack}' cannot be made with {options}: {error}; "
            "'bench list attacks' shows its options"
        ) from error
