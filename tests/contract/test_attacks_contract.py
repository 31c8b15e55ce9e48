"""What every registered attack must keep to."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bench.attacking.verifying import distances
from bench.context import Context
from bench.noise import bound
from bench.registry import ATTACKS
from bench.types import Norm
from tests.attacks.toys import Case, answers, cases

each = pytest.mark.parametrize("case", cases("any"), ids=str)
# Three channels: an attack that confuses the axes of an image is seen.
EPS = {Norm.L0: 12.0, Norm.L2: 0.5, Norm.LINF: 8 / 255}


@pytest.fixture(scope="module")
def net() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.SiLU(), nn.Flatten(), nn.Linear(8 * 36, 4)
        ).eval()


@pytest.fixture(scope="module")
def images() -> Tensor:
    x = torch.rand(32, 3, 6, 6, generator=torch.Generator().manual_seed(1))
    x[:8] = x[:8].round()  # corners of the box
    return x


def around(count: int) -> Context:
    return Context(noise=bound(0, "t", range(count)))


@each
def test_entry_is_a_frozen_dataclass_with_a_norm_and_a_summary(case: Case) -> None:
    entry = ATTACKS.entry(case.name)
    made = entry.target(eps=case.budget)
    assert made.norm is entry.facts["norm"]
    assert "eps" in entry.options
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.eps = 1.0
    assert entry.summary
    assert hash(made) == hash(entry.target(eps=case.budget))


@pytest.mark.parametrize("scale", [1e-4, 1.0, 10.0])
@pytest.mark.parametrize("case", cases("budget"), ids=str)
def test_box_and_ball_on_the_returned_tensor(
    case: Case, scale: float, net: nn.Module, images: Tensor
) -> None:
    eps = EPS[case.norm] * (1.0 if case.norm is Norm.L0 else scale)
    check_candidates(case, net, images, eps)


@pytest.mark.parametrize("case", cases("minimum norm"), ids=str)
def test_box_of_the_nearest_images(case: Case, net: nn.Module, images: Tensor) -> None:
    check_candidates(case, net, images, None)


def check_candidates(case: Case, net: nn.Module, x: Tensor, eps: float | None) -> None:
    before, y = x.clone(), answers(net, x)
    y[-1] = (y[-1] + 1) % 4  # one image that is wrong already
    candidates = ATTACKS[case.name](eps=eps, **case.small)(net, x.clone(), y, around(len(x)))
    assert candidates.dtype == torch.float32
    assert candidates.shape == x.shape
    assert not candidates.requires_grad
    assert float(candidates.min()) >= 0
    assert float(candidates.max()) <= 1
    if eps is not None:
        assert float(distances(x, candidates)[case.norm].max()) <= eps * (1 + 1e-6)
    assert torch.equal(x, before)


@each
def test_eps_zero_returns_the_input_bit_by_bit(case: Case, net: nn.Module, images: Tensor) -> None:
    y = answers(net, images)
    if not case.minimum_norm:
        made = ATTACKS[case.name](eps=0.0, **case.small)
        assert torch.equal(made(net, images.clone(), y, around(len(y))), images)
    out = case.run(net, images, y, eps=0.0)
    assert torch.equal(out.x_adv, images)
    assert not out.success.any()
    if not case.minimum_norm:
        assert int(out.queries.sum()) == 0


@each
def test_robust_accuracy_never_rises_with_eps(case: Case, net: nn.Module, images: Tensor) -> None:
    eps = EPS[case.norm]
    grid = [0.0, eps / 8, eps / 2, eps, 4 * eps]
    out = case.run(net, images, answers(net, images), eps=grid)
    counts = out.success.sum(dim=1).tolist()
    assert counts == sorted(counts)
    assert counts[-1] > counts[0] == 0


@each
def test_same_seed_same_bits(case: Case, net: nn.Module, images: Tensor) -> None:
    x, y = images[:16], answers(net, images[:16])

    def run(seed: int) -> list[Any]:
        out = case.run(net, x, y, seed=seed)
        return [out.x_adv.tolist(), out.margin.tolist(), out.queries.tolist()]

    assert run(3) == run(3)


@each
def test_no_weight_gradient_is_left(case: Case, net: nn.Module, images: Tensor) -> None:
    made = ATTACKS[case.name](eps=case.budget, **case.small)
    made(net, images.clone(), answers(net, images), around(len(images)))
    assert all(p.grad is None for p in net.parameters())
