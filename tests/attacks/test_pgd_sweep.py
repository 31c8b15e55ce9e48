"""A sweep over budgets: one search an image, and no weaker than a search at each budget."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from bench.attacking import attack
from bench.context import Context
from bench.noise import bound
from bench.registry import ATTACKS

SHAPE = (1, 2, 4)
GRID = [0.01, 0.02, 0.04, 0.08, 0.16]
Digits = tuple[Tensor, Tensor]


class Ramp(nn.Module):
    """Class 1 where the mean pixel is above 0.5: the L-infinity distance is |mean - 0.5|."""

    def forward(self, x: Tensor) -> Tensor:
        u = x.flatten(1).mean(dim=1) - 0.5
        return torch.stack([torch.zeros_like(u), u], dim=1)


@pytest.mark.parametrize("restarts", [1, 3])
@pytest.mark.parametrize("early_stop", [True, False])
def test_each_image_breaks_at_its_own_budget(restarts: int, early_stop: bool) -> None:
    reach = torch.tensor([0.005, 0.015, 0.03, 0.05, 0.1, 0.3])
    x = (0.5 + reach)[:, None, None, None].expand(-1, *SHAPE)
    out = attack("pgd-linf", Ramp(), x, [1] * 6, eps=GRID, restarts=restarts, early_stop=early_stop)
    wanted = reach < torch.tensor(GRID)[:, None]
    assert torch.equal(out.success, wanted)
    assert (out.distance <= torch.tensor(GRID, dtype=torch.float64)[:, None] * (1 + 1e-6)).all()


def test_one_full_search_an_image() -> None:
    reach = torch.tensor([0.005, 0.015, 0.03, 0.05, 0.1, 0.3])
    x = (0.5 + reach)[:, None, None, None].expand(-1, *SHAPE)
    out = attack("pgd-linf", Ramp(), x, [1] * 6, eps=GRID, steps=20)
    # Five searches of 21 looks each would be up to 105; breaking takes a few looks at each budget.
    assert out.queries[-1] == 21
    assert out.queries[0] < 10
    assert out.queries.max() < 21 + 15


@pytest.mark.parametrize(
    ("name", "eps"), [("pgd-linf", [0.03, 0.05, 0.1]), ("pgd-l2", [0.3, 0.5, 0.8])]
)
def test_as_strong_as_a_search_at_each_budget(
    trained_net: nn.Module, digits: Digits, name: str, eps: list[float]
) -> None:
    x, y = digits[0][1000:1256], digits[1][1000:1256]
    sweep = attack(name, trained_net, x, y, eps=eps, micro_batch=256)
    for i, budget in enumerate(eps):
        alone = attack(name, trained_net, x, y, eps=budget, micro_batch=256)
        # Other random starts turn 1 image in 100; a weaker search would lose more.
        assert int(sweep.success[i].sum()) >= int(alone.success.sum()) - 3


def test_a_point_in_a_smaller_ball_tells_that_a_search_was_not_good_enough() -> None:
    class Hole(nn.Module):
        """Wrong in a small hole beside the image, which the slope leads away from."""

        def forward(self, x: Tensor) -> Tensor:
            u = x.flatten(1)[:, 0] - 0.5
            inside = (u + 0.015).abs() < 0.004
            margin = torch.where(inside, -1 + 0 * u, 0.2 - u)
            return torch.stack([torch.zeros_like(u), margin], dim=1)

    x = torch.full((1, *SHAPE), 0.5)
    out = attack("pgd-linf", Hole(), x, [1], eps=GRID, restarts=40)
    broken = out.success[:, 0].tolist()
    assert broken == sorted(broken)
    assert broken[1]  # within 0.02, by a restart


def test_momentum_and_losses_sweep_too(trained_net: nn.Module, digits: Digits) -> None:
    x, y = digits[0][1000:1064], digits[1][1000:1064]
    plain = attack("pgd-linf", trained_net, x, y, eps=[0.05, 0.1])
    for options in ({"momentum": 0.9}, {"loss": "margin"}, {"loss": "dlr"}):
        other = attack("pgd-linf", trained_net, x, y, eps=[0.05, 0.1], **options)
        gap = other.success.sum(dim=1) - plain.success.sum(dim=1)
        assert (gap.abs() <= 6).all()


@pytest.mark.parametrize("name", ["pgd-linf", "pgd-l2"])
def test_out_of_time_gives_the_best_so_far(
    trained_net: nn.Module, test_digits: Digits, name: str
) -> None:
    x, y = test_digits
    passes = 0

    def out_of_time() -> bool:
        nonlocal passes
        passes += 1
        return passes > 3

    eps = (0.05, 0.1) if name == "pgd-linf" else (0.5, 1.0)
    for early_stop in (True, False):
        passes = 0
        context = Context(noise=bound(0, "t", range(len(x))), out_of_time=out_of_time)
        found = ATTACKS[name](eps=eps[-1], restarts=5, early_stop=early_stop).sweep(
            trained_net, x, y, context, eps
        )
        assert found.shape == (2, *x.shape)
        right = trained_net(x).argmax(dim=1) == y
        broken = trained_net(found[1]).argmax(dim=1) != y
        assert 0 < int((broken & right).sum()) < int(right.sum())


@pytest.mark.parametrize("eps", [[0.06], [0.01, 0.06]])
@pytest.mark.parametrize("early_stop", [True, False])
def test_one_run_has_both_losses(eps: list[float], early_stop: bool) -> None:
    class Sleeper(nn.Module):
        """The margin is flat until class 2, far behind, has overtaken class 1."""

        def forward(self, x: Tensor) -> Tensor:
            u = x.flatten(1).mean(dim=1) - 0.5
            return torch.stack([1 + 0 * u, 0.5 + 0 * u, 60 * u - 2], dim=1)

    class Decoys(nn.Module):
        """Fifty classes that never win fall where the one rises that does."""

        def forward(self, x: Tensor) -> Tensor:
            u = (x.flatten(1).mean(dim=1) - 0.5)[:, None]
            decoys = (-0.05 - u).expand(-1, 50)
            return torch.cat([0.04 + 0 * u, 1.1 * u, decoys - 2 * u.clamp(max=0).abs()], dim=1)

    x = torch.full((1, 1, 8, 8), 0.5)
    broken = {
        (type(model).__name__, loss): bool(
            attack("pgd-linf", model, x, [0], eps=eps, loss=loss, early_stop=early_stop).success[-1]
        )
        for model in (Sleeper(), Decoys())
        for loss in ("ce", "margin", "both")
    }
    assert broken[("Sleeper", "ce")]
    assert not broken[("Sleeper", "margin")]
    assert not broken[("Decoys", "ce")]
    assert broken[("Decoys", "margin")]
    assert broken[("Sleeper", "both")]
    assert broken[("Decoys", "both")]


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_a_much_larger_budget_beside_it_hides_nothing(norm: str) -> None:
    """Steps of the large ball go over the waves that a small ball's climb."""

    class Waves(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            wave = torch.sin(24 * torch.pi * x).flatten(1).mean(dim=1)
            return torch.stack([0.4 - wave, wave - 0.4], dim=1)

    noise = torch.Generator().manual_seed(0)
    x = torch.rand(40, 1, 8, 8, generator=noise)
    y = torch.zeros(40, dtype=torch.int64)
    small, large = (0.02, 0.3) if norm == "linf" else (0.16, 2.4)
    alone = attack(f"pgd-{norm}", Waves(), x, y, eps=small).success
    beside = attack(f"pgd-{norm}", Waves(), x, y, eps=[small, large]).success
    assert alone.double().mean() > 0.5
    assert beside[0].double().mean() >= alone.double().mean() - 0.05
