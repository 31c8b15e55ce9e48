"""Square attack, Andriushchenko et al. (2020), arXiv 1912.00049: random search by the scores alone.

Margin loss, untargeted, with the schedule of window sizes of the authors' code. Each image has its
own windows (the code that others use draws one place for the whole batch), drawn from keyed noise;
`square_moves` says what a query changes, in L-infinity and in L2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

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
from .square_moves import Moves, moves

# Of 10,000 queries, those after which the share of a window is halved.
_HALVINGS = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)
_BLOCK = 64  # moves whose draws are made together
# Another batch size changes logits by about 1e-6 of the largest. A margin that falls by less has
# not fallen, and an image leaves the batch only where the verdict of a later pass must agree.
_ROUNDING, _SURE = 1e-6, 1e-5


@dataclass
class _Found:
    """The best point of every image so far, its margin, and what it cost."""

    point: Tensor
    margin: Tensor
    broken: Tensor
    passes: Tensor

    @classmethod
    def of(cls, x: Tensor) -> _Found:
        none = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        return cls(x.clone(), torch.full_like(x[:, 0, 0, 0], torch.inf), none.bool(), none)


@dataclass
class _Walk:
    """Random search on some images at one budget; broken ones leave.

    Attributes:
        goal: (points, noise) to logits ``(B, K, classes)``.
        shares: Share of an image that a window covers, by query.
        leave: Whether broken images leave the batch.
        context: Progress and the time limit.
        rows: Places of the images among those in ``_Found``; the other tensors have a row each.
        y: True classes.
        steps: What a query changes.
        noise: Draws.
    """

    goal: Target
    shares: tuple[float, ...]
    leave: bool
    context: Context
    rows: Tensor
    y: Tensor
    steps: Moves
    noise: Noise

    def run(self, found: _Found, near: Tensor | None) -> None:
        """Search from a random start, or from ``near`` where that is better; note what is found."""
        self._begin(near)
        sides = [self.steps.side(share) for share in self.shares]
        every = 1 if self.y.device.type == "cpu" else 16  # asking a GPU makes it wait
        query, move = 1 if near is None else 2, 0
        while query < len(sides) and not self.context.out_of_time():
            if self.leave and move % every == 0 and not self._part(found):
                return
            if move % _BLOCK == 0:
                name = self.noise.at("moves", move // _BLOCK)
                self.ahead = name.uniform(_BLOCK, self.steps.draws)
                query += self._refresh(move // _BLOCK)
            self._query(sides[min(query, len(sides) - 1)], self.ahead[:, move % _BLOCK])
            query, move = query + 1, move + 1
        self._refresh(-(-move // _BLOCK))
        self._note(found, torch.ones_like(self.open))

    def _refresh(self, block: int) -> int:
        """Show the points of a stochastic model to other draws; return how many queries it took.

        All points of a block meet the same draws: two of them differ by much less than two draws
        do. Only for a block, though: a point must not be good at a few draws alone.
        """
        if not self.goal.stochastic or block == 0:
            return 0
        self.draws = self.noise.at("draws", block)
        self.margin, _ = self._ask()
        return 1

    def _begin(self, near: Tensor | None) -> None:
        self.draws = self.noise.at("draws", 0)
        self.ahead = self.noise.uniform(1)  # drawn anew a block at a time
        self.open = torch.ones_like(self.rows, dtype=torch.bool)
        self.passes = torch.zeros_like(self.rows)
        self.point = self.steps.start(self.noise.at("start"))
        self.margin, rounding = self._ask()
        if near is not None:
            start, margin = self.point, self.margin
            self.point = near.flatten(2).clone()
            self.margin, rounding = self._ask()
            worse = self.margin >= margin
            self.point = torch.where(worse[:, None, None], start, self.point)
            self.margin = torch.where(worse, margin, self.margin)
        if self.leave:
            self.open = self.margin >= -_SURE * rounding

    def _ask(self) -> tuple[Tensor, Tensor]:
        """Return the mean margins of the points, ``(B,)``, and the largest logits."""
        logits = self.goal(self._images(self.point), self.draws)
        self.passes += self.open * logits.shape[1]
        self.context.progress(1)
        return margins(logits, self.y).mean(dim=1), logits.abs().amax(dim=(1, 2))

    def _images(self, point: Tensor) -> Tensor:
        """Return flat points as images."""
        return point.view(-1, *self.steps.shape)

    def _query(self, side: int, u: Tensor) -> None:
        """Move every point, and take the moves back that lower no margin."""
        change = self.steps.move(self.point, side, u)
        margin, largest = self._ask()
        better = (margin < self.margin - _ROUNDING * largest) & self.open
        change.settle(self.point, better)
        self.margin = torch.where(better, margin, self.margin)
        if self.leave:
            self.open = self.open & (self.margin >= -_SURE * largest)

    def _part(self, found: _Found) -> bool:
        """Note what is broken and go on with the rest, if it is enough; say if there is any."""
        count = int(self.open.sum())
        if count > 0.9 * len(self.open):
            return True
        self._note(found, ~self.open)
        keep = self.open.nonzero()[:, 0]
        for name in ("rows", "y", "point", "margin", "passes", "open", "ahead"):
            setattr(self, name, getattr(self, name)[keep])
        self.steps, self.noise = self.steps.select(keep), self.noise.select(keep)
        self.draws = self.draws.select(keep)
        return count > 0

    def _note(self, found: _Found, which: Tensor) -> None:
        """Note the points of some images where they are better than those of earlier starts."""
        rows, margin = self.rows[which], self.margin[which]
        point = self._images(self.point[which])
        better = margin < found.margin[rows]
        found.point[rows] = torch.where(per_image(better, point), point, found.point[rows])
        found.margin[rows] = torch.where(better, margin, found.margin[rows])
        found.broken[rows] |= ~self.open[which]
        found.passes[rows] += self.passes[which]


@dataclass(frozen=True, kw_only=True)
class Square:
    """Random search over windows of an image; the norm is the subclass's.

    Attributes:
        eps: Budget, in units of the [0, 1] pixel range.
        queries: Evaluations of an image a start, that of the start included.
        restarts: Searches from independent starts, only for what is unbroken.
        p_init: Share of an image that the first windows cover.
        early_stop: Stop at the first point that breaks an image; otherwise search on for the one
            with the smallest margin. A stochastic model never stops early: one draw proves nothing.
        eot_samples: Draws of a stochastic model over which the margin of a query is averaged.
    """

    eps: float
    queries: int = 5000
    restarts: int = 1
    p_init: float = 0.8
    early_stop: bool = True
    eot_samples: int = 5
    norm: Norm = field(init=False)

    def __post_init__(self) -> None:
        wanted = {
            "eps a finite number of at least 0": self.eps is not None and 0 <= self.eps < math.inf,
            "queries, restarts and eot_samples at least 1": min(
                self.queries, self.restarts, self.eot_samples
            )
            >= 1,
            "p_init above 0 and at most 1": 0 < self.p_init <= 1,
        }
        broken = [want for want, holds in wanted.items() if not holds]
        if broken:
            raise InputError(f"{self}: expected {'; '.join(broken)}")

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

        What breaks at one budget is not searched at larger ones. What does not may start there from
        the best change so far, made as large as the budget, if it is better than a random start.

        Args:
            model: Returns logits.
            x: Clean images in [0, 1], ``(B, C, H, W)``.
            y: True classes, ``(B,)``.
            context: Its noise has one row an image.
            eps: The budgets, increasing; they take the place of the field ``eps``.
            starts: Other points to start from at each eps, ``(n_eps, B, C, H, W)``.
        """
        goal = target(model, samples=self.eot_samples)

        def search(rows: Tensor) -> tuple[Tensor, Tensor]:
            near = None if starts is None else starts[:, rows]
            return self._climb(goal, x[rows], y[rows], context, rows, eps, near)

        with torch.no_grad():
            parts = in_parts(len(x), context.micro_batch // goal.rows, search, x.device)
        context.spent(torch.cat([passes for _, passes in parts]))
        return torch.cat([points for points, _ in parts], dim=1)

    def _climb(
        self,
        goal: Target,
        x: Tensor,
        y: Tensor,
        context: Context,
        rows: Tensor,
        eps: tuple[float, ...],
        starts: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Return the best points at each budget, and the passes, of some images."""
        found, noise = _Found.of(x), context.noise.select(rows)
        points = []
        for i, budget in enumerate(eps):
            near = None if starts is None else starts[i]
            if near is None and i > 0 and eps[i - 1] > 0:
                near = x + (found.point - x) * (budget / eps[i - 1])
            if goal.stochastic:  # a margin of a few draws is no reason to prefer an older point
                found = replace(_Found.of(x), passes=found.passes)
            if budget > 0:
                self._restart(goal, found, x, y, context, noise, budget, near)
            points.append(found.point.clone())
        return torch.stack(points), found.passes

    def _restart(
        self,
        goal: Target,
        found: _Found,
        x: Tensor,
        y: Tensor,
        context: Context,
        noise: Noise,
        eps: float,
        near: Tensor | None,
    ) -> None:
        """Search from every start, on the images that are still unbroken."""
        leave = self.early_stop and not goal.stochastic
        room = ball(self.norm, x, eps)
        for r in range(self.restarts):
            rows = (~found.broken if leave else torch.ones_like(found.broken)).nonzero()[:, 0]
            if len(rows) == 0:
                return
            _Walk(
                goal=goal,
                shares=self._shares(),
                leave=leave,
                context=context,
                rows=rows,
                y=y[rows],
                steps=moves(self.norm, x[rows], eps),
                noise=noise.select(rows).at("restart", r),
            ).run(found, None if near is None or r > 0 else room.project(near)[rows])
        found.point = room.project(found.point)

    def _shares(self) -> tuple[float, ...]:
        """Return the share of an image that a window covers, by query."""
        scaled = (10_000 * query // self.queries for query in range(self.queries))
        return tuple(self.p_init / 2 ** sum(at > h for h in _HALVINGS) for at in scaled)


@ATTACKS.register("square-linf", norm=Norm.LINF)
@dataclass(frozen=True, kw_only=True)
class LinfSquare(Square):
    """Square attack in L-infinity: windows at either end of the range, from vertical stripes."""

    norm: Norm = field(default=Norm.LINF, init=False)


@ATTACKS.register("square-l2", norm=Norm.L2)
@dataclass(frozen=True, kw_only=True)
class L2Square(Square):
    """Square attack in L2: one window takes over the length of another, as a bump."""

    norm: Norm = field(default=Norm.L2, init=False)
