"""A search on a stochastic model: what a run comes to is chosen on draws of its own.

The smallest of many noisy margins belongs to the luckiest draws as much as to the best point; the
last point owes nothing to luck, but may have overshot. So the best point seen in a run and its last
one meet fresh draws, the same for all runs, and the one with the smallest mean margin is returned.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bench.noise import Noise
from bench.types import Norm

from .descent import Best, Group
from .full import Search
from .geometry import Ball, ball


@dataclass(frozen=True)
class DrawnSearch(Search):
    """The point of the smallest margin in fresh draws, at every budget for itself.

    The margin of a few draws is no reason to prefer a point of a smaller budget.
    """

    def __call__(
        self, x: Tensor, y: Tensor, noise: Noise, starts: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return points at each budget, and passes spent."""
        found, passes = [], torch.zeros_like(y)
        for i, eps in enumerate(self.eps):
            room, best = ball(self.norm, x, eps), Best.of(x)
            for r in range(self.restarts):
                if r > 0 and self.walk.out_of_time():
                    break
                draws, start = noise.at("restart", r), x
                if starts is not None and r == 0:
                    start = room.project(starts[i])
                elif self.random_start or r > 0:  # a second run from the same point finds the same
                    start = room.sample(draws.at("start"))
                run, choose = self._run, noise.at("choose")
                run(best, start, y, room, self.sizes[i], draws, choose)
            passes += best.passes
            # In L2 the best point is within a few roundings of the ball.
            found.append(room.project(best.point) if self.norm is Norm.L2 else best.point)
        return torch.stack(found), passes

    def _run(
        self,
        best: Best,
        start: Tensor,
        y: Tensor,
        room: Ball,
        size: float,
        noise: Noise,
        choose: Noise,
    ) -> None:
        """Run from one start, and note in ``best`` which of its two points is better, if any."""
        walk, rows, seen = self.walk, torch.arange(len(y), device=y.device), Best.of(start)
        step = start.new_full((len(y),), size)
        group = Group(rows, start.clone(), y, room, step, noise)
        for k in range(walk.steps):
            looked = walk.look(seen, rows, group.point, y, noise.at("step", k), k)
            group.move(looked.gradient(), walk.momentum)
            if walk.out_of_time():
                break
        best.passes += seen.passes
        for point in (seen.point, group.point):
            with torch.no_grad():
                logits = walk.goal(point, choose)
            best.see(rows, point, logits, y, freeze=False, passes=walk.goal.samples)
