"""A search to the end at every budget, from every starting point."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bench.noise import Noise
from bench.types import Norm

from .descent import Best, Walk
from .geometry import ball


@dataclass(frozen=True)
class Search:
    """What looks for candidates at several budgets, for the images of one batch.

    Attributes:
        walk: How runs go.
        norm: Of the budgets.
        eps: The budgets, increasing and positive.
        sizes: Length of a step at each.
        restarts: Runs from independent starting points.
        random_start: Whether the first starts at random, too.
    """

    walk: Walk
    norm: Norm
    eps: tuple[float, ...]
    sizes: tuple[float, ...]
    restarts: int
    random_start: bool

    def __call__(
        self, x: Tensor, y: Tensor, noise: Noise, starts: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return points at each budget, ``(n_eps, B, C, H, W)``, and passes spent, ``(B,)``.

        Args:
            x: Clean images, ``(B, C, H, W)``.
            y: True classes, ``(B,)``.
            noise: One row an image.
            starts: Where the first run starts at each budget, ``(n_eps, B, C, H, W)``.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class FullSearch(Search):
    """The point with the smallest margin at every budget; `drawn` is for stochastic models.

    The best point at one budget lies in every larger ball and is kept until a better one is found.
    """

    def __call__(
        self, x: Tensor, y: Tensor, noise: Noise, starts: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return points at each budget, and passes spent."""
        best, found = Best.of(x), []
        for i in range(len(self.eps)):
            for r in range(self.restarts):
                if r > 0 and self.walk.out_of_time():
                    break
                near = None if starts is None or r > 0 else starts[i]
                draws, at_random = noise.at("restart", r), r > 0 or self.random_start
                self._run(best, x, y, draws, i, near, at_random)
            point = best.point.clone()
            if self.norm is Norm.L2:  # within a few roundings of the ball so far
                point = ball(self.norm, x, self.eps[i]).project(point)
            found.append(point)
        return torch.stack(found), best.passes

    def _run(
        self,
        best: Best,
        x: Tensor,
        y: Tensor,
        noise: Noise,
        i: int,
        start: Tensor | None,
        at_random: bool,  # a second run from the same point finds the same
    ) -> None:
        """Run once at budget ``i``."""
        rows = torch.arange(len(x), device=x.device)
        if self.walk.early_stop:
            rows = rows[~best.broken]
        if len(rows) == 0:
            return
        point, draws = x[rows], noise.select(rows)
        room = ball(self.norm, point, self.eps[i])
        step = point.new_full((len(rows),), self.sizes[i])
        if start is not None:
            point = room.project(start[rows])
        elif at_random:
            point = room.sample(draws.at("start"))
        self.walk.run(best, rows, point, y[rows], room, step, draws)
