"""JEM-N against the closed form of a linear-Gaussian model, and against its own promises."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from bench.energy import NOISE_STD, STEP_SIZE, density_gradient, log_density, sgld
from bench.errors import InputError
from bench.noise import Noise, bound
from bench.refinement import Refined, draw_logits, unrefined

SHAPE = (1, 2, 2)


class LinearGaussian(nn.Module):
    """Density N(centre, spread^2) and logits linear in x: every mean is known."""

    def __init__(self, spread: float = 0.8) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.spread = spread
        self.centre = nn.Parameter(torch.rand(SHAPE, generator=generator))
        self.weight = nn.Parameter(torch.randn(3, 4, generator=generator))

    def log_density(self, x: Tensor) -> Tensor:
        return -(x - self.centre).square().flatten(1).sum(dim=1) / (2 * self.spread**2)

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.weight.T


class Curved(nn.Module):
    """A small smooth net: its gradient differs from point to point."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(4)
        self.a = nn.Parameter(torch.randn(4, 8, generator=generator))
        self.b = nn.Parameter(torch.randn(8, 3, generator=generator))
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x.detach().clone())
        return torch.tanh(x.flatten(1) @ self.a) @ self.b


@pytest.fixture
def x() -> Tensor:
    return torch.rand(3, *SHAPE, generator=torch.Generator().manual_seed(5))


def test_without_noise_the_chain_is_a_contraction(x: Tensor) -> None:
    model = LinearGaussian()
    refined = Refined(model, steps=6, noise_std=0.0, step_size=0.1).refine(x, 6, bound(0, "t", [0]))
    rate = (1 - 0.1 / model.spread**2) ** 6
    torch.testing.assert_close(refined, model.centre.detach() + rate * (x - model.centre.detach()))


def test_mean_and_variance_of_noisy_chains(x: Tensor) -> None:
    """An Ornstein-Uhlenbeck recursion: mean and variance after N steps have closed forms."""
    model, n, steps, a, b, sigma = LinearGaussian(), 40_000, 5, 0.2, 0.05, 0.03
    refined = Refined(
        model, steps=steps, n_chains=n, input_noise=sigma, step_size=a, noise_std=b
    ).eval()
    model.requires_grad_(False)
    seen: list[Tensor] = []
    hook = model.register_forward_pre_hook(lambda _, given: seen.append(given[0].detach()))
    logits = refined.sample_logits(x[:1], bound(0, "chains", [0]))
    hook.remove()
    rate = 1 - a / model.spread**2
    mean = model.centre + rate**steps * (x[:1] - model.centre)
    variance = sigma**2 * rate ** (2 * steps) + b**2 * sum(rate ** (2 * k) for k in range(steps))
    points = seen[-1].double().flatten(1)
    assert len(points) == n
    assert ((points.mean(dim=0) - mean.flatten()).abs() < 5 * (variance / n) ** 0.5).all()
    assert ((points.var(dim=0) / variance - 1).abs() < 5 * (2 / n) ** 0.5).all()
    error = (logits - mean.flatten(1) @ model.weight.T).abs().max()
    assert error < 5 * float(model.weight.norm(dim=1).max()) * (variance / n) ** 0.5


def test_gradient_passes_straight_through(x: Tensor) -> None:
    """It is the mean over the chains of the gradient at the *refined* points."""
    base = Curved()
    refined = Refined(base, steps=3, n_chains=4, input_noise=0.1, noise_std=0.1)
    x = x.requires_grad_()
    base.seen.clear()
    logits = refined.sample_logits(x, bound(0, "gradient", [7, 8, 9]))
    points = base.seen[-1].requires_grad_()
    (got,) = torch.autograd.grad(logits[:, 0].sum(), x)
    (at_points,) = torch.autograd.grad(base(points)[:, 0].sum(), points)
    torch.testing.assert_close(got, at_points.view(3, 4, *SHAPE).mean(dim=1))
    (at_x,) = torch.autograd.grad(base(x)[:, 0].sum(), x)
    assert not torch.allclose(got, at_x, rtol=1e-2)  # else the above would prove nothing
    assert base.a.grad is None


def test_logits_are_averaged_not_probabilities(x: Tensor) -> None:
    base = Curved()
    refined = Refined(base, steps=2, n_chains=3, noise_std=0.3)
    logits = refined.sample_logits(x, bound(0, "mean", [0, 1, 2]))
    torch.testing.assert_close(logits, base(base.seen[-1]).view(3, 3, -1).mean(dim=1))


def test_fewer_chains_are_the_first_of_more(x: Tensor) -> None:
    points = {}
    for n in (2, 5):
        base = Curved()
        Refined(base, steps=2, n_chains=n, input_noise=0.1).sample_logits(
            x, bound(0, "p", range(3))
        )
        points[n] = base.seen[-1].view(3, n, *SHAPE)
    torch.testing.assert_close(points[2], points[5][:, :2])


def test_one_chain_in_x_is_the_papers_chain_in_z(x: Tensor) -> None:
    """Step 1 and noise 0.01 in z = 2x - 1 are step 1/4 and noise 0.005 in x (DESIGN, scale)."""
    model = Curved()
    noise = bound(0, "scale", range(3))

    class InZ(nn.Module):
        def forward(self, z: Tensor) -> Tensor:
            return model((z + 1) / 2)  # type: ignore[no-any-return]

    def draw(k: int) -> Tensor:
        return noise.at("sgld", k).normal(*SHAPE)

    in_z = sgld(InZ(), 2 * x - 1, 10, draw, step_size=1.0, noise_std=0.01)
    in_x = Refined(model, steps=10).refine(x, 10, noise)
    torch.testing.assert_close((in_z + 1) / 2, in_x, rtol=1e-5, atol=1e-6)
    assert (STEP_SIZE, NOISE_STD) == (0.25, 0.005)


def test_chains_may_leave_the_pixel_range() -> None:
    model = LinearGaussian(spread=0.5)
    nn.init.constant_(model.centre, 3.0)
    refined = Refined(model, steps=20).refine(torch.rand(2, *SHAPE), 20, bound(0, "out", [0, 1]))
    assert float(refined.min()) > 1.0


def test_forward_makes_a_new_draw_each_time_and_binding_starts_anew(x: Tensor) -> None:
    refined = Refined(Curved(), steps=2, noise_std=0.2)
    noise = bound(4, "bind", [10, 11, 12])
    with refined.bind(noise):
        first, second = refined(x), refined(x)
    assert torch.equal(first, refined.sample_logits(x, noise.at("call", 1)))
    assert torch.equal(second, refined.sample_logits(x, noise.at("call", 2)))
    assert not torch.equal(first, second)
    with refined.bind(noise):
        assert torch.equal(refined(x), first)
        with refined.bind(bound(5, "inner", [10, 11, 12])):
            assert not torch.equal(refined(x), second)
        assert torch.equal(refined(x), second)  # the outer binding goes on where it was


def test_binding_ends_with_an_exception(x: Tensor) -> None:
    refined = Refined(Curved(), steps=1, noise_std=0.2)
    with pytest.raises(RuntimeError, match="on purpose"), refined.bind(bound(0, "t", [0, 1, 2])):
        raise RuntimeError("on purpose")
    fresh = Refined(refined.base, steps=1, noise_std=0.2)
    assert torch.equal(refined(x), fresh(x))


@pytest.mark.parametrize("size", [1, 2])
def test_draws_do_not_depend_on_the_batch(x: Tensor, size: int) -> None:
    refined = Refined(Curved(), steps=3, input_noise=0.1, noise_std=0.1)
    noise = bound(0, "batch", [3, 1, 2])
    whole = refined.sample_logits(x, noise)
    rows = torch.split(torch.arange(3), size)
    parts = [refined.sample_logits(x[r], noise.select(r)) for r in rows]
    torch.testing.assert_close(torch.cat(parts), whole, rtol=1e-5, atol=1e-6)


def test_density_and_random_state_are_those_of_the_base(x: Tensor) -> None:
    base = Curved()
    refined = Refined(base, steps=3)
    before = torch.get_rng_state()
    refined(x)
    assert torch.equal(torch.get_rng_state(), before)
    expected = torch.logsumexp(base(x), dim=1)
    torch.testing.assert_close(refined.log_density(x), expected)
    torch.testing.assert_close(log_density(base, x), expected)
    value, gradient = density_gradient(LinearGaussian(), x)
    model = LinearGaussian()
    torch.testing.assert_close(gradient, (model.centre.detach() - x) / model.spread**2)
    assert not value.requires_grad
    assert unrefined(refined) is base
    assert unrefined(base) is base


def test_a_deterministic_model_ignores_the_noise(x: Tensor) -> None:
    base = Curved()
    assert torch.equal(draw_logits(base, x, bound(0, "a", range(3))), base(x))


WRONG: list[Callable[[nn.Module], Refined]] = [
    lambda m: Refined(m, steps=-1),
    lambda m: Refined(m, steps=1, n_chains=0),
    lambda m: Refined(m, steps=1, input_noise=-0.1),
    lambda m: Refined(m, steps=1, noise_std=-0.1),
    lambda m: Refined(m, steps=1, step_size=0.0),
]


@pytest.mark.parametrize("make", WRONG)
def test_impossible_settings_are_refused(make: Callable[[nn.Module], Refined]) -> None:
    with pytest.raises(InputError, match="steps and noises must not be negative"):
        make(Curved())


def test_all_settings_are_printed() -> None:
    text = repr(Refined(Curved(), steps=7, n_chains=2, input_noise=0.5, step_size=3, noise_std=0.1))
    for part in ("steps=7", "n_chains=2", "input_noise=0.5", "step_size=3", "noise_std=0.1"):
        assert part in text


def test_unbound_noise_is_repeatable(x: Tensor) -> None:
    """Two fresh models give the same first answers: no hidden global state."""
    one, other = (Refined(Curved(), steps=2, noise_std=0.3) for _ in range(2))
    assert torch.equal(one(x), other(x))
    noise: Noise = bound(0, "unbound", range(3))
    assert torch.equal(one(x), other.sample_logits(x, noise.at("call", 2)))
