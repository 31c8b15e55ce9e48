"""The ways to differentiate a refining model, against finite differences and one another."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from bench.announcing import Announced
from bench.energy import sgld
from bench.errors import InputError, Unsupported
from bench.noise import Noise, bound
from bench.refinement import Refined, many_draws, unrefined
from bench.target import Gradient, not_applicable, target

SHAPE = (1, 3, 3)


class Smooth(nn.Module):
    """A net with curvature everywhere; in float64 its differences are exact to 1e-9."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.a = nn.Parameter(torch.randn(9, 12, generator=generator).to(dtype))
        self.b = nn.Parameter(torch.randn(12, 4, generator=generator).to(dtype))

    def forward(self, x: Tensor) -> Tensor:
        return softplus(x.flatten(1) @ self.a) @ self.b


@pytest.fixture
def x() -> Tensor:
    return torch.rand(3, *SHAPE, generator=torch.Generator().manual_seed(2)).double()


@pytest.fixture
def noise() -> Noise:
    return bound(0, "gradients", [4, 9, 2])


def refined(steps: int, base: nn.Module | None = None, n_chains: int = 3) -> Refined:
    return Refined(
        base or Smooth(),
        steps=steps,
        n_chains=n_chains,
        input_noise=0.05,
        step_size=0.05,
        noise_std=0.02,
    )


def gradient_of(model: nn.Module, kind: Gradient, x: Tensor, noise: Noise, samples: int) -> Tensor:
    point = x.clone().requires_grad_()
    logits = target(model, kind, samples)(point, noise)
    (gradient,) = torch.autograd.grad(logits[:, :, 0].square().sum(), point)
    return gradient


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_the_full_gradient_is_that_of_finite_differences(
    steps: int, x: Tensor, noise: Noise
) -> None:
    model, samples, h = refined(steps), 2, 1e-5
    got = gradient_of(model, "full", x, noise, samples)

    @torch.no_grad()
    def value(point: Tensor) -> Tensor:
        first = many_draws(model, point, noise, samples)[:, :, 0]
        return first.square().sum(dim=1)

    expected = torch.zeros_like(x)
    for i in range(9):
        nudge = torch.zeros_like(x).flatten(1)
        nudge[:, i] = h
        nudge = nudge.view_as(x)
        expected.flatten(1)[:, i] = (value(x + nudge) - value(x - nudge)) / (2 * h)
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-7)
    # The straight-through gradient is another one: else the above would prove nothing.
    through = gradient_of(model, "straight-through", x, noise, samples)
    assert float((through - expected).norm() / expected.norm()) > 0.1


@pytest.mark.parametrize("steps", [1, 4])
def test_computing_steps_anew_changes_nothing(steps: int, x: Tensor, noise: Noise) -> None:
    model, found = Smooth(), []
    for recompute in (False, True):
        point = x.clone().requires_grad_()
        end = sgld(
            model,
            point,
            steps,
            lambda k: noise.at("sgld", k).normal(*SHAPE),
            0.05,
            0.02,
            differentiable=True,
            recompute=recompute,
        )
        (gradient,) = torch.autograd.grad(model(end)[:, 1].sum(), point)
        found.append((end.detach(), gradient))
    torch.testing.assert_close(found[0], found[1], rtol=1e-12, atol=1e-12)


class Held:
    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def test_computing_steps_anew_keeps_one_point_a_step(x: Tensor, noise: Noise) -> None:
    model = Smooth().requires_grad_(False)

    def kept(steps: int, recompute: bool) -> int:
        """Return how many numbers a chain's graph holds when the chain is done."""
        held: weakref.WeakSet[Held] = weakref.WeakSet()

        def pack(tensor: Tensor) -> Held:
            held.add(kept := Held(tensor))
            return kept

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept.tensor):
            point = x.clone().requires_grad_()
            end = sgld(
                model,
                point,
                steps,
                lambda k: noise.at("sgld", k).normal(*SHAPE),
                differentiable=True,
                recompute=recompute,
            )
        assert end.requires_grad
        return sum(one.tensor.numel() for one in held)

    assert kept(8, True) == 8 * x.numel()
    assert kept(8, False) - kept(4, False) > 8 * x.numel()


def test_all_gradients_see_the_same_draws(x: Tensor, noise: Noise) -> None:
    model = refined(4)
    draws = {
        kind: target(model, kind, 3)(x.clone().requires_grad_(), noise)
        for kind in ("straight-through", "full")
    }
    torch.testing.assert_close(draws["full"], draws["straight-through"])
    torch.testing.assert_close(draws["full"].detach(), many_draws(model, x, noise, 3).float())
    # Draws are the first of more draws, and the noise of an image does not depend on the batch.
    more = target(model, "full", 5)(x[1:2], noise.select(torch.tensor([1])))
    torch.testing.assert_close(more[0, :3], draws["full"][1].detach())


@pytest.mark.parametrize(("steps", "fewer"), [(2, 1), (5, 1), (10, 2), (14, 2)])
def test_the_surrogate_is_the_full_gradient_of_fewer_steps(
    steps: int, fewer: int, x: Tensor, noise: Noise
) -> None:
    cheap = gradient_of(refined(steps), "surrogate", x, noise, 2)
    torch.testing.assert_close(cheap, gradient_of(refined(fewer), "full", x, noise, 2))


def test_losses_of_chains_or_their_mean_logits(x: Tensor, noise: Noise) -> None:
    model = refined(2, n_chains=4)
    whole = target(model, "full", 3)(x, noise)
    each = target(model, "full", 3, average="losses")(x, noise)
    assert whole.shape == (3, 3, 4)
    assert each.shape == (3, 12, 4)
    torch.testing.assert_close(each.view(3, 3, 4, 4).mean(dim=2), whole)
    assert target(model, "full", 3).rows == 12
    assert target(model, "full", 3).samples == 3
    # Of one chain a draw both are the same.
    alone = refined(2, n_chains=1)
    torch.testing.assert_close(
        target(alone, "full", 3, average="losses")(x, noise), target(alone, "full", 3)(x, noise)
    )


def test_images_and_weights_are_left_alone(x: Tensor, noise: Noise) -> None:
    model = refined(4)
    together = gradient_of(model, "full", x, noise, 2)
    alone = gradient_of(model, "full", x[2:], noise.select(torch.tensor([2])), 2)
    torch.testing.assert_close(alone[0], together[2])
    assert all(p.grad is None for p in model.parameters())


def test_a_linear_energy_has_no_curvature(x: Tensor, noise: Noise) -> None:
    """Its refinement moves every image alike, so straight-through is the full gradient."""

    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.linspace(-1, 1, 9).double())

        def log_density(self, x: Tensor) -> Tensor:
            return x.flatten(1) @ self.w

        def forward(self, x: Tensor) -> Tensor:
            value = (x.flatten(1) @ self.w).square()
            return torch.stack([value, -value], dim=1)

    for steps in (1, 4):
        model = refined(steps, Flat())
        torch.testing.assert_close(
            gradient_of(model, "full", x, noise, 2),
            gradient_of(model, "straight-through", x, noise, 2),
        )


def test_what_a_model_cannot_do_is_said() -> None:
    net = Smooth()
    assert refined(0).gradients == ("straight-through",)
    assert refined(1).gradients == ("straight-through", "full")
    assert set(refined(2).gradients) == {"straight-through", "full", "surrogate"}
    assert [not_applicable(net, k) for k in ("static", "full")] == ["", ""]
    assert "needs a refinement" in not_applicable(Announced(net), "full")
    assert not_applicable(Announced(net), "straight-through") == ""
    assert "none of the gradients of this Refined" in not_applicable(refined(1), "surrogate")
    twice = Refined(Announced(net), steps=1)
    assert "deterministic network" in not_applicable(twice, "static")
    with pytest.raises(Unsupported, match="names no network behind its draws"):
        target(Announced(net), "static")
    wrong: list[dict[str, Any]] = [{"gradient": "exact"}, {"average": "votes"}, {"samples": 0}]
    for options in wrong:
        with pytest.raises(InputError, match="expected a gradient out of static, straight"):
            target(net, **options)


class Own(nn.Module):
    """A user's refinement: one gradient step uphill, two chains."""

    stochastic = True
    n_chains = 2
    gradients = ("straight-through", "full")

    def __init__(self) -> None:
        super().__init__()
        self.base = Smooth()
        self.asked: list[str] = []

    def chain_logits(self, x: Tensor, noise: Noise, gradient: str = "full") -> Tensor:
        self.asked.append(gradient)
        start = x.repeat_interleave(2, dim=0)
        start = start + 0.1 * noise.expand(2).normal(*SHAPE)
        logits: Tensor = self.base(start)
        return logits.view(len(x), 2, -1)

    def sample_logits(self, x: Tensor, noise: Noise) -> Tensor:
        return self.chain_logits(x, noise).mean(dim=1)


def test_a_users_refinement_is_attacked_by_the_gradients_it_names(x: Tensor, noise: Noise) -> None:
    model = Own()
    assert unrefined(model) is model.base
    draws = many_draws(model, x, noise, 2).float()
    torch.testing.assert_close(target(model, "full", 2)(x, noise), draws)
    assert model.asked[0] == "full"
    assert target(model, "static").model is model.base
    with pytest.raises(Unsupported, match="surrogate"):
        target(model, "surrogate")


class OneDrawABatch(nn.Module):
    """Weights drawn anew at every pass, the same for all images of it."""

    def forward(self, x: Tensor) -> Tensor:
        value = x.flatten(1).float() @ torch.randn(9, 4)
        return value.square()


def test_samples_of_an_unannounced_model_are_draws_of_their_own(noise: Noise) -> None:
    x = torch.rand(1, *SHAPE).expand(3, *SHAPE)
    model = Announced(OneDrawABatch())
    draws = target(model, "straight-through", 4)(x, noise)
    assert draws.shape == (3, 4, 4)
    assert torch.equal(draws[0], draws[2])  # the weights are those of the pass
    differences = (draws[0, :, None] - draws[0, None, :]).abs().sum(dim=2)
    assert int((differences == 0).sum()) == 4  # of every sample to itself alone
    assert torch.equal(many_draws(model, x, noise, 2), draws[:, :2])
    other = target(model, "straight-through", 4)(x, noise.at("another"))
    assert not torch.equal(other, draws)
