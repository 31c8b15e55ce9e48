"""`bench.attack` without a budget: the nearest adversarial image, and what starts do."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

import bench
from bench.context import Context
from bench.errors import InputError
from bench.types import Norm

SIDE = 0.25  # distance of the boundary below and above


class Slab(nn.Module):
    """Class 1 where the first pixel is at least 1/2 + SIDE; class 0 below."""

    def forward(self, x: Tensor) -> Tensor:
        away = x[:, 0, 0, 0] - 0.5 - SIDE
        return torch.stack([-away, away], dim=1)


@dataclass(frozen=True, kw_only=True)
class Nearest:
    """Moves the first pixel just onto the boundary, or starts from what it is given."""

    eps: float | None = None
    overshoot: float = 0.0
    minimum_norm: ClassVar[bool] = True
    norm: Norm = field(default=Norm.L2, init=False)

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor, context: Context, starts: Tensor | None = None
    ) -> Tensor:
        if starts is not None:
            return starts
        found = x.clone()
        reachable = x[:, 0, 0, 1] < 0.5  # the others are not found
        found[reachable, 0, 0, 0] = 0.5 + SIDE + self.overshoot
        return found


@dataclass(frozen=True, kw_only=True)
class Fixed:
    """Knows budgets only."""

    eps: float
    norm: Norm = field(default=Norm.L2, init=False)

    def __post_init__(self) -> None:
        assert self.eps >= 0

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, context: Context) -> Tensor:
        return x


def images() -> tuple[Tensor, Tensor]:
    x = torch.full((3, 1, 2, 2), 0.5)
    x[2, 0, 0, 1] = 1.0
    x[0, 0, 0, 1] = x[1, 0, 0, 1] = 0.0
    return x, torch.tensor([0, 1, 0])  # the second is wrong when clean


def test_the_nearest_image_is_measured_and_what_was_not_found_is_infinitely_far() -> None:
    x, y = images()
    out = bench.attack(Nearest(overshoot=1e-3), Slab(), x, y)
    assert out.eps is None
    assert out.success.tolist() == [True, True, False]
    assert out.distance.tolist() == pytest.approx([SIDE + 1e-3, 0.0, math.inf], rel=1e-5)
    assert torch.equal(out.x_adv[1:], x[1:])
    assert out.queries[1] == 0


def test_budgets_are_read_off_the_distance() -> None:
    x, y = images()
    out = bench.attack(Nearest(overshoot=1e-3), Slab(), x, y, eps=[0.3, 0.1, 0.0])
    assert out.success.tolist() == [[True, True, False], [False, True, False], [False, True, False]]
    assert torch.equal(out.x_adv[1], x)
    one = bench.attack(Nearest(overshoot=1e-3), Slab(), x, y, eps=0.3)
    assert one.success.tolist() == [True, True, False]


def test_a_point_on_the_boundary_is_moved_until_a_fresh_pass_is_wrong() -> None:
    x, y = images()
    on_it = -1e-6  # still class 0
    out = bench.attack(Nearest(overshoot=on_it), Slab(), x, y)
    assert out.success.tolist() == [True, True, False]
    assert SIDE <= float(out.distance[0]) <= SIDE * (1 + 1e-4)
    far = bench.attack(Nearest(overshoot=-0.1), Slab(), x, y)  # no rounding: plainly not found
    assert far.success.tolist() == [False, True, False]
    assert float(far.distance[0]) == math.inf


def test_starts_reach_the_attack_row_by_row() -> None:
    x, y = images()
    starts = torch.ones_like(x)
    starts[0, 0, 1, 1] = 0.5
    out = bench.attack(Nearest(), Slab(), x, y, starts=starts)
    assert torch.equal(out.x_adv[0], starts[0])
    assert torch.equal(out.x_adv[1], x[1])
    with pytest.raises(InputError, match="one starting point an image"):
        bench.attack(Nearest(), Slab(), x, y, starts=starts[:2])
    with pytest.raises(InputError, match="takes no starting points"):
        bench.attack(Fixed(eps=0.1), Slab(), x, y, eps=0.1, starts=starts)


def test_an_attack_with_budgets_only_says_so() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Compares(Fixed):
        def __post_init__(self) -> None:
            if self.eps < 0:
                raise InputError("negative")

    x, y = images()
    with pytest.raises(InputError, match="needs a budget"):
        bench.attack(Compares(eps=0.1), Slab(), x, y)
