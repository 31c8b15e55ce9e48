"""Auto-PGD, Croce and Hein (2020), arXiv 2003.01690, section 3, in L-infinity and L2.

PGD without a step size to choose: it starts at twice eps, is halved for an image where it does no
good, and the walk then goes on from that image's best point (`ascent`). The targeted form runs
once towards each of the most likely wrong classes (section 4.1 and appendix).

It differs from the authors' code in what it returns, the point of the smallest margin; in that a
broken image leaves the batch at once; in the starting point, uniform in the ball instead of on its
surface; and in the first checkpoint, where their code compares with a value that was never set.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import get_args

import torch
from torch import Tensor, nn

from bench.batching import in_parts
from bench.context import Context
from bench.errors import InputError
from bench.noise import Noise
from bench.registry import ATTACKS
from bench.target import Gradient, Target, target
from bench.types import Norm

from .ascent import Ascent
from .descent import Best
from .geometry import ball
from .losses import LOSSES, LossName
from .losses_targeted import targeted_dlr


@dataclass(frozen=True, kw_only=True)
class AutoPGD:
    """What the untargeted and the targeted attack share; the norm is the subclass's.

    Attributes:
        eps: Budget, in units of the [0, 1] pixel range.
        steps: Steps a run; one forward pass more is spent on the last point.
        restarts: Runs from independent starting points, only for what is unbroken.
        early_stop: Stop at the first point that breaks an image; otherwise run on and keep the
            one with the smallest margin. A stochastic model never stops early: one draw
            proves nothing.
        eot_samples: Draws of a stochastic model behind each gradient (expectation over
            transformation, Athalye et al. 2018), run as one batch.
        gradient: How a stochastic model is differentiated; see `bench.target`.
    """

    eps: float
    steps: int = 100
    restarts: int = 1
    early_stop: bool = True
    eot_samples: int = 20
    gradient: Gradient = "straight-through"
    norm: Norm = field(init=False)

    def __post_init__(self) -> None:
        broken = [want for want, holds in self._wanted().items() if not holds]
        if broken:
            raise InputError(f"{self}: expected {'; '.join(broken)}")

    def _wanted(self) -> dict[str, bool]:
        """Return what is asked of the options, and whether it holds."""
        counts = self.steps, self.restarts, self.eot_samples
        return {
            "eps a finite number of at least 0": 0 <= self.eps < math.inf,
            "steps, restarts and eot_samples at least 1": min(counts) >= 1,
            f"gradient one of {', '.join(get_args(Gradient))}": self.gradient in get_args(Gradient),
        }

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, context: Context) -> Tensor:
        """Return the best point found for each image, ``(B, C, H, W)``."""
        return self.sweep(model, x, y, context, (self.eps,))[0]

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

        What is broken at one budget is carried to the larger ones and not attacked again.

        Args:
            model: Returns logits.
            x: Clean images in [0, 1], ``(B, C, H, W)``.
            y: True classes, ``(B,)``.
            context: Its noise has one row an image.
            eps: The budgets, increasing; they take the place of the field ``eps``.
            starts: Where the first run starts at each eps, ``(n_eps, B, C, H, W)``, instead of
                at random.

        Raises:
            InputError: The budgets decrease.
            Unsupported: The model cannot be differentiated in the way of ``gradient``.
        """
        if any(a > b for a, b in itertools.pairwise(eps)):
            raise InputError(f"the budgets {eps} of a sweep decrease; sort them")
        goal = target(model, self.gradient, self.eot_samples)

        def part(rows: Tensor) -> tuple[Tensor, Tensor]:
            near = None if starts is None else starts[:, rows]
            noise = context.noise.select(rows)
            job = _Job(self, goal, context, x[rows], y[rows], noise)
            return job.climb(eps, near), job.best.passes

        found = in_parts(len(x), context.micro_batch // goal.rows, part, x.device)
        context.spent(torch.cat([passes for _, passes in found]))
        return torch.cat([points for points, _ in found], dim=1)

    def loss_of(self, logits: Tensor, y: Tensor, aim: Tensor) -> Tensor:
        """Return what is raised, ``(B,)``, of logits ``(B, K, classes)``; ``aim`` is a class."""
        raise NotImplementedError

    def aims(self, logits: Callable[[], Tensor], y: Tensor) -> Tensor:
        """Return the classes to aim at, one row a run, ``(runs, B)``.

        ``logits`` gives those of the clean images, ``(B, K, classes)``, for one pass more.
        """
        raise NotImplementedError


class _Job:
    """One attack on as many images as fit through the model."""

    def __init__(
        self, attack: AutoPGD, goal: Target, context: Context, x: Tensor, y: Tensor, noise: Noise
    ) -> None:
        self.attack, self.goal, self.x, self.y, self.noise = attack, goal, x, y, noise
        self.best = Best.of(x)
        self.out_of_time = context.out_of_time
        self.ascent = Ascent(
            goal=goal,
            loss=attack.loss_of,
            steps=attack.steps,
            early_stop=attack.early_stop and not goal.stochastic,
            progress=context.progress,
            out_of_time=context.out_of_time,
        )

    def climb(self, eps: tuple[float, ...], starts: Tensor | None) -> Tensor:
        """Return the best points at each budget, ``(n_eps, B, C, H, W)``."""
        aims = self.attack.aims(self._clean, self.y) if eps[-1] > 0 else self.y[:0]
        found: list[Tensor] = []
        for i, budget in enumerate(eps):
            start = None if starts is None else starts[i]
            if self.goal.stochastic:
                # The margin of a few draws is no reason to prefer an older point.
                self.best.forget(self.x)
            if budget > 0:
                self._run(aims, budget, start)
            found.append(self.best.point.clone())
        return torch.stack(found)

    def _clean(self) -> Tensor:
        """Return the logits of the clean images, and charge the pass."""
        with torch.no_grad():
            logits = self.goal(self.x, self.noise.at("clean"))
        self.best.passes += logits.shape[1]
        return logits

    def _run(self, aims: Tensor, eps: float, start: Tensor | None) -> None:
        """Run towards every aim and from every starting point, on what is still unbroken."""
        for r, (restart, aim) in enumerate(itertools.product(range(self.attack.restarts), aims)):
            rows = torch.arange(len(self.x), device=self.x.device)
            if self.ascent.early_stop:
                rows = rows[~self.best.broken]
            if len(rows) == 0 or self.out_of_time():
                return
            room = ball(self.attack.norm, self.x[rows], eps)
            draws = self.noise.select(rows).at("run", r)
            if start is not None and restart == 0:
                point = room.project(start[rows])
            else:
                point = room.sample(draws.at("start"))
            self.ascent.run(self.best, rows, point, self.y[rows], aim[rows], room, eps, draws)


@dataclass(frozen=True, kw_only=True)
class APGD(AutoPGD):
    """Auto-PGD on one loss for all classes.

    Attributes:
        loss: ``ce``, ``dlr`` (equation 6) or ``margin``; see `losses`.
    """

    loss: LossName = "ce"

    def _wanted(self) -> dict[str, bool]:
        return super()._wanted() | {f"loss one of {', '.join(LOSSES)}": self.loss in LOSSES}

    def loss_of(self, logits: Tensor, y: Tensor, aim: Tensor) -> Tensor:
        """Return the loss of that name, ``(B,)``."""
        return LOSSES[self.loss](logits, y)

    def aims(self, logits: Callable[[], Tensor], y: Tensor) -> Tensor:
        """Return one run, whose aim is not looked at."""
        return y[None]


@dataclass(frozen=True, kw_only=True)
class TargetedAPGD(AutoPGD):
    """Auto-PGD towards each of the most likely wrong classes of the clean image in turn.

    The loss is the targeted DLR (equation 7), which needs four classes; a model with fewer is
    attacked with the targeted margin, the numerator of the DLR.

    Attributes:
        targets: How many wrong classes to try, the most likely first; at most all of them.
    """

    targets: int = 9

    def _wanted(self) -> dict[str, bool]:
        return super()._wanted() | {"targets at least 1": self.targets >= 1}

    def loss_of(self, logits: Tensor, y: Tensor, aim: Tensor) -> Tensor:
        """Return the targeted loss, ``(B,)``."""
        return targeted_dlr(logits, y, aim)

    def aims(self, logits: Callable[[], Tensor], y: Tensor) -> Tensor:
        """Return the wrong classes, from the most likely on."""
        mean = logits().mean(dim=1)
        others = mean.scatter(1, y[:, None], -torch.inf)
        count = min(self.targets, mean.shape[1] - 1)
        return others.topk(count, dim=1).indices.T


@ATTACKS.register("apgd-linf", norm=Norm.LINF)
@dataclass(frozen=True, kw_only=True)
class LinfAPGD(APGD):
    """Auto-PGD in L-infinity: no pixel moves by more than ``eps``."""

    norm: Norm = field(default=Norm.LINF, init=False)


@ATTACKS.register("apgd-l2", norm=Norm.L2)
@dataclass(frozen=True, kw_only=True)
class L2APGD(APGD):
    """Auto-PGD in L2: the change has Euclidean length of at most ``eps``."""

    norm: Norm = field(default=Norm.L2, init=False)


@ATTACKS.register("apgd-t-linf", norm=Norm.LINF)
@dataclass(frozen=True, kw_only=True)
class LinfTargetedAPGD(TargetedAPGD):
    """Targeted Auto-PGD in L-infinity, towards the most likely wrong classes in turn."""

    norm: Norm = field(default=Norm.LINF, init=False)


@ATTACKS.register("apgd-t-l2", norm=Norm.L2)
@dataclass(frozen=True, kw_only=True)
class L2TargetedAPGD(TargetedAPGD):
    """Targeted Auto-PGD in L2, towards the most likely wrong classes in turn."""

    norm: Norm = field(default=Norm.L2, init=False)
