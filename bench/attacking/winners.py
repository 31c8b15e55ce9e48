"""The protocol for a stochastic model on one micro-batch: many candidates, one scored winner.

See `bench.attacking.stochastic` for why.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bench.attacking.inputs import Plan
from bench.attacking.judging import LEAVE, Judge
from bench.attacking.known_noise import Known, attack_known_noise
from bench.attacking.sources import FIXED_NOISE, SOURCES, Searches, Source
from bench.attacking.verifying import check_candidates, distances, per_image
from bench.context import Context
from bench.types import Norm

LEAVING_DRAWS = 20  # all wrong, before an image is left alone
STRETCHES = (1.02, 1.05, 1.1, 1.2)  # of nearest images


def broken(rank: Tensor, draws: int) -> Tensor:
    """Say which ranks are of at most half of the draws right."""
    return rank.round() <= draws / 2


@dataclass
class _Winners:
    """The best candidates so far of some images.

    Attributes:
        point: ``(B, C, H, W)``.
        rank: On the selection draws, ``(B,)``.
        source: Positions in `SOURCES`, ``(B,)``.
        left: Whether an image is attacked no further, ``(B,)`` bool.
    """

    point: Tensor
    rank: Tensor
    source: Tensor
    left: Tensor

    def offer(self, name: str, found: Tensor, rank: Tensor, rows: Tensor, better: Tensor) -> None:
        """Take up the candidates of some rows where they are better."""
        self.point[rows] = torch.where(per_image(better, found), found, self.point[rows])
        self.rank[rows] = torch.where(better, rank, self.rank[rows])
        self.source[rows] = torch.where(better, SOURCES.index(name), self.source[rows])


@dataclass(frozen=True)
class Part:
    """The results of one micro-batch, budgets increasing."""

    x_adv: Tensor
    source: Tensor
    rank: Tensor
    predictions: Tensor
    clean_predictions: Tensor
    margin: Tensor
    clean_margin: Tensor
    spent: dict[str, Tensor]
    seconds: dict[str, float]
    fixed_noise: Tensor | None
    refused: dict[str, str]


@dataclass(frozen=True)
class Contest:
    """What is done with the images of one micro-batch: search, choose the winners, score them.

    Attributes:
        task: The attack and its budgets.
        model: Stochastic.
        sources: The searches.
        selection: Draws that choose.
        scoring: Draws that score.
        fixed_noise: Whether to add that diagnostic.
    """

    task: Plan
    model: nn.Module
    sources: list[Source]
    selection: int
    scoring: int
    fixed_noise: bool

    def __call__(self, x: Tensor, y: Tensor, context: Context, starts: Tensor | None) -> Part:
        """Attack the images of one micro-batch.

        Args:
            x: Clean images, ``(B, C, H, W)``.
            y: True classes, ``(B,)``.
            context: Its noise has one row an image.
            starts: Where cold searches start, the shape of ``x``.
        """
        judge = Judge(self.model, y, context.noise, self.selection, self.scoring)
        clean_predictions, clean_margin = judge.score(x)
        searches = Searches(self.sources, x, y, context)
        best = _Winners(x.clone(), judge.rank(x), torch.zeros_like(y), torch.zeros_like(y).bool())
        stages = []
        for i in range(len(self.task.eps)):
            self._search(i, best, searches, judge, x, starts)
            scores = judge.score(best.point)
            stages.append((best.point.clone(), best.source.clone(), best.rank.clone(), *scores))
        x_adv, source, rank, predictions, margins = map(torch.stack, zip(*stages, strict=True))
        known = self._known(x, judge, context, x_adv)
        return Part(
            x_adv=x_adv,
            source=source,
            rank=rank,
            predictions=predictions,
            clean_predictions=clean_predictions,
            margin=margins.double().mean(dim=-1),
            clean_margin=clean_margin.double().mean(dim=1),
            spent=searches.passes | {name: one.passes for name, one in known.items()},
            seconds=searches.seconds | {name: one.seconds for name, one in known.items()},
            fixed_noise=known[FIXED_NOISE].right if known else None,
            refused=searches.refused,
        )

    def _search(
        self,
        i: int,
        best: _Winners,
        searches: Searches,
        judge: Judge,
        x: Tensor,
        starts: Tensor | None,
    ) -> None:
        """Take up what is found at one budget."""
        eps = self.task.eps[i]
        rows = self._remaining(judge, best, eps)
        if len(rows) == 0:
            return
        for name, found in searches.at(i, rows, None if starts is None else starts[rows]):
            for candidate in self._along(x[rows], found, eps):
                rank = judge.rank(candidate, rows)
                if eps < math.inf:  # a tie stays with the older, smaller change
                    better = rank < best.rank[rows]
                else:
                    better = self._nearer(best, x, rows, candidate, rank)
                best.offer(name, candidate, rank, rows, better)

    def _along(self, x: Tensor, found: Tensor, eps: float) -> Iterator[Tensor]:
        """Yield the candidates, and of nearest images points further out in the same direction.

        A nearest image lies where the model is right in about half of its draws: a little further
        out it is broken for certain, and at the budget itself it has the fewest draws right.
        """
        yield found
        if not self.task.nearest:
            return
        if eps == math.inf:
            for stretch in STRETCHES:
                yield (x + stretch * (found - x)).clamp(0, 1)
        elif self.task.norm is not Norm.L0:  # a longer step changes no more entries
            distance = distances(x, found)[self.task.norm].to(x.device)
            # Rounding moves each pixel by up to 6e-8, and no candidate may leave the ball.
            room = eps - 1e-7 * math.sqrt(x[0].numel())
            factor = torch.where(distance > 0, room / distance, 1.0).clamp(min=1.0).to(x.dtype)
            out = (x + per_image(factor, x) * (found - x)).clamp(0, 1)
            yield check_candidates(self.task.name, x, out, self.task.norm, eps)

    def _known(
        self, x: Tensor, judge: Judge, context: Context, winners: Tensor
    ) -> dict[str, Known]:
        """Return the diagnostic, if it is asked for."""
        if not self.fixed_noise:
            return {}
        return {FIXED_NOISE: attack_known_noise(self.task, self.model, x, judge, context, winners)}

    def _remaining(self, judge: Judge, best: _Winners, eps: float) -> Tensor:
        """Return the rows to attack further, and note which are left alone from now on.

        Left alone is an image whose winner no selection draw gets right, and none of 20 fresh
        draws. If it is right with probability p, that happens with probability (1 - p)^20 or less:
        what p could still fall by raises the accuracy by at most 0.018.
        """
        if eps in (0, math.inf):
            return torch.arange(len(best.left) if eps else 0, device=best.left.device)
        rows = (~best.left & (best.rank < 0.5)).nonzero()[:, 0]
        if len(rows):
            predictions, _ = judge.draws(best.point[rows], LEAVE, LEAVING_DRAWS, rows)
            best.left[rows] = (predictions != judge.y[rows, None]).all(dim=1)
        return (~best.left).nonzero()[:, 0]

    def _nearer(
        self, best: _Winners, x: Tensor, rows: Tensor, found: Tensor, rank: Tensor
    ) -> Tensor:
        """Say which candidates are broken and nearer than the winner, or than no broken one."""
        norm = self.task.norm
        mine = distances(x[rows], found)[norm].to(x.device)
        its = distances(x[rows], best.point[rows])[norm].to(x.device)
        was = broken(best.rank[rows], self.selection)
        return broken(rank, self.selection) & (~was | (mine < its))
