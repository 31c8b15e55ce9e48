"""What every registered attack must keep to."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor, nn

from bench.attacking import attack
from bench.attacking.verifying import distances
from bench.context import Context
from bench.noise import bound
from bench.registry import ATTACKS
from bench.types import Norm

EPS = {Norm.L0: 3.0, Norm.L2: 0.5, Norm.LINF: 8 / 255}
NAMES = list(ATTACKS)


@pytest.fixture(scope="module")
def net() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.SiLU(), nn.Flatten(), nn.Linear(8 * 36, 4)
        ).eval()


@pytest.fixture(scope="module")
def images() -> Tensor:
    x = torch.rand(64, 3, 6, 6, generator=torch.Generator().manual_seed(1))
    x[:8] = x[:8].round()  # corners of the box
    return x


def labels(net: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        logits: Tensor = net(x)
        return logits.argmax(dim=1)


@pytest.mark.parametrize("name", NAMES)
def test_entry_is_a_frozen_dataclass_with_a_norm_and_a_summary(name: str) -> None:
    entry = ATTACKS.entry(name)
    made = entry.target(eps=EPS[entry.facts["norm"]])
    assert made.norm is entry.facts["norm"]
    assert "eps" in entry.options
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.eps = 1.0
    assert entry.summary


@pytest.mark.parametrize("scale", [1e-4, 1.0, 10.0])
@pytest.mark.parametrize("name", NAMES)
def test_box_and_ball_on_the_returned_tensor(
    name: str, scale: float, net: nn.Module, images: Tensor
) -> None:
    norm = ATTACKS.entry(name).facts["norm"]
    eps = EPS[norm] * (1.0 if norm is Norm.L0 else scale)
    before = images.clone()
    made = ATTACKS[name](eps=eps)
    context = Context(noise=bound(0, "t", range(64)))
    candidates = made(net, images.clone(), labels(net, images), context)
    assert candidates.dtype == torch.float32
    assert candidates.shape == images.shape
    assert not candidates.requires_grad
    assert float(candidates.min()) >= 0
    assert float(candidates.max()) <= 1
    assert float(distances(images, candidates)[norm].max()) <= eps * (1 + 1e-6)
    assert torch.equal(images, before)


@pytest.mark.parametrize("name", NAMES)
def test_eps_zero_returns_the_input_bit_by_bit(name: str, net: nn.Module, images: Tensor) -> None:
    y = labels(net, images)
    context = Context(noise=bound(0, "t", range(64)))
    assert torch.equal(ATTACKS[name](eps=0.0)(net, images.clone(), y, context), images)
    out = attack(name, net, images, y, eps=0.0)
    assert torch.equal(out.x_adv, images)
    assert not out.success.any()
    assert int(out.queries.sum()) == 0


@pytest.mark.parametrize("name", NAMES)
def test_robust_accuracy_never_rises_with_eps(name: str, net: nn.Module, images: Tensor) -> None:
    eps = EPS[ATTACKS.entry(name).facts["norm"]]
    grid = [0.0, eps / 8, eps / 2, eps, 4 * eps]
    out = attack(name, net, images, labels(net, images), eps=grid)
    counts = out.success.sum(dim=1).tolist()
    assert counts == sorted(counts)
    assert counts[-1] > counts[0] == 0


@pytest.mark.parametrize("name", NAMES)
def test_same_seed_same_bits(name: str, net: nn.Module, images: Tensor) -> None:
    eps, y = EPS[ATTACKS.entry(name).facts["norm"]], labels(net, images)
    runs = [attack(name, net, images, y, eps=eps, seed=3) for _ in range(2)]
    assert torch.equal(runs[0].x_adv, runs[1].x_adv)
    assert torch.equal(runs[0].margin, runs[1].margin)
    assert torch.equal(runs[0].queries, runs[1].queries)


@pytest.mark.parametrize("name", NAMES)
def test_no_weight_gradient_is_left(name: str, net: nn.Module, images: Tensor) -> None:
    eps = EPS[ATTACKS.entry(name).facts["norm"]]
    context = Context(noise=bound(0, "t", range(64)))
    ATTACKS[name](eps=eps)(net, images.clone(), labels(net, images), context)
    assert all(p.grad is None for p in net.parameters())
