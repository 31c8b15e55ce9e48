"""The smallest budget of a grid at which each image breaks, in as few steps as it can be told.

What breaks at one budget is broken at every larger one. What withstands a full search at one
budget counts as withstanding it at those down to half of it too, for their balls lie inside. So an
image needs one full search, just below the budget at which it breaks; where that is, is guessed
from the slope of its loss. Where that slope says that a smaller budget would have done, the search
in the large ball may have gone over what there is in the small one, with steps as long as the small
ball is wide: then the small one is searched too. All images are under way at once, each at its own
budget.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from bench.noise import Noise

from .descent import Best, Group
from .full import Search
from .geometry import Ball, ball, distance, per_image, slope
from .survivors import Survivors, places

# The first budget to try lies beyond where the slope says that the image breaks. One too large
# costs a few steps, since what breaks does so quickly; one too small, a full search for nothing.
_AHEAD = 2
_WITHIN = 0.5  # a search speaks for balls of at least this part of its own
_SEEMS_DONE, _DONE, _ALL_DONE = 1, 2, 3  # the first two with a budget, the last with all


@dataclass
class Bracket:
    """What is known of every image; budgets are places in the grid.

    Attributes:
        open: ``(B,)``; the largest budget that was withstood, or -1.
        sure: ``(B,)``; the smallest budget that a search so far speaks for.
        least: ``(B,)``; the smallest that one has to speak for.
        broken: ``(B,)``; the smallest budget that breaks it, or the size of the grid.
        point: ``(B, C, H, W)``; the one with the smallest margin at the budget ``open``.
        margin: ``(B,)``; its margin.
        breaking: ``(B, C, H, W)``; the point that breaks it.
        passes: ``(B,)``; forward passes spent.
    """

    open: Tensor
    sure: Tensor
    least: Tensor
    broken: Tensor
    point: Tensor
    margin: Tensor
    breaking: Tensor
    passes: Tensor

    @property
    def closed(self) -> Tensor:
        """Whether each budget is known to break or to be withstood, ``(B,)``."""
        least = torch.minimum(self.least, self.broken)
        return (self.broken - self.open <= 1) & (torch.minimum(self.sure, self.broken) <= least)

    @property
    def next(self) -> Tensor:
        """The budget to try next, ``(B,)``: below what breaks, or else below what is sure."""
        below = torch.where(self.broken - self.open > 1, self.broken, self.sure)
        return (below - 1).clamp(min=0)

    def select(self, rows: Tensor) -> Bracket:
        """Return what is known of some images."""
        return Bracket(*(getattr(self, f.name)[rows] for f in fields(self)))

    def put(self, rows: Tensor, new: Bracket) -> None:
        """Take over what is known anew of some images."""
        for f in fields(self):
            getattr(self, f.name)[rows] = getattr(new, f.name)

    def where(self, mask: Tensor, other: Bracket) -> Bracket:
        """Return this bracket where the mask ``(B,)`` is true, else the other."""
        mine = ((getattr(self, f.name), getattr(other, f.name)) for f in fields(self))
        return Bracket(*(torch.where(per_image(mask, a), a, b) for a, b in mine))

    def after(self, trial: Tensor, reach: Tensor, spoken: Tensor, found: Best) -> Bracket:
        """Return what is known after a search at the budgets ``trial``.

        ``reach`` is the smallest budget whose ball has the point found, ``spoken`` the smallest
        that a search speaks for which finds nothing.
        """
        reach = torch.minimum(reach, trial)
        # A point in a ball that withstood a search says that the search was not good enough.
        poor = reach <= self.open
        broke = replace(
            self,
            open=torch.where(poor, -1, self.open),
            sure=torch.where(poor, reach, self.sure),
            broken=reach,
            breaking=found.point,
        )
        withstood = replace(self, sure=torch.minimum(self.sure, spoken))
        above = replace(withstood, open=trial, point=found.point, margin=found.margin)
        withstood = above.where(trial > self.open, withstood)
        new = broke.where(found.broken, withstood)
        return replace(new, passes=self.passes + found.passes)


@dataclass(frozen=True)
class GridSearch(Search):
    """The points that break the images at the smallest budgets; its walk stops early."""

    def __call__(
        self, x: Tensor, y: Tensor, noise: Noise, starts: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return points at each budget, and passes spent; starting points are not used."""
        known = self._first(x, y, noise.at("restart", 0))
        for r in range(1, self.restarts):
            rows = (known.open >= 0).nonzero()[:, 0]
            if len(rows) == 0 or self.walk.out_of_time():
                break
            local = noise.select(rows).at("restart", r)
            known.put(rows, self._again(known.select(rows), x[rows], y[rows], local))
        last = known.broken.clamp(max=len(self.eps) - 1)
        breaking = self.ball(x, last).project(known.breaking)
        points = []
        for i in range(len(self.eps)):
            inside = self.ball(x, torch.full_like(y, i)).project(known.point)
            points.append(torch.where(per_image(known.broken <= i, x), breaking, inside))
        return torch.stack(points), known.passes

    def _first(self, x: Tensor, y: Tensor, noise: Noise) -> Bracket:
        """Return the result of the first search: a look at the smallest ball tells where to go."""
        start = x
        if self.random_start:
            start = self.ball(x, torch.zeros_like(y)).sample(noise.at("start"))
        best, every = Best.of(x), torch.arange(len(x), device=x.device)
        seen = self.walk.look(best, every, start, y, noise, 0)
        uphill, best = seen.gradient(), self.walk.checked(best, y, noise)
        # Log-odds against several classes may be even where no single one has won.
        gap = torch.where(seen.loss < 0, -seen.loss.detach(), best.margin)
        reach = gap / slope(self.norm, uphill)
        known = Bracket(
            open=torch.full_like(y, -1),
            sure=torch.full_like(y, len(self.eps)),
            least=self.place(reach),
            broken=torch.where(best.broken, 0, len(self.eps)),
            point=best.point,
            margin=best.margin,
            breaking=best.point.clone(),
            passes=best.passes,
        )
        return self._close(known, x, y, noise, start, self.place(_AHEAD * reach), uphill)

    def _again(self, old: Bracket, x: Tensor, y: Tensor, noise: Noise) -> Bracket:
        """Return the result of another search, which starts just below what is broken."""
        trial = old.broken - 1
        start = self.ball(x, trial).sample(noise.at("start"))
        known = old.select(torch.arange(len(x), device=x.device))
        known.open, known.sure = torch.full_like(y, -1), torch.full_like(y, len(self.eps))
        known = self._close(known, x, y, noise, start, trial)
        better = (known.broken < old.broken) | (known.margin < old.margin)
        return replace(known.where(better, old), passes=known.passes)

    def _close(
        self,
        known: Bracket,
        x: Tensor,
        y: Tensor,
        noise: Noise,
        start: Tensor,
        trial: Tensor,
        uphill: Tensor | None = None,
    ) -> Bracket:
        """Search on until every bracket is closed; ``uphill`` are the gradients at the starts."""
        rows = (~known.closed).nonzero()[:, 0]
        if len(rows) == 0:
            return known
        flight = self._take_off(known, x, y, noise, start, trial, rows)
        if uphill is not None:  # the starts were seen
            seen = Best(known.point, known.margin, known.broken == 0, torch.zeros_like(y))
            flight.best.put(torch.arange(len(rows), device=x.device), seen.select(rows))
            flight.group.move(uphill[rows], self.walk.momentum)
            flight.looks += 1
        survivors = Survivors()
        while True:
            group = flight.group
            every = torch.arange(len(group.rows), device=x.device)
            idle = flight.state() > 0
            shown = self.walk.look(
                flight.best, every, group.point, group.y, group.noise, flight.looks, idle
            )
            flight.looks += 1
            if self.walk.out_of_time():
                flight.check(every)
                flight.land(every)
                return known
            answer = survivors.after(flight.state())
            group.move(shown.gradient(), self.walk.momentum)
            if answer is not None and self.walk.rough:
                flight.check(places(answer == _SEEMS_DONE, x.device))
                if x.device.type == "cpu":
                    answer = flight.state()
            if answer is not None:
                flight.land(places(answer == _DONE, x.device))
                if x.device.type == "cpu":  # where the new state is known at once
                    answer = flight.state()
                if bool((answer == _ALL_DONE).all()):
                    return known
                flight.select(places(answer != _ALL_DONE, x.device))

    def _take_off(
        self,
        known: Bracket,
        x: Tensor,
        y: Tensor,
        noise: Noise,
        start: Tensor,
        trial: Tensor,
        rows: Tensor,
    ) -> _Flight:
        """Send some images to the budgets ``trial``."""
        trial, room = trial[rows], self.ball(x[rows], trial[rows])
        group = Group(
            rows, room.project(start[rows]), y[rows], room, self.step(trial), noise.select(rows)
        )
        looks = torch.zeros_like(trial)
        return _Flight(self, known, x, group, Best.of(x[rows]), trial, looks, looks > 0)

    def ball(self, x: Tensor, place: Tensor) -> Ball:
        """Return the balls around images at some places of the grid."""
        return ball(self.norm, x, self.radius(place))

    def radius(self, place: Tensor) -> Tensor:
        """Return the budgets at some places of the grid, ``(B,)`` float32."""
        return torch.tensor(self.eps, device=place.device)[place]

    def step(self, place: Tensor) -> Tensor:
        """Return the lengths of a step at some places of the grid, ``(B,)`` float32."""
        return torch.tensor(self.sizes, device=place.device)[place]

    def place(self, radius: Tensor) -> Tensor:
        """Return the place of the smallest budget of at least a radius; the last where unknown."""
        known = torch.nan_to_num(radius, nan=torch.inf)
        grid = torch.tensor(self.eps, device=radius.device)
        return torch.searchsorted(grid, known).clamp(max=len(self.eps) - 1)


@dataclass
class _Flight:
    """Images under way, each at a budget of its own; the last fields have a row for each.

    Attributes:
        search: The grid, and how to walk.
        known: What is known of all images.
        x: All clean images.
        group: Where the images are and may go.
        best: What was found at the budgets that are being tried.
        trial: Places of those budgets.
        looks: How many points were seen there.
        checked: Whether what was found is known to hold in float32.
    """

    search: GridSearch
    known: Bracket
    x: Tensor
    group: Group
    best: Best
    trial: Tensor
    looks: Tensor
    checked: Tensor

    def state(self) -> Tensor:
        """Return whether each image is under way, or done with its budget, or with all."""
        done = torch.where(self.checked | (not self.search.walk.rough), _DONE, _SEEMS_DONE)
        done = done * (self.best.broken | self.over())
        return torch.where(self.known.closed[self.group.rows], _ALL_DONE, done)

    def over(self) -> Tensor:
        """Return whether each image has taken all steps at its budget, ``(b,)``."""
        return self.looks > self.search.walk.steps

    def check(self, at: Tensor) -> None:
        """Show what was found of some images to the model in float32."""
        y, noise = self.group.y[at], self.group.noise.select(at)
        exact = self.search.walk.checked(self.best.select(at), y, noise)
        self.best.put(at, exact)
        # What does not hold walks on, unless its steps are used up.
        self.checked[at] = exact.broken | self.over()[at]

    def select(self, keep: Tensor) -> None:
        """Go on with some of the images."""
        self.group, self.best = self.group.select(keep), self.best.select(keep)
        self.trial, self.looks = self.trial[keep], self.looks[keep]
        self.checked = self.checked[keep]

    def land(self, at: Tensor) -> None:
        """Take down what was found of some of the images, and send them to their next budgets."""
        rows, found = self.group.rows[at], self.best.select(at)
        x = self.x[rows]
        reach = self.search.place(distance(self.search.norm, found.point - x))
        spoken = self.search.place(_WITHIN * self.search.radius(self.trial[at]))
        now = self.known.select(rows).after(self.trial[at], reach, spoken, found)
        self.known.put(rows, now)
        trial = now.next
        room = self.search.ball(x, trial)
        start = torch.where(per_image(found.broken, x), now.breaking, now.point)
        self.group.put(at, room.project(start), room, self.search.step(trial))
        self.trial[at], self.looks[at], self.checked[at] = trial, 0, False
        self.best.put(at, Best.of(x))
