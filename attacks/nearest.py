"""The nearest adversarial image: projected gradient descent without a budget.

Runs of PGD in balls of growing radius find a point that is wrong. It is then brought closer: by
going back towards the clean image, by walking to the nearest point of the boundary's tangent (the
step of Croce and Hein's FAB, 2020, section 2.2), and by a run inside the ball that reaches just as
far as the point. Every image has a radius of its own, and leaves when it comes no closer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bench.noise import Noise
from bench.types import Norm

from .crossing import crossing
from .descent import Best, Walk
from .geometry import ball, distance, per_image
from .losses import margins

_CLASSES = 9  # how many wrong classes to look at, the likeliest first
_OVER = 1.02  # a first point lies a little beyond where the slopes say that the image breaks
_ROUNDS = 8  # of bringing closer
# How far beyond the boundary's tangent the steps of a round go, relative to the way there.
_BEYOND = (2e-2, 1e-3, 1e-4, 1e-5)
_BACK = 8  # passes on the way back to the clean image
_GAIN = 1e-4  # a round that brings less, relative to the distance, is the last
_CLOSER = 1e-2  # a restart has to be closer by this part


@dataclass
class Near:
    """The nearest adversarial points so far.

    Attributes:
        x: Clean images, ``(B, C, H, W)``.
        y: True classes, ``(B,)``.
        point: The nearest points; the clean image where there is none.
        distance: ``(B,)``; infinite where there is none.
        clear: ``(B,)``; margins at the clean images.
        passes: ``(B,)``; forward passes spent.
    """

    x: Tensor
    y: Tensor
    point: Tensor
    distance: Tensor
    clear: Tensor
    passes: Tensor

    @classmethod
    def of(cls, x: Tensor, y: Tensor) -> Near:
        """Return the state before the first pass."""
        inf = torch.full_like(y, torch.inf, dtype=x.dtype)
        return cls(x, y, x.clone(), inf, inf.clone(), torch.zeros_like(y))

    def take(self, norm: Norm, rows: Tensor, point: Tensor, broken: Tensor) -> Tensor:
        """Take up the points of some images where they are nearer; return where, ``(b,)``."""
        away = distance(norm, point - self.x[rows])
        better = broken & (away < self.distance[rows])
        self.distance[rows] = torch.where(better, away, self.distance[rows])
        self.point[rows] = torch.where(per_image(better, point), point, self.point[rows])
        return better


@dataclass(frozen=True)
class NearestSearch:
    """The search for images of one batch.

    Attributes:
        walk: How a run goes.
        norm: Of the distance.
        size: Length of a step; a quarter of the radius where ``None``.
        restarts: Searches; those after the first start at random, a little closer than what is
            known, and go on only where that breaks an image.
    """

    walk: Walk
    norm: Norm
    size: float | None
    restarts: int

    def __call__(
        self, x: Tensor, y: Tensor, noise: Noise, starts: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the nearest points, ``(B, C, H, W)``, and the passes spent, ``(B,)``.

        ``starts`` are points to begin with, adversarial or not.
        """
        near = Near.of(x, y)
        first = self._scout(near, noise.at("scout"))
        if starts is not None:
            every = torch.arange(len(x), device=x.device)
            near.take(self.norm, every, starts, self._margin(near, every, starts, noise) < 0)
        self._hunt(near, first, noise.at("hunt"))
        found = near.distance.isfinite() & (near.distance > 0)
        self._close_in(near, found.nonzero()[:, 0], noise.at("close"))
        for r in range(1, self.restarts):
            if self.walk.out_of_time():
                break
            self._again(near, noise.at("restart", r))
        return near.point, near.passes

    def _scout(self, near: Near, noise: Noise) -> Tensor:
        """Return the points where, by the slopes at the clean images, a class is reached first."""
        x, y = near.x, near.y
        leaf = x.detach().requires_grad_()
        logits = self.walk.goal(leaf, noise).mean(dim=1)
        self._spend(near, torch.arange(len(x), device=x.device))
        near.clear = margins(logits.detach()[:, None], y)[:, 0]
        near.distance[near.clear < 0] = 0.0
        nearest, first = torch.full_like(near.distance, torch.inf), x.clone()
        others = logits.detach().scatter(1, y[:, None], -torch.inf)
        for rival in others.topk(min(_CLASSES, logits.shape[1] - 1), dim=1).indices.T:
            pair = logits.gather(1, torch.stack([y, rival], dim=1))
            lead = pair[:, 0] - pair[:, 1]
            point = crossing(self.norm, x, _gradient(-lead, leaf), lead.detach().clamp(min=0))
            away = distance(self.norm, point - x)
            sooner = (away > 0) & (away < nearest)
            nearest = torch.where(sooner, away, nearest)
            first = torch.where(per_image(sooner, x), point, first)
        return first

    def _hunt(self, near: Near, first: Tensor, noise: Noise) -> None:
        """Run in ever larger balls until an image is wrong."""
        far = 1.0 if self.norm is Norm.LINF else math.sqrt(first[0].numel())
        radius = _OVER * distance(self.norm, first - near.x)
        radius = torch.where(radius > 0, radius, far / 16).clamp(far * 2.0**-16, far)
        start, tried = near.x + _OVER * (first - near.x), 0
        rows = near.distance.isinf().nonzero()[:, 0]
        while len(rows) and not self.walk.out_of_time():
            found = self._run(near, rows, start[rows], radius[rows], noise.at("try", tried), True)
            start[rows], tried = found.point, tried + 1
            rows = rows[near.distance[rows].isinf() & (radius[rows] < far)]
            radius = (2 * radius).clamp(max=far)

    def _close_in(self, near: Near, rows: Tensor, noise: Noise) -> None:
        """Bring points closer as long as that gains something."""
        for k in range(_ROUNDS):
            if len(rows) == 0 or self.walk.out_of_time():
                return
            before, draws = near.distance[rows], noise.at("round", k)
            self._retreat(near, rows, near.point[rows], draws.at("first"))
            self._tangents(near, rows, draws.at("tangent"))
            inside = self._run(
                near, rows, near.point[rows], near.distance[rows], draws.at("run"), False, 0.5**k
            )
            self._retreat(near, rows, inside.point, draws.at("second"))
            rows = rows[near.distance[rows] < before * (1 - _GAIN)]

    def _again(self, near: Near, noise: Noise) -> None:
        """Start anew at random, a little closer than what is known."""
        far = 1.0 if self.norm is Norm.LINF else math.sqrt(near.x[0].numel())
        rows = (near.distance > 0).nonzero()[:, 0]
        if len(rows) == 0:
            return
        before = near.distance[rows]
        radius = (before * (1 - _CLOSER)).clamp(max=far)
        room = ball(self.norm, near.x[rows], radius)
        start = room.sample(noise.select(rows).at("start"))
        self._run(near, rows, start, radius, noise, True)
        self._close_in(near, rows[near.distance[rows] < before], noise.at("close"))

    def _run(
        self,
        near: Near,
        rows: Tensor,
        start: Tensor,
        radius: Tensor,
        noise: Noise,
        early_stop: bool,
        share: float = 1.0,
    ) -> Best:
        """Run inside balls, with a share of the usual step, and return the best points."""
        x, draws = near.x[rows], noise.select(rows)
        room, found = ball(self.norm, x, radius), Best.of(x)
        step = radius / 4 if self.size is None else torch.full_like(radius, self.size)
        walk = replace(self.walk, early_stop=early_stop)
        every = torch.arange(len(rows), device=rows.device)
        walk.run(found, every, room.project(start), near.y[rows], room, share * step, draws)
        near.passes[rows] += found.passes
        near.take(self.norm, rows, found.point, found.margin < 0)
        return found

    def _retreat(self, near: Near, rows: Tensor, point: Tensor, noise: Noise) -> None:
        """Go back from wrong points to the clean images as far as they stay wrong.

        The way is that of the projections into ever smaller balls; where to look next is read off
        the margins at both ends, a hair nearer to the wrong one.
        """
        x, reach = near.x[rows], distance(self.norm, point - near.x[rows])
        low, high = torch.zeros_like(reach), torch.ones_like(reach)
        right, wrong = near.clear[rows], self._margin(near, rows, point, noise.at("end"))
        near.take(self.norm, rows, point, wrong < 0)
        for k in range(_BACK):
            share = (right / (right - wrong)).clamp(0.05, 0.95)
            at = low + (high - low) * (share + 0.02 * (1 - share))
            there = ball(self.norm, x, reach * at).project(point)
            margin = self._margin(near, rows, there, noise.at("back", k))
            broken = (margin < 0) & (wrong < 0)
            near.take(self.norm, rows, there, broken)
            high, wrong = torch.where(broken, at, high), torch.where(broken, margin, wrong)
            low, right = torch.where(broken, low, at), torch.where(broken, right, margin)

    def _tangents(self, near: Near, rows: Tensor, noise: Noise) -> None:
        """Step to the nearest point of the tangent of the boundary, again and again."""
        x, y, point = near.x[rows], near.y[rows], near.point[rows]
        for k, over in enumerate(_BEYOND):
            leaf = point.detach().requires_grad_()
            margin = margins(self.walk.goal(leaf, noise.select(rows).at("step", k)), y).mean(dim=1)
            self._spend(near, rows)
            uphill = _gradient(-margin, leaf)
            near.take(self.norm, rows, point, margin.detach() < 0)
            gap = (uphill * (point - x)).sum(dim=(1, 2, 3)) + margin.detach()
            there = crossing(self.norm, x, uphill, gap.clamp(min=0) * (1 + over))
            point = torch.where(per_image(gap > 0, x), there, point)
        near.take(self.norm, rows, point, self._margin(near, rows, point, noise.at("end")) < 0)

    @torch.no_grad()
    def _margin(self, near: Near, rows: Tensor, point: Tensor, noise: Noise) -> Tensor:
        """Return the mean margins of points, ``(b,)``."""
        self._spend(near, rows)
        return margins(self.walk.goal(point, noise.select(rows)), near.y[rows]).mean(dim=1)

    def _spend(self, near: Near, rows: Tensor) -> None:
        near.passes[rows] += self.walk.goal.samples
        self.walk.progress(1)


def _gradient(value: Tensor, point: Tensor) -> Tensor:
    """Return the finite gradients of values ``(B,)`` in their points; the graph is kept."""
    if not value.requires_grad:  # constant logits
        return torch.zeros_like(point)
    (gradient,) = torch.autograd.grad(
        value.sum(), point, retain_graph=True, allow_unused=True, materialize_grads=True
    )
    return torch.nan_to_num(gradient, nan=0.0, posinf=0.0, neginf=0.0)
