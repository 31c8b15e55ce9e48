"""Where the candidates for a stochastic model come from, what they cost, and which one wins."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from bench.attacking import StochasticResult, attack, attack_stochastic
from bench.attacking.judging import SELECT, Judge
from bench.attacking.sources import GRADIENTS, SOURCES
from bench.context import Context
from bench.errors import Unsupported
from bench.noise import Noise, bound
from bench.refinement import KeyedForward, Refined
from bench.types import Norm


class NoisyWeights(nn.Module):
    """Logits (0, (w + s * xi).(x - 0.5) + b): the expected margin is linear in x."""

    stochastic = True

    def __init__(self, w: Tensor, b: float, spread: float) -> None:
        super().__init__()
        self.w, self.b, self.spread = nn.Parameter(w), b, spread

    def sample_logits(self, x: Tensor, noise: Noise) -> Tensor:
        weights = self.w + self.spread * noise.normal(*x.shape[1:]).flatten(1)
        value = (weights * (x - 0.5).flatten(1)).sum(dim=1) + self.b
        return torch.stack([torch.zeros_like(value), value], dim=1)


class Mirror(nn.Module):
    """A linear classifier whose refinement mirrors an image at the middle.

    With density N(1/2, 1) a step of size 2 takes x to 1 - x: the gradient that passes straight
    through has the wrong sign.
    """

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.linspace(-1, 1, 16))

    def log_density(self, x: Tensor) -> Tensor:
        return -(x - 0.5).square().flatten(1).sum(dim=1) / 2

    def forward(self, x: Tensor) -> Tensor:
        value = (x - 0.5).flatten(1) @ self.w
        return torch.stack([torch.zeros_like(value), value], dim=1)


@pytest.fixture
def mirrored() -> tuple[Refined, Tensor, Tensor]:
    """The refined model, images that it gets right by a small margin, and their class."""
    model = Refined(Mirror(), steps=1, n_chains=2, step_size=2.0, noise_std=0.01)
    x = 0.5 - 0.02 * torch.linspace(-1, 1, 16).view(1, 1, 4, 4)
    x = x + 0.01 * torch.rand(8, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    return model, x, torch.ones(8, dtype=torch.long)


def mean(out: StochasticResult) -> float:
    return float(out.accuracies()["mean"][0][-1])


def test_the_full_gradient_wins_where_straight_through_goes_the_wrong_way(
    mirrored: tuple[Refined, Tensor, Tensor],
) -> None:
    model, x, y = mirrored
    small: dict[str, Any] = {"eps": 0.05, "steps": 5, "eot_samples": 2, "random_start": False}
    clean = attack_stochastic("pgd-linf", model, x, y, eps=0.0).accuracies()["mean"][1]
    assert clean == 1
    through, full, every = (
        attack_stochastic("pgd-linf", model, x, y, gradients=kinds, **small)
        for kinds in (GRADIENTS[:2], ("full",), GRADIENTS)
    )
    assert mean(through) > 0.9
    assert mean(full) == 0
    assert mean(every) == 0
    assert set(every.source.flatten().tolist()) <= {
        SOURCES.index("full"),
        SOURCES.index("full from static"),
    }
    assert (every.rank < 0.5).all()
    assert every.broken.all()


def test_ranks_are_those_of_the_selection_draws(mirrored: tuple[Refined, Tensor, Tensor]) -> None:
    model, x, y = mirrored
    out = attack_stochastic(
        "pgd-linf", model, x, y, eps=[0.005, 0.03], steps=3, eot_samples=2, selection_draws=4
    )
    judge = Judge(model, y, bound(0, "attack/pgd-linf", range(8)), 4, 1)
    for e in range(2):
        predictions, _ = judge.draws(out.x_adv[e], SELECT, 4)
        assert torch.equal((predictions == y[:, None]).sum(dim=1), out.rank[e].round().long())
    assert (out.rank[1] <= out.rank[0]).all()
    assert torch.equal(out.broken, out.rank.round() <= 2)


def test_costs_are_kept_by_source(mirrored: tuple[Refined, Tensor, Tensor]) -> None:
    model, x, y = mirrored
    small: dict[str, Any] = {"eps": 0.01, "steps": 3, "eot_samples": 6}
    out = attack_stochastic("pgd-linf", model, x, y, **small)
    # A pass a step and two to choose. By default a full gradient has two samples at most, and the
    # static one two restarts at least.
    expected = {"static": 2 * 4, "straight-through": 30, "straight-through from static": 30}
    expected |= {"full": 10, "full from static": 10}
    assert {name: set(passes.tolist()) for name, passes in out.spent.items()} == {
        name: {passes} for name, passes in expected.items()
    }
    settings = {"full": {"steps": 1, "eot_samples": 1}, "static": {"steps": 7, "restarts": 1}}
    out = attack_stochastic("pgd-linf", model, x, y, by_gradient=settings, **small)
    assert int(out.spent["full"].max()) == 3
    assert int(out.spent["static"].max()) == 8
    assert int(out.spent["straight-through"].max()) == 30


def test_what_no_draw_of_twenty_gets_right_is_left_alone() -> None:
    w = torch.ones(16)
    model = NoisyWeights(w, 0.5, spread=0.5)
    # The margin of the first images is small, that of the last cannot be overcome.
    x = 0.5 + torch.linspace(-0.02, 0.4, 10).view(10, 1, 1, 1).expand(10, 1, 4, 4)
    y = torch.ones(10, dtype=torch.long)
    eps = (0.08, 0.12, 0.2)
    out = attack_stochastic("pgd-linf", model, x, y, eps=eps, steps=4, eot_samples=3)
    runs = out.queries // ((4 + 2) * 3)
    assert runs.tolist() == sorted(runs.tolist())
    assert int(runs[0]) == 1
    assert int(runs[-1]) == 3
    assert 1 < runs.double().mean() < 2.9
    # The candidate is carried, and scored anew: no verdict is.
    assert torch.equal(out.x_adv[2, 0], out.x_adv[0, 0])
    noise = bound(0, "attack/pgd-linf", range(10))
    again, _ = Judge(model, y, noise, 10, 20).score(out.x_adv[2])
    assert torch.equal(again, out.predictions[2])
    # And nothing is lost by it.
    for e, budget in enumerate(eps):
        alone = attack_stochastic("pgd-linf", model, x, y, eps=budget, steps=4, eot_samples=3)
        assert float(out.accuracies()["mean"][0][e]) <= mean(alone) + 0.02


@dataclass(frozen=True, kw_only=True)
class Calling:
    """One signed step, as a plug-in that knows of neither noise nor draws."""

    eps: float
    norm: Norm = field(default=Norm.LINF, init=False)

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, context: Context) -> Tensor:
        point = x.clone().requires_grad_()
        logits = model(point)
        loss = (logits[:, 0] - logits[:, 1]).sum()
        (gradient,) = torch.autograd.grad(loss, point)
        return x + 0.99 * self.eps * gradient.sign()


def test_attacks_that_take_no_gradient_ask_the_draws() -> None:
    w = torch.linspace(0.5, 1.5, 16)
    model, x = NoisyWeights(w, 0.5, spread=1.0), torch.full((5, 1, 4, 4), 0.5)
    y = torch.ones(5, dtype=torch.long)
    out = attack_stochastic(Calling(eps=0.0), model, x, y, eps=[0.01, 0.06])
    assert set(out.spent) == {"draws"}
    assert out.source[1].tolist() == [SOURCES.index("draws")] * 5
    assert out.spent["draws"].tolist() == [2] * 5
    assert mean(out) < 0.6
    # An image's draws are its own, whatever the batch.
    alone = attack_stochastic(Calling(eps=0.0), model, x[3:4], y[3:4], ids=[3], eps=[0.01, 0.06])
    assert torch.equal(alone.x_adv[:, 0], out.x_adv[:, 3])
    assert not torch.equal(out.x_adv[1, 0], out.x_adv[1, 3])
    # A refined model is attacked through its network as well, and from there alone if so asked.
    refined = Refined(Mirror(), steps=1, step_size=2.0, noise_std=0.01)
    both = attack_stochastic(Calling(eps=0.0), refined, x, y, eps=0.05)
    assert set(both.spent) == {"static", "draws"}
    only = attack_stochastic(Calling(eps=0.0), refined, x, y, eps=0.05, gradients=["static"])
    assert set(only.spent) == {"static"}


@dataclass(frozen=True, kw_only=True)
class Certain(Calling):
    """An attack that will not have a stochastic model."""

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, context: Context) -> Tensor:
        if isinstance(model, KeyedForward):
            raise Unsupported("'certain' takes one answer for the truth")
        return super().__call__(model, x, y, context)


def test_an_attack_that_refuses_the_draws_still_transfers(
    mirrored: tuple[Refined, Tensor, Tensor],
) -> None:
    model, x, y = mirrored
    out = attack_stochastic(Certain(eps=0.0), model, x, y, eps=[0.01, 0.02])
    assert out.skipped == {"draws": "'certain' takes one answer for the truth"}
    assert int(out.spent["static"].min()) == 2
    assert int(out.spent["draws"].max()) == 0
    with pytest.raises(Unsupported, match="one answer for the truth"):
        attack_stochastic(Certain(eps=0.0), NoisyWeights(torch.ones(16), 1.0, 0.1), x, y, eps=0.01)


def test_every_call_of_a_keyed_forward_is_a_new_draw() -> None:
    model, x = NoisyWeights(torch.ones(16), 0.0, 1.0), torch.rand(4, 1, 4, 4)
    noise = bound(0, "t", [5, 6, 7, 8])
    keyed = KeyedForward(model, noise)
    first, second, part = keyed(x), keyed(x), keyed(x[:2])
    assert not torch.equal(first, second)
    assert not torch.equal(part, second[:2])
    assert torch.equal(first, KeyedForward(model, noise)(x))
    assert torch.equal(keyed.sample_logits(x, noise), model.sample_logits(x, noise))


@dataclass(frozen=True, kw_only=True)
class Nearest:
    """Straight down the margin of `NoisyWeights`, a little beyond its zero; none for bright x."""

    minimum_norm: ClassVar[bool] = True
    eps: float | None = None
    beyond: float = 1.02
    norm: Norm = field(default=Norm.L2, init=False)

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, context: Context) -> Tensor:
        assert isinstance(model, KeyedForward)
        inner = model.model
        assert isinstance(inner, NoisyWeights)
        w = inner.w.detach()
        distance = (((x - 0.5).flatten(1) @ w) + inner.b) / w.norm()
        step = (self.beyond * distance)[:, None] * (w / w.norm())
        moved = x - step.view_as(x)
        bright = x.amax(dim=(1, 2, 3), keepdim=True) > 0.9
        return torch.where(bright, x, moved)


def test_the_nearest_image_of_a_stochastic_model() -> None:
    w = torch.linspace(0.5, 1.5, 16)
    model = NoisyWeights(w, 0.1, spread=0.02)
    x = 0.5 + torch.tensor([0.0, 0.02, 0.04, 0.5]).view(4, 1, 1, 1).expand(4, 1, 4, 4)
    y = torch.ones(4, dtype=torch.long)
    margin = (x - 0.5).flatten(1) @ w + 0.1
    expected = (1.02 * margin / w.norm()).double()
    out = attack(Nearest(), model, x, y, beyond=1.02)
    assert out.eps is None
    assert out.draws is not None
    # Of the last image none was found: it stays as it is, at an infinite distance.
    torch.testing.assert_close(out.distance[:3], expected[:3], rtol=1e-4, atol=0)
    assert float(out.distance[3]) == math.inf
    assert torch.equal(out.x_adv[3], x[3])
    assert out.draws.broken[0].tolist() == [True, True, True, False]
    # With budgets the same points count as far as they reach.
    middle = float((expected[1] + expected[2]) / 2)
    swept = attack(Nearest(), model, x, y, eps=[middle / 100, middle])
    assert swept.draws is not None
    assert swept.draws.broken[0].tolist() == [False] * 4
    assert swept.draws.broken[1].tolist() == [True, True, False, False]
    assert swept.x_adv.shape == (2, 4, 1, 4, 4)
    # Followed towards the budget where more draws break there; a tie stays with the nearer point.
    assert (swept.distance[1, :2] >= expected[:2] * (1 - 1e-4)).all()
    assert (swept.distance[1, :2] <= middle).all()
    assert torch.equal(swept.x_adv[1, 2:], x[2:])
    assert int(swept.queries.max()) <= 1


def test_nearest_images_are_followed_outwards() -> None:
    """At the boundary itself half of the draws are right; the budget beyond it is there to use."""
    w = torch.linspace(0.5, 1.5, 16)
    model = NoisyWeights(w, 0.1, spread=0.1)
    x = 0.5 + 0.02 * torch.rand(30, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    y = torch.ones(30, dtype=torch.long)
    boundary = (((x - 0.5).flatten(1) @ w + 0.1) / w.norm()).double()
    out = attack(Nearest(), model, x, y, beyond=1.0)
    assert out.draws is not None
    assert bool(out.draws.broken.all())
    assert (out.distance >= boundary * (1 - 1e-5)).all()
    assert (out.distance <= boundary * 1.2 * (1 + 1e-5)).all()
    budget = 2 * float(boundary.max())
    swept = attack(Nearest(), model, x, y, beyond=1.0, eps=[budget])
    assert float(swept.success.mean()) > 0.95
    assert float(swept.distance.max()) <= budget * (1 + 1e-6)


def test_a_model_that_only_hides_in_noise_is_found_out() -> None:
    """Noise of the input as large as the budget: hard to aim at, unless the noise is known."""

    class Parity(nn.Module):
        """Two classes in stripes along one direction: what is right depends on the noise."""

        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(16) / 16)

        def forward(self, x: Tensor) -> Tensor:
            value = torch.cos(60 * ((x - 0.5).flatten(1) @ self.w)) + 0.35
            return torch.stack([torch.zeros_like(value), value], dim=1)

    x, y = torch.full((24, 1, 4, 4), 0.5), torch.ones(24, dtype=torch.long)
    model = Refined(Parity(), steps=0, n_chains=1, input_noise=0.4)
    kinds = ("static", "straight-through", "full", "fixed-noise")
    out = attack_stochastic(
        "pgd-linf", model, x, y, eps=[0.01, 0.08], gradients=kinds, steps=8, eot_samples=4
    )
    assert out.fixed_noise is not None
    assert out.fixed_noise.shape == (2, 24)
    hidden, known = mean(out), float(out.fixed_noise[1].double().mean())
    assert hidden > 0.4
    assert known < 0.1
    assert (out.fixed_noise[1] <= out.fixed_noise[0]).all()
    # Nothing of it counts for the reported number.
    assert (out.fixed_noise <= (out.predictions[:, :, 0] == y)).all()
    assert "fixed-noise" in out.spent
    assert set(out.source.flatten().tolist()) <= {0, 1, 2, 3}
    plain = attack_stochastic(
        "pgd-linf", model, x, y, eps=[0.01, 0.08], gradients=kinds[:3], steps=8, eot_samples=4
    )
    assert plain.fixed_noise is None
    assert torch.equal(plain.predictions, out.predictions)
    # Where there is no refinement to hold still, that is said.
    noisy = NoisyWeights(torch.ones(16), 0.5, 0.1)
    every = attack_stochastic("pgd-linf", noisy, x, y, eps=0.1, gradients=kinds, steps=2)
    assert every.fixed_noise is None
    assert set(every.skipped) == {"static", "full", "fixed-noise"}


def test_when_time_is_up_the_best_so_far_is_returned(
    mirrored: tuple[Refined, Tensor, Tensor],
) -> None:
    model, x, y = mirrored
    asked: list[int] = []

    def until(count: int) -> Callable[[], bool]:
        asked.clear()

        def out_of_time() -> bool:
            asked.append(1)
            return len(asked) > count

        return out_of_time

    noise = bound(0, "t", range(8))
    for count, sources in ((0, 0), (10_000, 5)):
        context = Context(noise=noise, out_of_time=until(count))
        out = attack_stochastic(
            "pgd-linf", model, x, y, eps=0.05, context=context, steps=3, eot_samples=2
        )
        assert sum(int(passes.sum()) > 0 for passes in out.spent.values()) == sources
        assert (mean(out) == 1) is (count == 0)
        assert out.predictions.shape == (1, 8, 20)


@pytest.mark.parametrize("size", [1, 7, 64])
def test_results_do_not_depend_on_the_batch(size: int) -> None:
    w = torch.linspace(-1, 1, 16)
    model = NoisyWeights(w, 0.4, spread=0.5)
    x = torch.rand(64, 1, 4, 4, generator=torch.Generator().manual_seed(3))
    y = torch.ones(64, dtype=torch.long)
    few = torch.tensor([0, 5, 17, 18, 33, 62, 63])
    given: dict[str, Any] = {"eps": [0.05, 0.2], "steps": 3, "eot_samples": 2, "task": "t"}
    whole = attack_stochastic("pgd-linf", model, x, y, micro_batch=64, **given)
    rows = few if size == 7 else few[:1] if size == 1 else torch.arange(64)
    part = attack_stochastic(
        "pgd-linf", model, x[rows], y[rows], ids=rows, micro_batch=size, **given
    )
    assert torch.equal(part.x_adv, whole.x_adv[:, rows])
    assert torch.equal(part.predictions, whole.predictions[:, rows])
    assert torch.equal(part.rank, whole.rank[:, rows])
    assert torch.equal(part.queries, whole.queries[rows])
