"""Boundary attack, Brendel et al. (2018), arXiv 1712.04248: a walk along the boundary in L2.

The walk is the paper's (section 2, algorithm 1): from a misclassified image, a random step on the
sphere around the clean image, then a step towards it, taken if the point is still misclassified.
What differs, and why:

- The start is first moved to the boundary by bisection, and all images take a step in one pass.
- The paper adapts two step sizes, on the sphere and inwards, to the success of two questions. Here
  a step of d times the distance along the sphere goes with one inwards that leads to the circle
  over the distance as its diameter, where the nearest point of a flat boundary lies (Maho et al.
  2021, arXiv 2011.12807, walk on the same circles). One question adapts d after each answer.
- Steps take turns in being white noise and noise of the lower half and quarter of the frequencies
  (`directions`).
- Of a stochastic model a step needs the majority of some votes. Every 25 steps the point is asked
  for again, on other draws, and the walk goes back to the last one that passed if it fails: among
  many steps some are lucky.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.linalg import vector_norm

from bench.context import Context
from bench.errors import InputError
from bench.registry import ATTACKS
from bench.types import Norm

from .decisions import Decisions, search_in_parts
from .directions import directions
from .starting import NEAR_L2, from_starts

_BISECTIONS = 10
_SUCCESS, _RATE = 0.2, 0.5
_CHANGE = (math.exp(_RATE * (1 - _SUCCESS)), math.exp(-_RATE * _SUCCESS))
_FIRST, _LEAST, _MOST = 1e-2, 1e-12, 0.25  # of d squared
_AGAIN = 25
_TINY = torch.finfo(torch.float32).tiny


class _Walk:
    """A walk of every image of a batch; everything is flat, ``(B, D)``.

    A step makes few passes over memory and writes over what it no longer needs: beside the model
    of a small network the arithmetic is cheap, but memory is not.

    Args:
        decide: Answers.
        x: Clean images, ``(B, C, H, W)``.
        start: Misclassified images.
    """

    _point: Tensor
    _square: Tensor

    def __init__(self, decide: Decisions, x: Tensor, start: Tensor) -> None:
        self._decide, self._shape, self._x = decide, x.shape[1:], x.flatten(1)
        self._directions = directions(decide.noise, x.shape[1:])
        self._sure = start.flatten(1)  # the last point that passed twice
        self._v = torch.empty_like(self._x)
        self._go(self._sure)
        self._size = torch.full_like(self._square, _FIRST)  # d^2

    @property
    def points(self) -> Tensor:
        """Where the walk is, ``(B, C, H, W)``."""
        return self._point.view(-1, *self._shape)

    def bisect(self, steps: int) -> None:
        """Move the points towards the clean images, to the boundary."""
        offset = self._point - self._x
        low, high = torch.zeros_like(self._square), torch.ones_like(self._square)
        for k in range(steps):
            share = (low + high) / 2
            middle = torch.addcmul(self._x, offset, share[:, None]).clamp_(0, 1)
            wrong = self._ask(middle, "bisect", k)
            low, high = torch.where(wrong, low, share), torch.where(wrong, share, high)
            self._point = torch.where(wrong[:, None], middle, self._point)
        self._go(self._point)

    def step(self, k: int) -> None:
        """Try one random step of every image."""
        point = self._proposal(*next(self._directions))
        wrong = self._ask(point, "step", k)
        square = self._measure(point)
        # Cut off at [0, 1] a point only comes nearer, but float32 has an end.
        taken = wrong & (square < self._square)
        share = taken.to(point.dtype)
        self._point.lerp_(point, share[:, None])  # by 0 or 1: exact
        self._square.lerp_(square, share)
        self._size.mul_(torch.where(taken, *_CHANGE)).clamp_(_LEAST, _MOST)

    def ask_again(self, k: int) -> None:
        """Go back to the last point that passed twice, where this one does not."""
        passed = self._ask(self._point, "again", k)
        self._sure = torch.where(passed[:, None], self._point, self._sure)
        self._go(self._sure)

    def _go(self, point: Tensor) -> None:
        self._point, self._square = point.clone(), self._measure(point)

    def _ask(self, points: Tensor, *name: int | str) -> Tensor:
        return self._decide(points.view(-1, *self._shape), None, *name)

    def _measure(self, point: Tensor) -> Tensor:
        """Return the squared distances to the clean images, ``(B,)``, above 0."""
        offset = torch.sub(point, self._x, out=self._v)
        length: Tensor = vector_norm(offset, dim=1)
        return length.square_().clamp_(min=_TINY)

    def _proposal(self, u: Tensor, length: float) -> Tensor:
        """Return the points at x + (v + d |v| w) / (1 + d^2), cut off at [0, 1].

        v leads from the clean image x to the point; w is the part of ``u / length`` across it, at
        length 1.
        """
        v = torch.sub(self._point, self._x, out=self._v)
        point = u * v
        product = point.sum(dim=1)
        along = product / self._square
        across = (length**2 - along * product).clamp_(min=_TINY)  # squared
        inwards = (1 + self._size).reciprocal_()
        stride = (self._size * self._square).div_(across).sqrt_().mul_(inwards)
        sign = math.copysign(1, length)
        back = inwards.addcmul_(stride, along, value=-sign)
        torch.addcmul(self._x, v, back[:, None], out=point)
        return point.addcmul_(u, stride[:, None], value=sign).clamp_(0, 1)


@ATTACKS.register("boundary-l2", norm=Norm.L2)
@dataclass(frozen=True, kw_only=True)
class Boundary:
    """Walk along the boundary from a misclassified image towards the clean one, decisions only.

    Attributes:
        eps: Not used: the nearest image is looked for, and measured against any budget.
        steps: Evaluations of an image after its start is found, ten of them for the bisection.
        votes: Draws of a stochastic model behind an answer; a majority decides.
    """

    eps: float | None = None
    steps: int = 1000
    votes: int = 9
    norm: Norm = field(default=Norm.L2, init=False)
    minimum_norm: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.steps < 1 or self.votes < 1:
            raise InputError(f"{self}: expected steps and votes of at least 1")

    def __call__(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        context: Context,
        starts: Tensor | None = None,
    ) -> Tensor:
        """Return the nearest misclassified point seen, or the clean image where there was none.

        Args:
            model: Returns logits.
            x: Clean images in [0, 1], ``(B, C, H, W)``.
            y: True classes, ``(B,)``.
            context: Its noise has one row an image.
            starts: Misclassified images, ``(B, C, H, W)``; noise is tried where one is not.
        """

        def search(decide: Decisions, clean: Tensor, rows: Tensor) -> Tensor:
            near = None if starts is None else starts[rows]
            return from_starts(decide, clean, NEAR_L2, near, self._walk)

        return search_in_parts(model, x, y, context, self.votes, search)

    def _walk(self, decide: Decisions, x: Tensor, start: Tensor) -> Tensor:
        """Return the nearest misclassified points on the walks from ``start``."""
        walk = _Walk(decide, x, start)
        walk.bisect(min(_BISECTIONS, self.steps))
        for k in range(_BISECTIONS, self.steps):
            if decide.out_of_time():
                break
            if decide.stochastic and k % _AGAIN == 0:
                walk.ask_again(k)
            else:
                walk.step(k)
        if decide.stochastic:
            walk.ask_again(self.steps)
        return walk.points
