"""The ball and the box an attack may move in: projection, random point, steepest direction.

Everything is float32 and on the device of the images; the radius is one number, or one an image.
Rounding is always towards the clean image, so that a returned image is within ``eps * (1 + 1e-6)``
when it is measured in float64: x + eps rounds to the nearest float32, which near 1 is off by up to
3e-8, or 8e-6 of a budget of 1/255.
"""

from __future__ import annotations

from typing import Any, Protocol

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
    over = (moved - centre).abs_() > allowed
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

    def climb(self, point: Tensor, gradient: Tensor, size: Tensor, step: Tensor) -> None:
        """Move the points in place by steps of length ``step`` ``(B,)`` up usable gradients.

        They stay in [0, 1] and, to within a few roundings, in the ball: `project` what is
        returned. ``size`` is the L2 norm of the gradients, ``(B,)``; see `usable`. The fast way
        of the inner loop: no memory is taken, and nothing is read twice.
        """
        ...

    def select(self, rows: Tensor) -> Ball:
        """Return the balls of some images."""
        ...

    def put(self, rows: Tensor, other: Any) -> None:
        """Exchange the balls of some images for others around the same centres."""
        ...


class LinfBall:
    """No pixel changes by more than ``eps``."""

    def __init__(self, centre: Tensor, eps: Tensor, low: Tensor, high: Tensor) -> None:
        self._centre, self._eps, self._low, self._high = centre, eps, low, high
        self._room = torch.empty_like(centre)

    @classmethod
    def around(cls, centre: Tensor, eps: Tensor) -> LinfBall:
        """Return the balls of radius ``eps`` ``(B, 1, 1, 1)``."""
        low = _towards(centre, (centre - eps).clamp_(min=0), eps)
        high = _towards(centre, (centre + eps).clamp_(max=1), eps)
        return cls(centre, eps, low, high)

    def project(self, point: Tensor) -> Tensor:
        """Return the points with every pixel cut off at the ball and at [0, 1]."""
        return torch.clamp(point, self._low, self._high)

    def sample(self, noise: Noise) -> Tensor:
        """Return points with every pixel uniform on [x - eps, x + eps], cut off at [0, 1]."""
        offset = noise.uniform(*self._centre.shape[1:]).mul_(2).sub_(1)
        return self.project(offset.mul_(self._eps).add_(self._centre))

    def steepest(self, gradient: Tensor, fallback: Tensor) -> Tensor:
        """Return the sign of the gradient."""
        zero = gradient.flatten(1).abs().amax(dim=1) == 0
        return torch.where(per_image(zero, gradient), fallback, gradient).sign()

    def climb(self, point: Tensor, gradient: Tensor, size: Tensor, step: Tensor) -> None:
        """Move by the sign of the gradient."""
        torch.sign(gradient, out=self._room)
        point.addcmul_(self._room, per_image(step, point))
        torch.clamp(point, self._low, self._high, out=point)

    def select(self, rows: Tensor) -> LinfBall:
        """Return the balls of some images."""
        return LinfBall(self._centre[rows], self._eps[rows], self._low[rows], self._high[rows])

    def put(self, rows: Tensor, other: LinfBall) -> None:
        """Exchange the balls of some images for others around the same centres."""
        self._eps[rows], self._low[rows], self._high[rows] = other._eps, other._low, other._high


class L2Ball:
    """The Euclidean length of the change, over all pixels and channels, is at most ``eps``."""

    def __init__(self, centre: Tensor, eps: Tensor) -> None:
        self._centre, self._eps = centre, eps
        self._room = torch.empty_like(centre)

    def _shrunk(self, offset: Tensor, norm: Tensor) -> Tensor:
        """Return offsets of that norm ``(B,)``, in place no longer than the radius."""
        # The float32 norm is right to some 3e-7; the margin keeps the result inside.
        allowed = self._eps * (1 - 5e-7)
        return offset.mul_((allowed / per_image(norm.clamp(min=_TINY), offset)).clamp_(max=1))

    def project(self, point: Tensor) -> Tensor:
        """Return the points pulled back along the ray to the clean image, cut off at [0, 1]."""
        offset = point - self._centre
        offset = self._shrunk(offset, l2(offset))
        moved = (self._centre + offset).clamp_(0, 1)
        return _towards(self._centre, moved, offset.abs_())

    def sample(self, noise: Noise) -> Tensor:
        """Return points uniform in the ball: a normal direction, a radius of u^(1/n)."""
        shape = self._centre.shape[1:]
        direction = noise.at("direction").normal(*shape)
        radius = noise.at("radius").uniform(1)[:, 0] ** (1 / shape.numel())
        length = per_image(radius / l2(direction), direction) * self._eps
        return self.project(direction.mul_(length).add_(self._centre))

    def steepest(self, gradient: Tensor, fallback: Tensor) -> Tensor:
        """Return the gradient at length 1."""
        zero = gradient.flatten(1).abs().amax(dim=1) == 0
        chosen = torch.where(per_image(zero, gradient), fallback, gradient)
        # Two divisions: the length of a subnormal gradient has no float32 reciprocal.
        scaled = chosen / per_image(chosen.flatten(1).abs().amax(dim=1).clamp(min=_TINY), chosen)
        return scaled / per_image(l2(scaled), scaled)

    def climb(self, point: Tensor, gradient: Tensor, size: Tensor, step: Tensor) -> None:
        """Move along the gradient."""
        torch.mul(gradient, per_image(step / size, point), out=self._room)
        self._room.add_(point).sub_(self._centre)
        self._shrunk(self._room, lengths(self._room))
        torch.add(self._room, self._centre, out=point).clamp_(0, 1)

    def select(self, rows: Tensor) -> L2Ball:
        """Return the balls of some images."""
        return L2Ball(self._centre[rows], self._eps[rows])

    def put(self, rows: Tensor, other: L2Ball) -> None:
        """Exchange the balls of some images for others around the same centres."""
        self._eps[rows] = other._eps


def lengths(x: Tensor) -> Tensor:
    """Return the L2 norm of every image ``(B, C, H, W)``, for entries of ordinary size."""
    norms: Tensor = torch.linalg.vector_norm(x, dim=(1, 2, 3))
    return norms


def slope(norm: Norm, gradient: Tensor) -> Tensor:
    """Return how fast a loss rises along its steepest unit step, ``(B,)``: the dual norm."""
    return gradient.abs().sum(dim=(1, 2, 3)) if norm is Norm.LINF else lengths(gradient)


def distance(norm: Norm, change: Tensor) -> Tensor:
    """Return the size of changes of images, ``(B,)``."""
    return change.abs().amax(dim=(1, 2, 3)) if norm is Norm.LINF else l2(change)


def ball(norm: Norm, centre: Tensor, eps: float | Tensor) -> Ball:
    """Return the balls of radius ``eps``, a number or ``(B,)``, around ``centre`` (B, C, H, W)."""
    radius = eps if isinstance(eps, Tensor) else centre.new_full((len(centre),), eps)
    wide = per_image(radius, centre)
    return LinfBall.around(centre, wide) if norm is Norm.LINF else L2Ball(centre, wide)
