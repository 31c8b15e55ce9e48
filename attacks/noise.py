"""Random noise of the largest size allowed: what an attack must at least beat.

No paper's attack, but the control of every evaluation: where noise breaks as many images as an
attack does, the attack found no direction (Carlini et al. 2019, arXiv 1902.06705, section 4).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from bench.batching import in_parts
from bench.context import Context
from bench.errors import InputError
from bench.noise import Noise
from bench.registry import ATTACKS
from bench.target import Target, target
from bench.types import Norm

from .geometry import ball, per_image
from .losses import margins


@dataclass(frozen=True, kw_only=True)
class RandomNoise:
    """The worst of some random points on the surface of the ball; the norm is the subclass's.

    Attributes:
        eps: Budget, in units of the [0, 1] pixel range.
        draws: Points tried for each image.
        eot_samples: Draws of a stochastic model at each point; the mean margin counts.
    """

    eps: float
    draws: int = 100
    eot_samples: int = 4
    norm: Norm = field(init=False)

    def __post_init__(self) -> None:
        if not (self.eps >= 0 and self.draws >= 1 and self.eot_samples >= 1):
            raise InputError(
                f"{self}: expected eps of at least 0, draws and eot_samples of at least 1"
            )

    @torch.no_grad()
    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, context: Context) -> Tensor:
        """Return the point with the smallest margin for each image, ``(B, C, H, W)``."""
        if self.eps == 0:
            return x
        goal = target(model, "straight-through", self.eot_samples)

        def worst(rows: Tensor) -> Tensor:
            return self._worst(goal, x[rows], y[rows], context.noise.select(rows), context)

        size = context.micro_batch // goal.rows
        return torch.cat(in_parts(len(x), size, worst, x.device))

    def _worst(self, goal: Target, x: Tensor, y: Tensor, noise: Noise, context: Context) -> Tensor:
        room, best = ball(self.norm, x, self.eps), x
        lowest = torch.full_like(x[:, 0, 0, 0], torch.inf)
        for draw in range(self.draws):
            if context.out_of_time():
                break
            direction = noise.at("direction", draw).normal(*x.shape[1:])
            point = room.project(x + self.eps * room.steepest(direction, direction))
            margin = margins(goal(point, noise.at("draw", draw)), y).mean(dim=1)
            lower = margin < lowest
            best = torch.where(per_image(lower, x), point, best)
            lowest = torch.where(lower, margin, lowest)
            context.progress(1)
        return best


@ATTACKS.register("noise-linf", norm=Norm.LINF)
@dataclass(frozen=True, kw_only=True)
class LinfNoise(RandomNoise):
    """Random noise in L-infinity: every pixel moves by ``eps`` up or down."""

    norm: Norm = field(default=Norm.LINF, init=False)


@ATTACKS.register("noise-l2", norm=Norm.L2)
@dataclass(frozen=True, kw_only=True)
class L2Noise(RandomNoise):
    """Random noise in L2: normal noise at the Euclidean length ``eps``."""

    norm: Norm = field(default=Norm.L2, init=False)
