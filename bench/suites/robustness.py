"""Suite ``robustness``: accuracy under attack over the data set's budgets."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bench.attacking.inputs import minimises
from bench.attacking.sources import FIXED_NOISE, GRADIENTS
from bench.errors import BenchError, InputError, MissingExtra, Unsupported
from bench.registry import ATTACKS, SUITES
from bench.suites.budgets import require_order
from bench.suites.options import require_budgets, require_counts, require_nested
from bench.suites.paper_attack import paper_tasks
from bench.tasks.attacked import STOCHASTIC_OPTIONS, Attacked
from bench.tasks.base import Plan, Task
from bench.tasks.masking import IMAGES, Masking
from bench.tasks.robustness import Robustness
from bench.types import Norm

# A stochastic model costs hundreds of times as much, and every one of its gradients searches twice,
# from a cold start and from the static result: there PGD stands alone and restarts once.
USUAL = {
    False: ("pgd-linf", "apgd-t-linf", "pgd-l2", "apgd-t-l2"),
    True: ("pgd-linf", "pgd-l2"),
}
RESTARTS = {"pgd-linf": 2, "pgd-l2": 2}
# Where nobody asks for attacks by name, the second is a short one: on digits it comes within 0.6
# points of 9 targets, at a third of their cost.
SHORT = {"apgd-t-linf": {"steps": 10, "targets": 3}, "apgd-t-l2": {"steps": 10, "targets": 3}}
EOT_SAMPLES = 4


@SUITES.register("robustness", version=2)
@dataclass(frozen=True, kw_only=True)
class RobustnessSuite:
    """Accuracy under attack over the data set's budgets; the worst attack of an image counts.

    A stochastic model is attacked by every gradient that applies to it, and scored on draws that
    nothing before has seen. Under every row stand the checks for masked gradients.

    Options:
        attacks: Names of registered attacks; several of one norm give a per-image worst case. By
            default PGD, and on deterministic models a short targeted APGD.
        steps: Steps of every attack that takes steps, instead of its own number.
        restarts: Random starts of every attack that restarts; PGD has 2 by itself, and 1 on a
            stochastic model.
        loss: Of every attack that has a choice.
        gradients: Of a stochastic model; see `bench.target`. ``fixed-noise`` adds a diagnostic.
        by_gradient: Options of the attack for one gradient, e.g. ``{full = {steps = 10}}``.
        eot_samples: Draws behind a gradient of a stochastic model: 4, under the paper's protocol 1.
        selection_draws: Draws on which the winner of a stochastic model's candidates is chosen.
        scoring_draws: Draws on which it is scored.
        linf: Budgets instead of the data set's.
        l2: Budgets instead of the data set's.
        l0: Budgets instead of the data set's.
        minutes: How long the searches on one model may take, those of the checks among them; 0: as
            long as they take. What was not done by then is said in the row. Not counted are
            loading, and the draws of a stochastic model that choose and score what was found.
        checks: Whether to look for masked gradients.
        settings: Options by attack, from ``--set``.
    """

    attacks: tuple[str, ...] = ()
    steps: int | None = None
    restarts: int | None = None
    loss: str = ""
    gradients: tuple[str, ...] = GRADIENTS
    by_gradient: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    eot_samples: int | None = None
    selection_draws: int = 10
    scoring_draws: int = 20
    linf: tuple[float, ...] = ()
    l2: tuple[float, ...] = ()
    l0: tuple[float, ...] = ()
    minutes: float = 0.0
    checks: bool = True
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = ("steps", "restarts", "eot_samples", "selection_draws", "scoring_draws")
        given = {name: getattr(self, name) for name in names}
        require_counts("robustness", **{k: v for k, v in given.items() if v is not None})
        for norm in Norm:
            require_budgets("robustness", norm, getattr(self, norm.value))
        require_nested("robustness", "by_gradient", self.by_gradient, "full={steps=10}")
        unknown = sorted({*self.gradients, *self.by_gradient} - {*GRADIENTS, FIXED_NOISE})
        if unknown or not set(self.gradients) & set(GRADIENTS):
            raise InputError(
                f"'--set robustness.gradients={list(self.gradients)}': expected some of "
                f"{', '.join(GRADIENTS)}, and {FIXED_NOISE} beside one of them"
            )
        if not 0 <= self.minutes < math.inf:
            raise InputError(
                f"'--set robustness.minutes={self.minutes}': expected a number of minutes, or 0 "
                "for no limit"
            )

    def tasks(self, plan: Plan) -> Sequence[Task]:
        """Return a task for each norm."""
        if plan.protocol == "paper":
            return paper_tasks(plan, self)
        by_norm: dict[Norm, list[Attacked]] = {}
        for name in self._names(plan):
            norm = Norm(ATTACKS.entry(name).facts["norm"])
            measure = Attacked(
                data=plan.data,
                attack=name,
                eps=self._budgets(name, norm, plan),
                options=self._options(name, norm, plan.stochastic),
                seconds_per_image=self._seconds(plan),
            )
            _try(measure)
            by_norm.setdefault(norm, []).append(measure)
        return [
            Robustness(norm, tuple(measures), plan.refine_steps, self._checks(norm, measures, plan))
            for norm, measures in by_norm.items()
        ]

    def _names(self, plan: Plan) -> tuple[str, ...]:
        """Return the attacks."""
        return self.attacks or USUAL[plan.stochastic]

    def _budgets(self, name: str, norm: Norm, plan: Plan) -> tuple[float, ...]:
        """Return the budgets, increasing; none for an attack that needs none where none are named.

        Raises:
            InputError: The attack needs one.
        """
        budgets = getattr(self, norm.value) or plan.dataset.eps.get(norm.value, ())
        if not budgets and not minimises(ATTACKS[name]):
            raise InputError(
                f"data set '{plan.dataset.name}' names no budgets for {norm}; give some with "
                f"'--set robustness.{norm}=[0.01, 0.02]'"
            )
        return tuple(sorted(float(e) for e in budgets))

    def _options(self, name: str, norm: Norm, stochastic: bool) -> dict[str, Any]:
        """Return what the suite sets of the options that the attack has, and what the user sets."""
        restarts = self.restarts or (None if stochastic else RESTARTS.get(name))
        wanted = {"steps": self.steps, "restarts": restarts, "loss": self.loss or None}
        if stochastic:
            wanted["eot_samples"] = self.eot_samples or EOT_SAMPLES
        known = ATTACKS.entry(name).options
        options: dict[str, Any] = {} if self.attacks else {**SHORT.get(name, {})}
        options |= {k: v for k, v in wanted.items() if k in known and v is not None}
        if stochastic:
            options |= {k: getattr(self, k) for k in STOCHASTIC_OPTIONS if getattr(self, k)}
        options |= self.settings.get(name, {})
        require_order("robustness", norm, getattr(self, norm.value), options)
        return options

    def _seconds(self, plan: Plan) -> float | None:
        """Return each attack's share of the time for one image.

        The checks have as much for each of their images as all attacks of their norm.
        """
        images = min(plan.data.limit or len(plan.dataset), len(plan.dataset))
        times = images + min(IMAGES, images) * self.checks
        return self.minutes * 60 / (times * len(self._names(plan))) or None

    def _checks(self, norm: Norm, measures: Sequence[Attacked], plan: Plan) -> Masking | None:
        """Return what the checks need, on the first images."""
        if not self.checks:
            return None
        few = min(IMAGES, plan.data.limit or IMAGES)
        return Masking(
            data=replace(plan.data, limit=few),
            norm=norm,
            eps=measures[0].eps,
            queries=100 if plan.stochastic else 300,  # of five draws each
            eot_samples=self.eot_samples or EOT_SAMPLES,
            seconds_per_image=len(measures) * (self._seconds(plan) or 0) or None,
        )


def _try(measure: Attacked) -> None:
    """Build the attack once, so that an impossible option is told before anything is computed."""
    try:
        with contextlib.suppress(Unsupported, MissingExtra):  # its rows will say so
            measure.plan  # noqa: B018
    except BenchError:
        raise
    except (TypeError, ValueError) as error:
        raise InputError(
            f"attack '{measure.attack}' cannot be made with {dict(measure.options)}: {error}; "
            "'bench list attacks' shows its options"
        ) from error
