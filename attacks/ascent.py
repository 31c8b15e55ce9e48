"""The loop of Auto-PGD: a step size that halves by itself, and restarts from the best point.

Croce and Hein (2020), arXiv 2003.01690, algorithm 1. All state is per image, so that an image's
walk does not depend on which others are in the batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bench.noise import Noise
from bench.target import Target

from .descent import Best
from .geometry import Ball, per_image
from .survivors import Survivors, places

_MOMENTUM = 0.75  # alpha of the paper: share of the gradient step in a move
_RISING = 0.75  # rho of the paper: a step size is kept if this share of its steps raised the loss


def checkpoints(steps: int) -> tuple[int, ...]:
    """Return the steps at which step sizes are judged: section 3, w_j = ceil(p_j * steps).

    p_0 = 0, p_1 = 0.22 and p_(j+1) = p_j + max(p_j - p_(j-1) - 0.03, 0.06); here in hundredths, so
    that nothing is rounded.
    """
    before, now, found = 0, 22, []
    while now < 100:
        found.append(-(-now * steps // 100))
        before, now = now, now + max(now - before - 3, 6)
    return tuple(w for w in dict.fromkeys(found) if w < steps)


@dataclass
class _State:
    """What the walk knows of every image; each field has a row for each.

    Attributes:
        rows: Places of the images in the whole batch.
        y: True classes.
        aim: Classes that a targeted loss wants.
        fallback: Directions where there is no gradient.
        size: Step sizes.
        point: Where the walk is.
        before: Where it was a step earlier.
        gradient: Of the loss at ``point``.
        value: The loss at ``point``.
        top: The point of the highest loss so far.
        top_gradient: Of the loss at ``top``.
        top_value: The loss at ``top``.
        old_top: ``top_value`` at the last checkpoint.
        rises: Steps since the last checkpoint that raised the loss.
        halved: Whether the step size was halved at the last checkpoint.
    """

    rows: Tensor
    y: Tensor
    aim: Tensor
    fallback: Tensor
    size: Tensor
    point: Tensor
    before: Tensor
    gradient: Tensor
    value: Tensor
    top: Tensor
    top_gradient: Tensor
    top_value: Tensor
    old_top: Tensor
    rises: Tensor
    halved: Tensor

    @classmethod
    def at(
        cls, rows: Tensor, start: Tensor, y: Tensor, aim: Tensor, fallback: Tensor, size: float
    ) -> _State:
        """Return the state before the first pass."""
        low = torch.full((len(start),), -torch.inf, device=start.device)
        none = torch.zeros_like(start)
        count = torch.zeros_like(y)
        return cls(
            rows=rows,
            y=y,
            aim=aim,
            fallback=fallback,
            size=torch.full_like(low, size),
            point=start,
            before=start,
            gradient=none,
            value=-low,  # the start is no rise
            top=start,
            top_gradient=none,
            top_value=low,
            old_top=low,
            rises=count,
            halved=count.bool(),
        )

    def select(self, keep: Tensor) -> _State:
        """Return the state of some images."""
        fields = {f.name: getattr(self, f.name)[keep] for f in dataclasses.fields(self)}
        return type(self)(**fields)

    def take(self, value: Tensor, gradient: Tensor) -> None:
        """Take up loss and gradient at the point."""
        self.rises = self.rises + (value > self.value)
        self.value, self.gradient = value, gradient
        better = value > self.top_value
        wide = per_image(better, gradient)
        self.top = torch.where(wide, self.point, self.top)
        self.top_gradient = torch.where(wide, gradient, self.top_gradient)
        self.top_value = torch.where(better, value, self.top_value)

    def judge(self, taken: int, back: bool) -> None:
        """Halve the step sizes that do no good, and go back to the best point (lines 12 to 17).

        Condition 1: fewer than a share of the ``taken`` steps since the last checkpoint raised the
        loss. Condition 2: the size was kept at the last checkpoint, and the best loss with it has
        not risen since. Without ``back`` the walk goes on from where it is.
        """
        stuck = ~self.halved & (self.top_value <= self.old_top)
        self.halved = (self.rises < _RISING * taken) | stuck
        self.size = torch.where(self.halved, self.size / 2, self.size)
        self.old_top, self.rises = self.top_value, torch.zeros_like(self.rises)
        if not back:
            return
        wide = per_image(self.halved, self.point)
        self.point = torch.where(wide, self.top, self.point)
        self.gradient = torch.where(wide, self.top_gradient, self.gradient)
        self.value = torch.where(self.halved, self.top_value, self.value)

    def move(self, room: Ball, first: bool) -> None:
        """Take a step with momentum (lines 3 and 7 of the algorithm)."""
        uphill = room.steepest(self.gradient, self.fallback)
        there = room.project(torch.addcmul(self.point, uphill, per_image(self.size, uphill)))
        if not first:
            # x + a (z - x) + (1 - a) (x - x_before), sorted by point
            there.mul_(_MOMENTUM).add_(self.point, alpha=2 - 2 * _MOMENTUM)
            there = room.project(there.sub_(self.before, alpha=1 - _MOMENTUM))
        self.point, self.before = there, self.point


@dataclass(frozen=True)
class Ascent:
    """How one run from one starting point goes.

    On a stochastic model the highest loss of a walk is the luckiest draw as much as the best point.
    There the walk never goes back to it, and its last point is what it found: on a linear model
    with noise in the weights that reaches 0.95 of the optimum where the published form reaches
    0.82 (`docs/attacks.md`).

    Attributes:
        goal: What is attacked.
        loss: (logits, y, aim) to ``(B,)``, to be raised.
        steps: How many steps.
        early_stop: Whether a broken image leaves the batch.
        progress: Called with 1 after each step.
        out_of_time: Asked after each step; when true the run ends.
    """

    goal: Target
    loss: Callable[[Tensor, Tensor, Tensor], Tensor]
    steps: int
    early_stop: bool
    progress: Callable[[int], None]
    out_of_time: Callable[[], bool]

    def run(
        self,
        best: Best,
        rows: Tensor,
        start: Tensor,
        y: Tensor,
        aim: Tensor,
        room: Ball,
        eps: float,
        noise: Noise,
    ) -> None:
        """Walk uphill from ``start`` and note in ``best`` what is found.

        ``rows`` are the places in ``best`` of the images; the other tensors, the ball and the
        noise have one row for each. The first step is twice ``eps`` long.
        """
        fallback = noise.at("flat").normal(*start.shape[1:])
        state = _State.at(rows, start, y, aim, fallback, 2 * eps)
        marks, mark, survivors = checkpoints(self.steps), 0, Survivors()
        for step in range(self.steps + 1):
            point = state.point.detach().requires_grad_()
            logits = self.goal(point, noise.at("step", step))
            self.progress(1)
            last = step == self.steps or self.out_of_time()
            self._note(best, state, logits, last)
            if last:
                return
            gone = survivors.after(best.broken[state.rows]) if self.early_stop else None
            if gone is not None and gone.all():
                return
            value = self.loss(logits, state.y, state.aim)
            state.take(torch.nan_to_num(value.detach(), nan=-torch.inf), _gradient(value, point))
            if step == 0:
                state.old_top = state.top_value
            elif step in marks:
                state.judge(step - mark, back=not self.goal.stochastic)
                mark = step
            if gone is not None:
                keep = places(~gone, rows.device)
                state, room, noise = state.select(keep), room.select(keep), noise.select(keep)
            state.move(room, first=step == 0)

    def _note(self, best: Best, state: _State, logits: Tensor, last: bool) -> None:
        """Take the points up into ``best``, of a stochastic model only the last ones."""
        if last or not self.goal.stochastic:
            best.see(state.rows, state.point, logits, state.y, self.early_stop)
        else:
            best.passes[state.rows] += self.goal.samples


def _gradient(value: Tensor, point: Tensor) -> Tensor:
    """Return the gradient of the losses ``(B,)`` in their points, zero where it is not a number."""
    if not value.requires_grad:  # constant logits
        return torch.zeros_like(point)
    (gradient,) = torch.autograd.grad(value.sum(), point, allow_unused=True, materialize_grads=True)
    return torch.nan_to_num(gradient, nan=0.0, posinf=0.0, neginf=0.0)
