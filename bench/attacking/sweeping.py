"""Candidates of one attack for one micro-batch, budget by budget, and what they cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from bench.attacking.inputs import Plan
from bench.attacking.verifying import check_candidates
from bench.context import Context


class Sweep:
    """The candidates of a plan for the images ``x``.

    An attack with a ``sweep`` does all budgets as one piece of work; any other is called at each
    budget, for the images that are asked for.

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
        self.passes = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        self._all: Any = None
        if plan.whole is not None:
            whole, every = plan.whole, torch.arange(len(x), device=x.device)
            more = {} if starts is None else {"starts": starts}
            self._all = self._charge(
                # A clone: what an attack does to its input in place must not move the clean image.
                lambda c: whole.sweep(model, x.clone(), y, c, plan.eps, **more),
                every,
            )

    def at(self, i: int, rows: Tensor) -> Tensor:
        """Return the candidates at budget ``i`` for the images at ``rows``, checked."""
        x, y, eps = self._x[rows], self._y[rows], self._plan.eps[i]
        if eps == 0:
            return x.clone()
        found: Any
        if self._plan.whole is not None:
            found = self._all[i][rows]
        else:
            attack = self._plan.attacks[i]
            found = self._charge(lambda c: attack(self._model, x.clone(), y, c), rows)
        return check_candidates(self._plan.name, x, found, self._plan.norm, eps)

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
