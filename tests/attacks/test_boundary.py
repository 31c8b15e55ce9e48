"""The boundary attack: distances of closed form, what it asks, and what it returns."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import bench
from bench.noise import Noise


class Linear(nn.Module):
    """Class 1 where the mean of the entries exceeds 1/2; counts and remembers what it is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.calls.append(x.clone())
        away = x.flatten(1).mean(dim=1) - 0.5
        return torch.stack([-away, away], dim=1)


class Liar(nn.Module):
    """The linear model with a wrong answer in one draw of five, whatever the input."""

    stochastic = True

    def __init__(self) -> None:
        super().__init__()
        self.model = Linear()

    def forward(self, x: Tensor) -> Tensor:
        raise AssertionError("draws come from sample_logits")

    def sample_logits(self, x: Tensor, noise: Noise) -> Tensor:
        logits: Tensor = self.model(x)
        return torch.where(noise.uniform(1) < 0.2, -logits, logits)


def images(count: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    """Images of class 0, and how far the boundary is, which no limit of [0, 1] meets."""
    level = torch.linspace(0.30, 0.45, count)
    x = level[:, None, None, None].repeat(1, 1, 8, 8)
    return x, torch.zeros(count, dtype=torch.int64), (0.5 - level).double() * 8


def test_a_flat_boundary_is_met_at_its_distance() -> None:
    x, y, truth = images()
    out = bench.attack("boundary-l2", Linear(), x, y, steps=1500)
    assert bool(out.success.all())
    ratio = out.distance / truth
    assert float(ratio.min()) >= 1 - 1e-6
    assert float(ratio.max()) < 1.03
    few = bench.attack("boundary-l2", Linear(), x, y, steps=60).distance
    assert bool((few > out.distance).all())  # steps are worth their while


def test_the_batch_is_asked_at_once_and_the_nearest_point_seen_is_returned() -> None:
    x, y, _ = images(16)
    model = Linear()
    out = bench.attack("boundary-l2", model, x, y, steps=100, starts=torch.ones_like(x))
    assert len(model.calls) < 115
    seen = torch.full((16,), math.inf, dtype=torch.float64)
    for call in model.calls[:-1]:
        if len(call) == 16:
            wrong = call.flatten(1).mean(dim=1) > 0.5
            far = (call.double() - x.double()).flatten(1).norm(dim=1)
            seen = torch.where(wrong, torch.minimum(seen, far), seen)
    assert out.distance.tolist() == pytest.approx(seen.tolist(), rel=1e-4)
    # 100 steps and the given start.
    assert out.queries.tolist() == [101] * 16


def test_an_image_does_not_depend_on_its_batch() -> None:
    x, y, _ = images(7)
    together = bench.attack("boundary-l2", Linear(), x, y, steps=80)
    for i in (0, 3, 6):
        alone = bench.attack("boundary-l2", Linear(), x[[i]], y[[i]], steps=80, ids=[i])
        assert torch.allclose(alone.x_adv[0], together.x_adv[i], atol=1e-5)


def test_where_no_image_is_misclassified_the_clean_one_is_returned() -> None:
    class Constant(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.tensor([2.0, -1.0]).expand(len(x), 2)

    x, y, _ = images(3)
    out = bench.attack("boundary-l2", Constant(), x, y, steps=20)
    assert not out.success.any()
    assert torch.equal(out.x_adv, x)
    assert out.distance.tolist() == [math.inf] * 3


def test_lies_of_a_model_do_not_bring_the_boundary_nearer() -> None:
    x, y, truth = images(4)
    out = bench.attack("boundary-l2", Liar(), x, y, steps=300, gradients=("straight-through",))
    assert out.draws is not None
    nearest = out.distance[out.draws.broken[0]]
    assert len(nearest) >= 3
    ratio = nearest / truth[out.draws.broken[0]]
    assert float(ratio.min()) > 0.97
    assert float(ratio.max()) < 1.3
