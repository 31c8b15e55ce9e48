"""Pointwise attack, Schott et al. (2018), arXiv 1805.09190: as few changed entries as possible.

From a misclassified image, changed entries are put back to their clean values one after the other,
as long as the image stays misclassified (the authors' attack). What differs, and why:

- Entries go back in groups: half of what is changed, then quarters, down to single ones, each group
  once, in random order. 200 questions come about as far as theirs in 3,000.
- What is left depends on the order, so the search goes on: as many new entries, anywhere, are put
  to the far end of [0, 1], and all are tried anew. What is no larger is kept. (The authors start
  again from new noise, which finds less for as many questions.)
- Of a stochastic model a group goes back when three sets of votes agree that the rest is
  misclassified.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

from bench.context import Context
from bench.errors import InputError
from bench.registry import ATTACKS
from bench.types import Norm

from .decisions import Decisions, search_in_parts
from .groups import Groups
from .starting import FEW_ENTRIES, from_starts


@ATTACKS.register("pointwise-l0", norm=Norm.L0)
@dataclass(frozen=True, kw_only=True)
class Pointwise:
    """Put back what a misclassified image does not need, in groups; decisions only.

    L0 counts changed entries: pixels times channels.

    Attributes:
        eps: Not used: the nearest image is looked for, and measured against any budget.
        queries: Evaluations of an image after its start is found.
        bisections: Evaluations with which each entry that is left is moved towards its clean value
            (the second stage of the authors' attack, which has 10): they lower L2, not L0.
        votes: Draws of a stochastic model behind an answer; a majority decides.
    """

    eps: float | None = None
    queries: int = 500
    bisections: int = 0
    votes: int = 9
    norm: Norm = field(default=Norm.L0, init=False)
    minimum_norm: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.queries < 1 or self.votes < 1 or self.bisections < 0:
            raise InputError(
                f"{self}: expected queries and votes of at least 1, and bisections of at least 0"
            )

    def __call__(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        context: Context,
        starts: Tensor | None = None,
    ) -> Tensor:
        """Return the misclassified point with the fewest changes, or else the clean image.

        Args:
            model: Returns logits.
            x: Clean images in [0, 1], ``(B, C, H, W)``.
            y: True classes, ``(B,)``.
            context: Its noise has one row an image.
            starts: Misclassified images, ``(B, C, H, W)``; noise is tried where one is not.
        """

        def search(decide: Decisions, clean: Tensor, rows: Tensor) -> Tensor:
            near = None if starts is None else starts[rows]
            return from_starts(decide, clean, FEW_ENTRIES, near, self._search)

        return search_in_parts(model, x, y, context, self.votes, search)

    def _search(self, decide: Decisions, x: Tensor, start: Tensor) -> Tensor:
        """Return what is left of ``start``."""
        groups = Groups(decide, x, start)
        every = 1 if x.device.type == "cpu" else 8  # asking a GPU makes it wait
        for k in range(self.queries):
            if decide.out_of_time() or (k % every == 0 and not groups.turn_over(k)):
                break
            groups.ask(k)
        found = groups.finish()
        return _towards_clean(decide, x, found, self.bisections) if self.bisections else found


def _towards_clean(decide: Decisions, x: Tensor, found: Tensor, steps: int) -> Tensor:
    """Return the points with entry after entry as near to its clean value as will do."""
    clean, point = x.flatten(1), found.flatten(1).clone()
    changed = point != clean
    places = changed.byte().argsort(dim=1, descending=True, stable=True)
    counts = changed.sum(dim=1)
    for entry in range(int(counts.max())):
        rows = (counts > entry).nonzero()[:, 0]
        place = places[rows, entry : entry + 1]
        low, high = clean[rows].gather(1, place), point[rows].gather(1, place)
        for k in range(steps):
            if decide.out_of_time():
                break
            middle = (low + high) / 2
            tried = point[rows].scatter(1, place, middle).view(-1, *x.shape[1:])
            wrong = decide(tried, rows, "entry", entry, k)[:, None]
            low, high = torch.where(wrong, low, middle), torch.where(wrong, middle, high)
        moved = point[rows].scatter(1, place, high)
        if decide.stochastic:  # of some answers one is easily lucky
            sure = decide.surely(moved.view(-1, *x.shape[1:]), rows, "entry", entry)
            moved = torch.where(sure[:, None], moved, point[rows])
        point[rows] = moved
    return point.view_as(x)
