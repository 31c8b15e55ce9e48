"""Fewer and fewer changed entries: what a misclassified image does not need goes back in groups.

Delta debugging (Zeller and Hildebrandt 2002, figure 4, its reduction to complements) on many images
at once, with rounds: a search that has ended goes on from its end and as many new changes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .decisions import Decisions
from .starting import far_end

_WHOLE, _GROUPS, _ENDED = range(3)  # what is asked next
_AGREED = 3  # sets of votes of a stochastic model that send a group back
_STATE = (
    *("_rows", "_clean", "_best", "_count", "_next", "_first", "_size", "_agreed"),
    *("_order", "_alive", "_value", "_many"),
)


class Groups:
    """The searches for the images of a batch; points are flat, a row an image.

    Every image goes its own way: one that has ended a round begins the next while others are busy.
    The entries that take part in a round are the first of ``order``, in random order; of these
    ``alive`` are still changed, and the next group is ``size`` of them from the one numbered
    ``first``. It goes back if what is then left is misclassified; of a stochastic model, if three
    sets of votes in a row say so.

    Args:
        decide: Answers.
        x: Clean images, ``(B, C, H, W)``.
        start: Misclassified images.
    """

    def __init__(self, decide: Decisions, x: Tensor, start: Tensor) -> None:
        self._decide, self._shape = decide, x.shape[1:]
        self._noise = decide.noise.at("rounds")
        self._found = start.flatten(1).clone()
        self._rows = torch.arange(len(x), device=x.device)
        self._clean, self._best = x.flatten(1), start.flatten(1)
        self._count = (self._best != self._clean).sum(dim=1)  # changed entries of the best
        self._next = torch.full_like(self._count, _ENDED)
        self._first, self._size = torch.zeros_like(self._count), torch.ones_like(self._count)
        self._agreed = torch.zeros_like(self._count)  # answers that this group may go back
        self._order = torch.zeros_like(self._clean, dtype=torch.int64)
        self._alive = torch.zeros_like(self._order, dtype=torch.bool)
        self._value = torch.zeros_like(self._clean)
        self._many = torch.zeros_like(self._count)  # entries that take part
        self._width = 0  # the most of them that an image has

    def turn_over(self, k: int) -> bool:
        """Begin new rounds where one has ended; say whether there is anything left to search."""
        keep = (self._count > 1).nonzero()[:, 0]
        if len(keep) < len(self._rows):
            self._leave(keep)
        ended = (self._next == _ENDED).nonzero()[:, 0]
        if len(ended):
            self._begin(ended, k)
        return len(keep) > 0

    def ask(self, k: int) -> None:
        """Ask one question of every image."""
        grouped = self._next == _GROUPS
        order, alive = self._order[:, : self._width], self._alive[:, : self._width]
        number = alive.cumsum(dim=1) - 1 - self._first[:, None]
        group = (number >= 0) & (number < self._size[:, None]) & grouped[:, None]
        kept = alive & ~group
        value = torch.where(kept, self._value[:, : self._width], self._clean.gather(1, order))
        point = self._clean.scatter(1, order, value)
        wrong = self._decide(point.view(-1, *self._shape), self._rows, "group", k)
        agreed = torch.where(wrong & grouped, self._agreed + 1, 0)
        back = agreed == (_AGREED if self._decide.stochastic else 1)
        self._agreed = torch.where(back, 0, agreed)
        alive &= kept | ~back[:, None]  # in place: a view
        count = alive.sum(dim=1)
        better = back & (count <= self._count)
        self._best = torch.where(better[:, None], point, self._best)
        self._count = torch.where(better, count, self._count)
        self._go_on(wrong, grouped, count)

    def finish(self) -> Tensor:
        """Return the best points, ``(B, C, H, W)``."""
        self._leave(self._rows[:0])
        return self._found.view(-1, *self._shape)

    def _go_on(self, wrong: Tensor, grouped: Tensor, count: Tensor) -> None:
        """Choose what is asked next: groups half as large when all of a size were tried."""
        first = torch.where(wrong, self._first, self._first + self._size)
        through = first >= count
        ended = through & ((self._size == 1) | (count == 0))
        half = torch.where(through, (self._size + 1) // 2, self._size)
        self._size = torch.minimum(half, (count + 1) // 2).clamp(min=1)
        self._first = torch.where(through, 0, first)
        after = torch.where(ended, _ENDED, _GROUPS)
        begun = (self._next == _WHOLE) & wrong
        self._next = torch.where(grouped, after, torch.where(begun, _GROUPS, _ENDED))

    def _begin(self, rows: Tensor, k: int) -> None:
        """Begin a round: the first from the start, a later one with as many new changes."""
        clean, best, count = self._clean[rows], self._best[rows], self._count[rows, None]
        noise = self._noise.at(k).select(self._rows[rows])
        chance = noise.at("which").uniform(clean.shape[1])
        order = torch.where(best != clean, chance, chance + 1).argsort(dim=1, stable=True)
        many = count if k == 0 else (2 * count).clamp(max=clean.shape[1])
        place = torch.arange(clean.shape[1], device=rows.device)
        value = torch.where(place < count, best.gather(1, order), far_end(clean).gather(1, order))
        chance = noise.at("order").uniform(clean.shape[1])
        mixed = torch.where(place < many, chance, chance + 1).argsort(dim=1, stable=True)
        self._order[rows], self._value[rows] = order.gather(1, mixed), value.gather(1, mixed)
        self._alive[rows], self._many[rows] = place < many, many[:, 0]
        self._width = int(self._many.max())
        self._first[rows] = 0
        self._size[rows] = (many[:, 0] + 1) // 2
        self._next[rows] = _GROUPS if k == 0 else _WHOLE

    def _leave(self, keep: Tensor) -> None:
        """Note what is found, and go on with some of the images."""
        self._found[self._rows] = self._best
        for name in _STATE:
            setattr(self, name, getattr(self, name)[keep])
