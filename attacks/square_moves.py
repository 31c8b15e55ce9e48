"""What one query of the Square attack changes: random windows of an image, one set for each image.

Andriushchenko et al. (2020), arXiv 1912.00049: section 3.3 with algorithm 2 for L-infinity, section
3.4 with algorithm 3 for L2. Points are flat, ``(B, C, H * W)``; a move writes into them and says
how to take it back, so that a query costs no copy of the batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor

from bench.noise import Noise
from bench.types import Norm

from .geometry import ball

_TINY = torch.finfo(torch.float32).tiny


@dataclass(frozen=True)
class Change:
    """What a move wrote: which places, ``(B, C, n)``, and what stood there before."""

    places: Tensor
    before: Tensor

    def settle(self, point: Tensor, keep: Tensor) -> None:
        """Take the change back for the images that are not in ``keep``, ``(B,)``."""
        now = point.gather(2, self.places)
        point.scatter_(2, self.places, torch.where(keep[:, None, None], now, self.before))


class Moves(Protocol):
    """How points of a batch begin and change within one threat model."""

    @property
    def shape(self) -> torch.Size:
        """``(C, H, W)``."""
        ...

    @property
    def draws(self) -> int:
        """How many uniform draws a move takes for an image."""
        ...

    def side(self, share: float) -> int:
        """Return the side of a window that covers about this share of an image."""
        ...

    def start(self, noise: Noise) -> Tensor:
        """Return a random starting point of every image."""
        ...

    def move(self, point: Tensor, side: int, u: Tensor) -> Change:
        """Change every image of ``point`` in windows of that side, by the draws ``(B, draws)``."""
        ...

    def select(self, rows: Tensor) -> Moves:
        """Return the moves of some images."""
        ...


@lru_cache(maxsize=256)
def _grid(side: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return row and column of the entries of a window, ``(side * side,)`` each."""
    steps = torch.arange(side, device=device)
    return steps.repeat_interleave(side), steps.repeat(side)


@dataclass(frozen=True)
class _Windows:
    """A window in each image: its entries' rows and columns, ``(B, side * side)``."""

    rows: Tensor
    columns: Tensor
    side: int

    @classmethod
    def at(cls, u: Tensor, side: int, height: int, width: int) -> _Windows:
        """Return windows at uniform places, by two draws an image, ``(B, 2)``."""
        down, right = _grid(side, u.device)
        top = (u[:, :1] * (height - side + 1)).long()
        left = (u[:, 1:] * (width - side + 1)).long()
        return cls(top + down, left + right, side)

    def places(self, width: int, channels: int) -> Tensor:
        """Return positions in flat images, the same in every channel, ``(B, C, side * side)``."""
        return (self.rows * width + self.columns)[:, None].expand(-1, channels, -1)

    def within(self, other: _Windows) -> Tensor:
        """Say of every entry whether it lies in the other window too, ``(B, side * side)``."""
        down, right = self.rows - other.rows[:, :1], self.columns - other.columns[:, :1]
        return (down >= 0) & (down < other.side) & (right >= 0) & (right < other.side)


def _side(share: float, height: int, width: int) -> int:
    return min(max(round(math.sqrt(share * height * width)), 1), height, width)


@dataclass(frozen=True)
class LinfMoves:
    """Every pixel is at one end of its range; a window gets one end in each channel.

    Attributes:
        low: Lower ends, ``(B, C, H * W)``.
        high: Upper ends.
        shape: ``(C, H, W)``.
    """

    low: Tensor
    high: Tensor
    shape: torch.Size

    @property
    def draws(self) -> int:
        """Two for the place, one a channel for the end."""
        return 2 + self.shape[0]

    def side(self, share: float) -> int:
        """Return the side nearest to it."""
        return _side(share, *self.shape[1:])

    def start(self, noise: Noise) -> Tensor:
        """Return vertical stripes, one pixel wide."""
        channels, height, width = self.shape
        up = noise.uniform(channels, 1, width) < 0.5
        return torch.where(up.expand(-1, -1, height, -1).flatten(2), self.high, self.low)

    def move(self, point: Tensor, side: int, u: Tensor) -> Change:
        """Set a window to one end of the range a channel.

        A draw that would change nothing is turned around (the authors' code draws anew; that of
        AutoAttack spends the query): on grey images it is every second one in the end.
        """
        channels, height, width = self.shape
        places = _Windows.at(u[:, :2], side, height, width).places(width, channels)
        before, high = point.gather(2, places), self.high.gather(2, places)
        low = self.low.gather(2, places)
        up = u[:, 2:, None] < 0.5
        same = (torch.where(up, high, low) == before).all(dim=2).all(dim=1)
        point.scatter_(2, places, torch.where(up ^ same[:, None, None], high, low))
        return Change(places, before)

    def select(self, rows: Tensor) -> LinfMoves:
        """Return the moves of some images."""
        return replace(self, low=self.low[rows], high=self.high[rows])


def _bump(height: int, width: int) -> Tensor:
    """Return the paper's eta of a rectangle (equation 2), at length 1, ``(height, width)``.

    An entry at distance d from the middle (the larger of its two) is the sum of 1 / k^2 over the
    nested rectangles k > d that hold it.
    """
    down = (torch.arange(height) - height // 2).abs()
    right = (torch.arange(width) - width // 2).abs()
    ring = torch.maximum(down[:, None], right)
    rings = max(height, width) // 2 + 1
    shares = 1 / torch.arange(1, rings + 1, dtype=torch.float32).square()
    values = shares.flip(0).cumsum(0).flip(0)[ring]
    return values / values.square().sum().sqrt().clamp(min=_TINY)


@lru_cache(maxsize=256)
def _pattern(side: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return eta of a square at length 1 and its transpose: a bump up beside a bump down."""
    half = side // 2
    eta = torch.cat([_bump(half, side), -_bump(side - half, side)])
    eta = (eta / eta.square().sum().sqrt()).to(device)
    return eta, eta.T.contiguous()


@dataclass(frozen=True)
class L2Moves:
    """The length of the change is used up; a window takes over what another one had.

    Attributes:
        x: Clean images, ``(B, C, H * W)``.
        eps: Length of the change.
        shape: ``(C, H, W)``.
    """

    x: Tensor
    eps: float
    shape: torch.Size

    @property
    def draws(self) -> int:
        """Four for two places, one for the direction of the bump, one a channel for its sign."""
        return 5 + self.shape[0]

    def side(self, share: float) -> int:
        """Return an odd side of at least 3 near to it, where the image has room for one."""
        _, height, width = self.shape
        side = max(_side(share, height, width), 3) | 1
        return min(side, (min(height, width) - 1) | 1)

    def start(self, noise: Noise) -> Tensor:
        """Return a grid of 5 x 5 or so bumps, each of random direction and signs."""
        channels, height, width = self.shape
        side = max(min(height, width) // 5, 1)
        down, right = height // side, width // side
        lying, standing = _pattern(side, self.x.device)
        turned = noise.at("turn").uniform(1, down, right, 1, 1) < 0.5
        sign = (noise.at("sign").uniform(channels, down, right, 1, 1) < 0.5) * 2.0 - 1
        tiles = sign * torch.where(turned, standing, lying)
        delta = tiles.transpose(3, 4).reshape(-1, channels, down * side, right * side)
        canvas = torch.zeros_like(self.x).view(-1, *self.shape)
        top, left = (height - down * side) // 2, (width - right * side) // 2
        canvas[:, :, top : top + down * side, left : left + right * side] = delta
        canvas = canvas.flatten(2)
        length = canvas.square().sum(dim=(1, 2), keepdim=True).sqrt()
        return (self.x + canvas * (self.eps / length)).clamp(0, 1)

    def move(self, point: Tensor, side: int, u: Tensor) -> Change:
        """Empty one window, and give its length and what is unused to another one.

        The channels of the second keep their old direction, mixed with a bump of random sign; each
        gets what both windows had in it and an equal part of what is unused (algorithm 3). The code
        of AutoAttack counts the windows' length over all channels in each and scales the image back
        instead; this is the paper's, and leaves everything outside the windows as it was.
        """
        channels, height, width = self.shape
        one = _Windows.at(u[:, :2], side, height, width)
        two = _Windows.at(u[:, 2:4], side, height, width)
        places_one, places_two = one.places(width, channels), two.places(width, channels)
        before_one, before_two = point.gather(2, places_one), point.gather(2, places_two)
        clean_one, clean_two = self.x.gather(2, places_one), self.x.gather(2, places_two)
        old, lost = before_one - clean_one, before_two - clean_two
        energy = old.square().sum(dim=2, keepdim=True)
        apart = lost.square() * ~two.within(one)[:, None]
        used = (point - self.x).square().sum(dim=(1, 2))[:, None, None]
        unused = (self.eps**2 - used).clamp(min=0) / channels
        length = (energy + apart.sum(dim=2, keepdim=True) + unused).sqrt()
        new = self._bumps(side, u[:, 4:]) + old / energy.sqrt().clamp(min=_TINY)
        new = new * (length / new.square().sum(dim=2, keepdim=True).sqrt().clamp(min=_TINY))
        point.scatter_(2, places_two, clean_two)
        point.scatter_(2, places_one, (clean_one + new).clamp(0, 1))
        places = torch.cat([places_one, places_two], dim=2)
        return Change(places, torch.cat([before_one, before_two], dim=2))

    def _bumps(self, side: int, u: Tensor) -> Tensor:
        """Return bumps of random direction, and of random sign a channel, ``(B, C, side²)``."""
        lying, standing = _pattern(side, self.x.device)
        sign = (u[:, 1:, None] < 0.5) * 2.0 - 1
        return sign * torch.where(u[:, :1] < 0.5, standing.flatten(), lying.flatten())[:, None]

    def select(self, rows: Tensor) -> L2Moves:
        """Return the moves of some images."""
        return replace(self, x=self.x[rows])


def moves(norm: Norm, x: Tensor, eps: float) -> Moves:
    """Return the moves within the ball of radius ``eps`` around the images ``(B, C, H, W)``."""
    if norm is Norm.L2:  # a hair less: rounding must not lead out of the ball
        return L2Moves(x.flatten(2), eps * (1 - 1e-6), x.shape[1:])
    room = ball(norm, x, eps)
    low, high = room.project(torch.zeros_like(x)), room.project(torch.ones_like(x))
    return LinfMoves(low.flatten(2), high.flatten(2), x.shape[1:])
