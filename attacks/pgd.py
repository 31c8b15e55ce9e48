"""Projected gradient descent, Madry et al. (2018), section 2.1, in L-infinity and L2.

It differs from the paper's in what it returns: the best point seen rather than the last one, and
in the eps sweep: what is broken at a small eps is broken at every larger one and leaves the batch.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from bench.batching import in_parts
from bench.context import Context
from bench.errors import InputError
from bench.noise import Noise
from bench.registry import ATTACKS
from bench.target import Average, Gradient, Target, target
from bench.types import Norm

from .descent import Walk
from .drawn import DrawnSearch
from .full import FullSearch, Search
from .grid import GridSearch
from .losses import LOSSES, LossName, in_halves
from .nearest import NearestSearch


@dataclass(frozen=True, kw_only=True)
class PGD:
    """Repeated steps up the loss, projected into the ball; the norm is the subclass's.

    Attributes:
        eps: Budget, in units of the [0, 1] pixel range; ``None`` looks for the nearest adversarial
            image, see `nearest`.
        steps: Steps a run; one forward pass more is spent on the last point.
        step_size: Length of a step in the attack's norm; one for each eps of a sweep, or one for
            all. ``None`` takes eps / 4.
        restarts: Runs from independent starting points, only for what is unbroken.
        loss: ``ce`` (the paper's), ``margin`` or ``dlr``, see `losses`; ``both`` takes ``ce`` in
            the first half of the steps of a run and ``margin`` in the second.
        random_start: Start uniformly in the ball instead of at the clean image.
        momentum: Share of the last direction kept (Dong et al. 2018); 0 is plain PGD.
        early_stop: Stop at the first point that breaks an image; otherwise run on and keep the
            one with the smallest margin. A stochastic model never stops early: one draw
            proves nothing.
        eot_samples: Draws of a stochastic model behind each gradient (expectation over
            transformation, Athalye et al. 2018), run as one batch.
        gradient: Of a stochastic model: ``straight-through`` differentiates its draws, ``static``
            attacks the network behind the refinement (a transfer attack).
        average: What is averaged over the chains of a refining model, see `bench.target`.
        precision: ``bfloat16`` takes the steps under autocast, channels last where the model bears
            it; what counts is decided in float32 all the same.
    """

    eps: float | None = None
    steps: int = 20
    step_size: float | tuple[float, ...] | None = None
    restarts: int = 1
    loss: LossName | Literal["both"] = "both"
    random_start: bool = True
    momentum: float = 0.0
    early_stop: bool = True
    eot_samples: int = 20
    gradient: Gradient = "straight-through"
    average: Average = "logits"
    precision: Literal["float32", "bfloat16"] = "float32"
    norm: Norm = field(init=False)

    def __post_init__(self) -> None:
        sizes = self.step_size if isinstance(self.step_size, tuple) else (self.step_size,)
        wanted = {
            "eps a finite number of at least 0, or None": self.eps is None
            or 0 <= self.eps < math.inf,
            "steps, restarts and eot_samples at least 1": min(
                self.steps, self.restarts, self.eot_samples
            )
            >= 1,
            "step_size positive": all(s is None or 0 < s < math.inf for s in sizes),
            "momentum at least 0": 0 <= self.momentum < math.inf,
            f"loss one of {', '.join(LOSSES)}, both": self.loss in (*LOSSES, "both"),
            f"gradient one of {', '.join(get_args(Gradient))}": self.gradient in get_args(Gradient),
            f"average one of {', '.join(get_args(Average))}": self.average in get_args(Average),
            "precision float32 or bfloat16": self.precision in ("float32", "bfloat16"),
        }
        broken = [want for want, holds in wanted.items() if not holds]
        if broken:
            raise InputError(f"{self}: expected {'; '.join(broken)}")

    def __call__(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        context: Context,
        starts: Tensor | None = None,
    ) -> Tensor:
        """Return the best point found for each image, ``(B, C, H, W)``.

        ``starts``, of that shape, is where the first run starts. Without a budget it is the nearest
        adversarial point, and the clean image where none was found.
        """
        if self.eps is None:
            return self._nearest(model, x, y, context, starts)
        near = None if starts is None else starts[None]
        return self.sweep(model, x, y, context, (self.eps,), near)[0]

    def _nearest(
        self, model: nn.Module, x: Tensor, y: Tensor, context: Context, starts: Tensor | None
    ) -> Tensor:
        """Return the nearest adversarial points."""
        if isinstance(self.step_size, tuple):
            raise InputError(
                f"{len(self.step_size)} step sizes and no eps; give one number, or none"
            )
        goal = target(model, self.gradient, self.eot_samples, self.average)
        search = NearestSearch(
            self._walk(goal, context, x), self.norm, self.step_size, self.restarts
        )

        def work(rows: Tensor) -> tuple[Tensor, Tensor]:
            near = None if starts is None else starts[rows]
            return search(x[rows], y[rows], context.noise.select(rows), near)

        parts = in_parts(len(x), context.micro_batch // goal.rows, work, x.device)
        context.spent(torch.cat([passes for _, passes in parts]))
        return torch.cat([points for points, _ in parts])

    def sweep(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        context: Context,
        eps: tuple[float, ...],
        starts: Tensor | None = None,
    ) -> Tensor:
        """Return candidates for increasing budgets, ``(n_eps, B, C, H, W)``.

        Args:
            model: Returns logits.
            x: Clean images in [0, 1], ``(B, C, H, W)``.
            y: True classes, ``(B,)``.
            context: Its noise has one row an image.
            eps: The budgets, increasing; they take the place of the field ``eps``.
            starts: Where the first run starts at each eps, ``(n_eps, B, C, H, W)``, instead of
                at random.

        Raises:
            InputError: The budgets decrease, or there are more or fewer step sizes than budgets.
            Unsupported: ``static`` was asked for and the model is not a refinement of another.
        """
        goal = target(model, self.gradient, self.eot_samples, self.average)
        sizes = self._step_sizes(eps)
        none = sum(e == 0 for e in eps)  # nothing to look for there
        if none == len(eps):
            return x.expand(none, *x.shape).clone()
        walk = self._walk(goal, context, x)
        kind: type[Search] = DrawnSearch if goal.stochastic else FullSearch
        if walk.early_stop and starts is None:
            kind = GridSearch
        search = kind(walk, self.norm, eps[none:], sizes[none:], self.restarts, self.random_start)

        def work(rows: Tensor) -> tuple[Tensor, Tensor]:
            near = None if starts is None else starts[none:, rows]
            points, passes = search(x[rows], y[rows], context.noise.select(rows), near)
            return torch.cat([x[rows].expand(none, *points.shape[1:]), points]), passes

        parts = in_parts(len(x), context.micro_batch // goal.rows, work, x.device)
        context.spent(torch.cat([passes for _, passes in parts]))
        return torch.cat([points for points, _ in parts], dim=1)

    def _walk(self, goal: Target, context: Context, x: Tensor) -> Walk:
        """Return how the runs go."""
        rough = self.precision == "bfloat16"
        return Walk(
            goal=goal,
            loss=self._loss,
            steps=self.steps,
            momentum=self.momentum,
            early_stop=self.early_stop and not goal.stochastic,
            progress=context.progress,
            out_of_time=context.out_of_time,
            rough=rough,
            layout=_layout(goal, x[:1], context.noise) if rough else torch.contiguous_format,
        )

    def _loss(self, logits: Tensor, y: Tensor, step: int | Tensor) -> Tensor:
        """Return the losses ``(B,)`` at a step."""
        if self.loss == "both":
            return in_halves(logits, y, step, self.steps // 2)
        return LOSSES[self.loss](logits, y)

    def _step_sizes(self, eps: tuple[float, ...]) -> tuple[float, ...]:
        """Return the step size of each budget."""
        if any(a > b for a, b in itertools.pairwise(eps)):
            raise InputError(f"the budgets {eps} of a sweep decrease; sort them")
        if isinstance(self.step_size, tuple):
            if len(self.step_size) != len(eps):
                raise InputError(
                    f"{len(self.step_size)} step sizes for {len(eps)} values of eps; give one "
                    "number, or one for each eps"
                )
            return self.step_size
        return tuple(e / 4 if self.step_size is None else self.step_size for e in eps)


@torch.no_grad()
def _layout(goal: Target, x: Tensor, noise: Noise) -> torch.memory_format:
    """Return how images may lie in memory; a model that uses ``view`` takes them one way only."""
    first = noise.select(torch.zeros(1, dtype=torch.int64, device=x.device))
    try:
        goal(x.contiguous(memory_format=torch.channels_last), first)
    except RuntimeError:
        return torch.contiguous_format
    return torch.channels_last


@ATTACKS.register("pgd-linf", norm=Norm.LINF)
@dataclass(frozen=True, kw_only=True)
class LinfPGD(PGD):
    """PGD in L-infinity: signed steps, no pixel moves by more than ``eps``."""

    norm: Norm = field(default=Norm.LINF, init=False)


@ATTACKS.register("pgd-l2", norm=Norm.L2)
@dataclass(frozen=True, kw_only=True)
class L2PGD(PGD):
    """PGD in L2: normalised steps, the change has Euclidean length of at most ``eps``."""

    norm: Norm = field(default=Norm.L2, init=False)
