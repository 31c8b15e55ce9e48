"""What every registered score must keep to."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from bench.metrics import auroc
from bench.registry import SCORES
from bench.tasks.scores import needs_of
from tests.scores.calling import values_of

MODEL_SCORES = [e.name for e in SCORES.entries() if not e.facts.get("trivial")]
TRIVIAL_SCORES = [e.name for e in SCORES.entries() if e.facts.get("trivial")]
SIGMA = 1.0  # steps of SGLD, 1/4 of the gradient, stay small


class Mixture(nn.Module):
    """Gaussians of one width at two images: its logits are log p(x, y) up to a constant."""

    means: Tensor

    def __init__(self) -> None:
        super().__init__()
        means = torch.zeros(2, 16)
        means[0, :4], means[1, 4:8] = 1.0, 1.0
        self.register_buffer("means", means)

    def forward(self, x: Tensor) -> Tensor:
        return -(x.flatten(1)[:, None] - self.means).square().sum(dim=2) / (2 * SIGMA**2)


class Matched(Mixture):
    """A classifier with features: how far an image matches each mean, where it does."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(2, 2)
        nn.init.eye_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.relu(x.flatten(1) @ self.means.T - 3))
        return logits


def toy(name: str) -> nn.Module:
    """Return a model that knows what is inside, with what the score needs."""
    return Matched() if "features" in needs_of(name) else Mixture()


def inside(seed: int = 0) -> Tensor:
    """Return images near the two means."""
    noise = torch.randn(8, 16, generator=torch.Generator().manual_seed(seed))
    return (Mixture().means.repeat(4, 1) + 0.01 * noise).view(8, 1, 4, 4)


def outside() -> Tensor:
    """Return images as far from one mean as from the other, and far from both."""
    x = torch.full((8, 16), 0.5)
    x[:, 8:] = torch.linspace(0.6, 1.0, 8)[:, None]
    return x.view(8, 1, 4, 4)


TRAIN = inside(seed=1)


@pytest.mark.parametrize("name", list(SCORES))
def test_one_float64_an_image_whatever_else_is_in_the_batch(name: str) -> None:
    x = torch.cat([inside(), outside()])
    before = x.clone()
    values = values_of(name, toy(name), x, TRAIN)
    assert values.shape == (16,)
    assert values.dtype == torch.float64
    assert not values.requires_grad
    assert torch.equal(x, before)
    ids = list(range(16))
    for part in (slice(0, 4), slice(9, 10)):
        alone = values_of(name, toy(name), x[part], TRAIN, ids[part])
        assert torch.allclose(alone, values[part], rtol=1e-5, atol=1e-6)
    backwards = values_of(name, toy(name), x.flip(0), TRAIN, ids[::-1])
    assert torch.allclose(backwards.flip(0), values, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", MODEL_SCORES)
def test_higher_near_the_modes_of_a_known_density(name: str) -> None:
    near, far = (values_of(name, toy(name), x, TRAIN) for x in (inside(), outside()))
    assert float(near.min()) > float(far.max())


@pytest.mark.parametrize("name", list(SCORES))
def test_turned_around_it_ranks_the_other_way(name: str) -> None:
    x = torch.cat([inside(), outside(), inside()[:3]]).clamp(0, 1)  # the last are ties
    ids = [*range(16), *range(3)]
    values = values_of(name, toy(name), x, TRAIN, ids).numpy()
    one, other = values[:10], values[10:]
    assert auroc(one, other) + auroc(-one, -other) == 1.0


def linear(seed: int) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 3)).eval()


@pytest.mark.parametrize("name", MODEL_SCORES)
def test_a_score_of_a_model_depends_on_the_model(name: str) -> None:
    one, other = (values_of(name, linear(seed), inside(), TRAIN) for seed in (0, 1))
    assert ((one - other).abs() > 1e-3).all()


@pytest.mark.parametrize("name", TRIVIAL_SCORES)
def test_a_trivial_score_asks_no_model(name: str) -> None:
    x = torch.cat([inside(), outside()]).clamp(0, 1)
    values = SCORES[name](None, x)
    assert torch.equal(values, SCORES[name](Mixture(), x))
    assert len(values.unique()) > 1


@pytest.mark.parametrize("name", MODEL_SCORES)
def test_weights_keep_their_gradients(name: str) -> None:
    net = linear(0)
    weight, bias = net.parameters()
    weight.grad = torch.ones_like(weight)
    values_of(name, net, inside(), TRAIN)
    assert torch.equal(weight.grad, torch.ones_like(weight))
    assert bias.grad is None
