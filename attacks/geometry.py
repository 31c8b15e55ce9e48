"""The ball and the box an attack may move in: projection, random point, steepest direction.

Everything is float32 and on the device of the images. Rounding is always towards the clean image,
so that a returned image is within ``eps * (1 + 1e-6)`` when it is measured in float64: x + eps
rounds to the nearest float32, which near 1 is off by up to 3e-8, or 8e-6 of a budget of 1/255.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from bench.noise import Noise
from bench.types import Norm

_TINY = torch.finfo(torch.float32).tiny


def per_image(values: Tensor, like: Tensor) -> Tensor:
    """Return ``(B,)`` values in the shape that broadcasts over ``like``, ``(B, ...)``."""
    return values.view(-1, *[1] * (like.ndim - 1))


def l2(x: Tensor) -> Tensor:
    """Return the L2 norm of every image, ``(B,)``; neither over- nor underflows in float32."""
    flat = x.flatten(1)
    scale = flat.abs().amax(dim=1).clamp(min=_TINY)
    return (flat / scale[:, None]).square().sum(dim=1).sqrt() * scale


def _towards(centre: Tensor, moved: Tensor, allowed: Tensor | float) -> Tensor:
    """Return ``moved``, one float nearer to ``centre`` where rounding took it beyond."""
    over = (moved - centre).abs() > allowed
    return torch.where(over, torch.nextafter(moved, centre), moved)


class Ball(Protocol):
    """What an iterative attack needs to know of its threat model."""

    def project(self, point: Tensor) -> Tensor:
        """Return the points moved into the ball and into [0, 1]."""
        ...

    def sample(self, noise: Noise) -> Tensor:
        """Return a random point an image, uniform in the ball, cut off at [0, 1]."""
        ...

    def steepest(self, gradient: Tensor, fallback: Tensor) -> Tensor:
        """Return the unit step that raises the loss most; ``fallback`` where all is zero."""
        ...

    def select(self, rows: Tensor) -> Ball:
        """Return the balls of some images."""
        ...


class LinfBall:
    """No pixel changes by more than ``eps``."""

    def __init__(self, centre: Tensor, eps: float) -> None:
        self.centre, self.eps = centre, eps
        self._low = _towards(centre, (centre - eps).clamp(min=0), eps)
        self._high = _towards(centre, (centre + eps).clamp(max=1), eps)

    def project(self, point: Tensor) -> Tensor:
        """Return the points with every pixel cut off at the ball and at [0, 1]."""
        return torch.minimum(torch.maximum(point, self._low), self._high)

    def sample(self, noise: Noise) -> Tensor:
        """Return points with every pixel uniform on [x - eps, x + eps], cut off at [0, 1]."""
        offset = 2 * noise.uniform(*self.centre.shape[1:]) - 1
        return self.project(self.centre + self.eps * offset)

    def steepest(self, gradient: Tensor, fallback: Tensor) -> Tensor:
        """Return the sign of the gradient."""
        zero = gradient.flatten(1).abs().amax(dim=1) == 0
        return torch.where(per_image(zero, gradient), fallback, gradient).sign()

    def select(self, rows: Tensor) -> LinfBall:
        """Return the balls of some images."""
        return LinfBall(self.centre[rows], self.eps)


class L2Ball:
    """The Euclidean length of the change, over all pixels and channels, is at most ``eps``."""

    def __init__(self, centre: Tensor, eps: float) -> None:
        self.centre, self.eps = centre, eps

    def project(self, point: Tensor) -> Tensor:
        """Return the points pulled back along the ray to the clean image, cut off at [0, 1]."""
        offset = point - self.centre
        # The float32 norm is right to some 3e-7; the margin keeps the result inside.
        shrink = (self.eps * (1 - 5e-7) / l2(offset)).clamp(max=1)
        offset = offset * per_image(shrink, offset)
        moved = (self.centre + offset).clamp(0, 1)
        return _towards(self.centre, moved, offset.abs())

    def sample(self, noise: Noise) -> Tensor:
        """Return points uniform in the ball: a normal direction, a radius of u^(1/n)."""
        shape = self.centre.shape[1:]
        direction = noise.at("direction").normal(*shape)
        radius = noise.at("radius").uniform(1)[:, 0] ** (1 / shape.numel())
        length = self.eps * radius / l2(direction)
        return self.project(self.centre + direction * per_image(length, direction))

    def steepest(self, gradient: Tensor, fallback: Tensor) -> Tensor:
        """Return the gradient at length 1."""
        zero = gradient.flatten(1).abs().amax(dim=1) == 0
        chosen = torch.where(per_image(zero, gradient), fallback, gradient)
        # Two divisions: the length of a subnormal gradient has no float32 reciprocal.
        scaled = chosen / per_image(chosen.flatten(1).abs().amax(dim=1).clamp(min=_TINY), chosen)
        return scaled / per_image(l2(scaled), scaled)

    def select(self, rows: Tensor) -> L2Ball:
        """Return the balls of some images."""
        return L2Ball(self.centre[rows], self.eps)


def ball(norm: Norm, centre: Tensor, eps: float) -> Ball:
    """Return the ball of radius ``eps`` around every image of ``centre``, ``(B, C, H, W)``."""
    return LinfBall(centre, eps) if norm is Norm.LINF else L2Ball(centre, eps)
