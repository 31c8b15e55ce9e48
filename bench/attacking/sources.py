"""Where candidates for a stochastic model come from: one attack by every gradient that applies.

Each gradient is tried from a cold start and from what the attack on the static network found;
attacks that take no gradient ask the draws themselves.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import torch
from torch import Tensor, nn

from bench.attacking.inputs import Plan
from bench.attacking.sweeping import Sweep
from bench.context import Context
from bench.errors import InputError, Unsupported
from bench.refinement import KeyedForward, unrefined
from bench.target import Gradient, not_applicable

GRADIENTS = get_args(Gradient)
FROM_STATIC = " from static"
DRAWS = "draws"
FIXED_NOISE = "fixed-noise"
SOURCES = (
    "clean",
    "static",
    "straight-through",
    "straight-through from static",
    "surrogate",
    "surrogate from static",
    "full",
    "full from static",
    DRAWS,
)

Settings = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Source:
    """One search.

    Attributes:
        name: What it is, one of `SOURCES` where it counts.
        plan: The attack and its budgets.
        model: What is attacked.
        warm: Whether it starts where the attack on the static network ended.
    """

    name: str
    plan: Plan
    model: nn.Module
    warm: bool = False


def sources_of(
    task: Plan, model: nn.Module, gradients: Sequence[str], by_gradient: Settings
) -> tuple[list[Source], dict[str, str]]:
    """Return the searches that are possible, and for each gradient that is not the reason.

    Raises:
        InputError: ``by_gradient`` names an option that the attack has not.
        Unsupported: None of the gradients can attack this model.
    """
    found: dict[str, Source] = {}
    skipped: dict[str, str] = {}
    for kind in (k for k in GRADIENTS if k in gradients):
        options = _options(task, kind, by_gradient)
        reason = not_applicable(model, kind)
        if kind == "static" and not reason:
            # A point that only just breaks the static network transfers badly: search to the end.
            static = task.varied(**{"early_stop": False, **options, "gradient": kind})
            found[kind] = Source(kind, static, unrefined(model))
        elif kind != "static" and not task.has("gradient"):
            found[DRAWS] = Source(DRAWS, task, model)
        elif reason:
            skipped[kind] = reason
        else:
            search = task.varied(**{**options, "gradient": kind})
            found[kind] = Source(kind, search, model)
            if "static" in found and task.takes_starts:
                found[kind + FROM_STATIC] = Source(kind + FROM_STATIC, search, model, warm=True)
    if not found:
        raise Unsupported(f"attack '{task.name}' cannot be run: {'; '.join(skipped.values())}")
    return list(found.values()), skipped


def _options(task: Plan, kind: str, by_gradient: Settings) -> Mapping[str, Any]:
    """Return the options that one gradient has for itself."""
    options = by_gradient.get(kind, {})
    unknown = sorted(name for name in options if not task.has(name))
    if unknown:
        raise InputError(
            f"by_gradient gives '{kind}' the options {', '.join(unknown)}, which attack "
            f"'{task.name}' has not; 'bench list attacks' shows what it has"
        )
    return options


def _one(plan: Plan, i: int) -> Plan:
    """Return the plan of one budget."""
    attack = plan.attacks[i]
    whole = None if plan.whole is None else attack
    return replace(plan, eps=(plan.eps[i],), order=(0,), attacks=(attack,), whole=whole)


def _asked(source: Source, context: Context) -> nn.Module:
    """Return the model for the attack; one that knows of no noise may just call it."""
    if source.name != DRAWS:
        return source.model
    return KeyedForward(source.model, context.noise.at("forward"))


class Searches:
    """The candidates of all sources, budget by budget, and what they cost.

    Args:
        sources: What to search; ``static`` before those that start from it.
        x: Clean images.
        y: True classes.
        context: Its noise has one row an image.

    Attributes:
        passes: By source ``(B,)`` int64: evaluations of what is attacked; a draw with all its
            chains is one.
        seconds: By source.
        refused: By source, why its attack could not be run; if none could, that is an error.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        x: Tensor,
        y: Tensor,
        context: Context,
    ) -> None:
        self._sources, self._x, self._y, self._context = sources, x, y, context
        self._nearest: dict[str, Sweep] = {}
        self.passes = {s.name: torch.zeros_like(y) for s in sources}
        self.seconds = dict.fromkeys(self.passes, 0.0)
        self.refused: dict[str, str] = {}

    def at(
        self, i: int, rows: Tensor, starts: Tensor | None = None
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield name and candidates of each source at budget ``i`` for the images at ``rows``.

        When time is up, what has not begun is left out.

        Args:
            i: Number of the budget.
            rows: Which images.
            starts: Where cold searches start, instead of where the attack likes, one a row.

        Raises:
            Unsupported: No source could be searched.
        """
        static: Tensor | None = None
        for source in self._sources:
            if self._context.out_of_time():
                return
            if source.name in self.refused:
                continue
            began = time.perf_counter()
            try:
                candidates = self._candidates(source, i, rows, static if source.warm else starts)
            except Unsupported as error:
                self.refused[source.name] = str(error)
                if len(self.refused) == len(self._sources):
                    raise
                continue
            self.seconds[source.name] += time.perf_counter() - began
            if source.name == "static":
                static = candidates
            yield source.name, candidates

    def _candidates(self, source: Source, i: int, rows: Tensor, starts: Tensor | None) -> Tensor:
        """Search at one budget, or look up what was found for all."""
        if source.plan.nearest:
            return self._whole(source, starts).at(i, rows)
        return self._budget(source, i, rows, starts)

    def _budget(self, source: Source, i: int, rows: Tensor, starts: Tensor | None) -> Tensor:
        """Search at one budget."""
        local = self._local(source, rows)
        near = None if starts is None else starts[None]
        x, y = self._x[rows], self._y[rows]
        model = _asked(source, local)
        sweep = Sweep(_one(source.plan, i), model, x, y, local, near)
        candidates = sweep.at(0, torch.arange(len(rows), device=rows.device))
        self.passes[source.name][rows] += sweep.passes
        return candidates

    def _whole(self, source: Source, starts: Tensor | None) -> Sweep:
        """Look for the nearest images: once, at the first budget, where all rows are asked for."""
        if source.name not in self._nearest:
            every = torch.arange(len(self._x), device=self._x.device)
            if source.warm:
                last = len(source.plan.eps) - 1
                starts = self._nearest["static"].at(last, every)
            many = len(source.plan.eps)
            near = None if starts is None else starts.expand(many, *starts.shape)
            local = self._local(source, every)
            model = _asked(source, local)
            sweep = Sweep(source.plan, model, self._x, self._y, local, near)
            self._nearest[source.name] = sweep
            self.passes[source.name] += sweep.passes
        return self._nearest[source.name]

    def _local(self, source: Source, rows: Tensor) -> Context:
        """Return the context of some images, with draws of this source's own."""
        noise = self._context.noise.select(rows).at("search", source.name)
        return dataclasses.replace(self._context, noise=noise)
