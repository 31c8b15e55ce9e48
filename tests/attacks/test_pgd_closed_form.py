"""PGD against what geometry says of linear models."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bench.attacking import attack
from bench.context import Context
from bench.noise import bound
from bench.registry import ATTACKS

SHAPE = (2, 3, 3)


class Linear(nn.Module):
    """Logits (0, scale * (w.x + b)); class 1 where w.x + b > 0."""

    def __init__(self, w: Tensor, b: float, scale: float = 1.0) -> None:
        super().__init__()
        self.w, self.b, self.scale = nn.Parameter(w), b, scale

    def value(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.w + self.b

    def forward(self, x: Tensor) -> Tensor:
        value = self.scale * self.value(x)
        return torch.stack([torch.zeros_like(value), value], dim=1)


@pytest.fixture
def linear() -> Linear:
    w = torch.randn(18, generator=torch.Generator().manual_seed(3))
    return Linear(w, float(-0.5 * w.sum()) + 0.3)


@pytest.fixture
def inner() -> Tensor:
    """Images so far from 0 and 1 that the box does not bind."""
    return 0.4 + 0.2 * torch.rand(5, *SHAPE, generator=torch.Generator().manual_seed(4))


@pytest.mark.parametrize(("name", "dual"), [("pgd-linf", 1), ("pgd-l2", 2)])
@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}, {"loss": "margin"}])
def test_breaks_exactly_beyond_the_geometric_distance(
    linear: Linear, inner: Tensor, name: str, dual: int, options: dict[str, Any]
) -> None:
    value = linear.value(inner).detach()
    y = (value > 0).long()
    reach = (value.abs() / linear.w.detach().norm(p=dual)).double()
    for image, label, distance in zip(inner, y, reach, strict=True):
        eps = [float(distance) * 0.999, float(distance) * 1.001]
        out = attack(name, linear, image[None], label[None], eps=eps, steps=60, **options)
        assert out.success[:, 0].tolist() == [False, True]
        assert eps[0] < out.distance[1, 0] <= eps[1] * (1 + 1e-6)


@pytest.mark.parametrize("name", ["pgd-linf", "pgd-l2"])
@pytest.mark.parametrize("loss", ["ce", "margin"])
@pytest.mark.parametrize("scale", [1e-30, 1e4])
def test_tiny_and_saturated_gradients_get_full_steps(
    inner: Tensor, name: str, loss: str, scale: float
) -> None:
    # At 1e4 the softmax is exactly 0 or 1 in float32, and plain cross-entropy has no gradient.
    w = torch.linspace(-1, 1.5, 18)
    model = Linear(w, float(-0.5 * w.sum()) - 0.4, scale)
    y = (model.value(inner) > 0).long()
    eps = float((model.value(inner).abs().max() / w.norm(p=1 if "linf" in name else 2)).detach())
    out = attack(name, model, inner, y, eps=eps * 1.01, steps=60, loss=loss)
    assert out.success.all()


def test_the_box_binds(linear: Linear) -> None:
    # Pixels at 0 and 1: half of them cannot move the way their weight asks for.
    x = (torch.rand(6, *SHAPE, generator=torch.Generator().manual_seed(0)) > 0.5).float()
    w = linear.w.detach().reshape(SHAPE)
    y = (linear.value(x) > 0).long()
    away = torch.where(y == 1, -1.0, 1.0)[:, None, None, None] * w.sign()
    best = linear.value((x + 0.3 * away).clamp(0, 1)).detach() * torch.where(y == 1, 1, -1)
    out = attack("pgd-linf", linear, x, y, eps=0.3, early_stop=False)
    assert out.margin.numpy() == pytest.approx(best.numpy(), abs=1e-4)


@pytest.mark.parametrize("name", ["pgd-linf", "pgd-l2"])
def test_a_zero_gradient_gives_a_random_direction(name: str) -> None:
    class Flat(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.tensor([[2.0, 0.0]]).expand(len(x), -1) + 0 * x.sum()

    class Constant(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.tensor([[2.0, 0.0]]).repeat(len(x), 1)

    x = torch.full((3, *SHAPE), 0.5)
    for model in (Flat(), Constant()):
        options = {"random_start": False, "early_stop": False, "steps": 3}
        context = Context(noise=bound(0, "t", [0, 1, 2]))
        candidates = ATTACKS[name](eps=0.1, **options)(model, x, torch.zeros(3).long(), context)
        assert candidates.isfinite().all()
        out = attack(name, model, x, [0, 0, 0], eps=0.1)
        assert not out.success.any()
        assert out.x_adv.isfinite().all()
        assert (out.distance > 0.02).all()  # it went somewhere, from its random start
        assert not torch.equal(out.x_adv[0], out.x_adv[1])


@pytest.mark.parametrize("name", ["pgd-linf", "pgd-l2"])
def test_a_flat_start_is_left_in_a_random_direction(name: str) -> None:
    class Plateau(nn.Module):
        """Flat at the clean image, with class 1 beyond a distance."""

        def forward(self, x: Tensor) -> Tensor:
            away = torch.relu((x - 0.5).square().flatten(1).sum(dim=1) - 1e-4)
            return torch.stack([torch.full_like(away, 1e-3), away], dim=1)

    x = torch.full((2, *SHAPE), 0.5)
    out = attack(name, Plateau(), x, [0, 0], eps=0.2, random_start=False)
    assert out.success.all()


@pytest.mark.parametrize("loss", ["ce", "dlr"])
def test_nan_gradients_do_no_harm(loss: str) -> None:
    class Root(nn.Module):
        """The gradient of sqrt(0) times zero is NaN, while the logits are finite."""

        def forward(self, x: Tensor) -> Tensor:
            nan = (0 * x.flatten(1).sum(dim=1)).sqrt()
            return torch.stack([nan + 1, nan, nan - 1], dim=1)

    out = attack("pgd-linf", Root(), torch.rand(2, *SHAPE), [0, 0], eps=0.1, loss=loss)
    assert out.x_adv.isfinite().all()


def test_momentum_runs_past_a_local_optimum() -> None:
    class Ridge(nn.Module):
        """The loss of pixel u has a peak at 0.52 and, beyond 0.54, a far higher plateau."""

        def forward(self, x: Tensor) -> Tensor:
            u = x.flatten(1)[:, 0]
            loss = torch.where(u > 0.54, 1 + 0 * u, -(u - 0.52).abs())
            return torch.stack([torch.full_like(u, 0.5), loss], dim=1)

    x, y = torch.full((1, *SHAPE), 0.5), torch.zeros(1, dtype=torch.long)
    options = {"step_size": 0.015, "steps": 3, "random_start": False, "loss": "margin"}
    found = {
        momentum: ATTACKS["pgd-linf"](eps=0.2, momentum=momentum, **options)(
            Ridge(), x, y, Context(noise=bound(0, "t", [0]))
        )
        for momentum in (0.0, 0.9)
    }
    # By hand, in gradients of size 1: plain steps are +, +, -: 0.515, 0.53, 0.515. With 0.9 the
    # speeds are 1, 1.9 and 0.9 * 1.9 - 1 = 0.71, so the third step is + as well: 0.545.
    assert float(found[0.0][0, 0, 0, 0]) == pytest.approx(0.515, abs=1e-5)
    assert float(found[0.9][0, 0, 0, 0]) == pytest.approx(0.545, abs=1e-5)
    # The best point is kept, not the last one: two plain steps end at 0.53.
    two = ATTACKS["pgd-linf"](eps=0.2, **{**options, "steps": 2})
    best = two(Ridge(), x, y, Context(noise=bound(0, "t", [0])))
    assert float(best[0, 0, 0, 0]) == pytest.approx(0.515, abs=1e-5)
