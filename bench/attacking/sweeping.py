"""Candidates of one attack for one micro-batch, budget by budget, and what they cost."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from bench.attacking.inputs import Plan
from bench.attacking.verifying import check_candidates, distances, per_image, settled
from bench.context import Context


class Sweep:
    """The candidates of a plan for the images ``x``.

    An attack with a ``sweep`` does all budgets as one piece of work, and one that looks for the
    nearest adversarial image is called once; any other is called at each budget, for the images
    that are asked for.

    Args:
        plan: The attack and its budgets.
        model: Returns logits.
        x: Clean images.
        y: True classes.
        context: Its noise has one row an image.
        starts: Where to start at each budget, ``(n_eps, B, C, H, W)``.

    Attributes:
        passes: ``(B,)`` int64; forward passes spent on each image so far.
    """

    def __init__(
        self,
        plan: Plan,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        context: Context,
        starts: Tensor | None = None,
    ) -> None:
        self._plan, self._model, self._x, self._y, self._context = plan, model, x, y, context
        self._starts = starts
        self.passes = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        self._all: Any = None
        every = torch.arange(len(x), device=x.device)
        if plan.whole is not None:
            whole = plan.whole
            more = {} if starts is None else {"starts": starts}
            self._all = self._charge(
                # A clone: what an attack does to its input in place must not move the clean image.
                lambda c: whole.sweep(model, x.clone(), y, c, plan.eps, **more),
                every,
            )
        elif plan.nearest:
            self._all = self._within(self._call(0, every))

    def at(self, i: int, rows: Tensor) -> Tensor:
        """Return the candidates at budget ``i`` for the images at ``rows``, checked."""
        x, eps = self._x[rows], self._plan.eps[i]
        if eps == 0:
            return x.clone()
        found: Any = self._call(i, rows) if self._all is None else self._all[i][rows]
        return check_candidates(self._plan.name, x, found, self._plan.norm, eps)

    def _call(self, i: int, rows: Tensor) -> Any:
        """Return what the attack of budget ``i`` returns for the images at ``rows``."""
        attack: Any = self._plan.attacks[i]
        x, y = self._x[rows].clone(), self._y[rows]
        more = {} if self._starts is None else {"starts": self._starts[i][rows]}
        return self._charge(lambda c: attack(self._model, x, y, c, **more), rows)

    def _within(self, found: Any) -> Tensor:
        """Return the nearest adversarial images where the budget reaches them, else clean ones."""
        found = check_candidates(self._plan.name, self._x, found, self._plan.norm, math.inf)
        found = settled(self._model, self._x, found, self._y, self._context.noise.image_ids)
        distance = distances(self._x, found)[self._plan.norm].to(found.device)
        near = [per_image(distance <= eps, found) for eps in self._plan.eps]
        return torch.stack([torch.where(reached, found, self._x) for reached in near])

    def _charge(self, work: Callable[[Context], Any], rows: Tensor) -> Any:
        """Return what ``work`` returns, and add to the passes of ``rows`` what it spent."""
        reports: list[Tensor] = []
        images = 0

        def count(_: nn.Module, inputs: tuple[Any, ...]) -> None:
            nonlocal images
            images += len(inputs[0]) if inputs else 0

        hook = self._model.register_forward_pre_hook(count)
        try:
            noise = self._context.noise.select(rows)
            result = work(replace(self._context, noise=noise, spent=reports.append))
        finally:
            hook.remove()
        if reports:
            self.passes[rows] += torch.stack(reports).sum(dim=0)
        else:
            self.passes[rows] += -(-images // len(rows))
        return result
