"""What a run on a stochastic model returns is chosen on draws of its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bench.context import Context
from bench.noise import Noise, bound
from bench.registry import ATTACKS


class NoisyWeights(nn.Module):
    """Logits (0, (w + s * xi).(x - 0.5)): the expected margin is linear in x."""

    stochastic = True

    def __init__(self, w: Tensor, spread: float) -> None:
        super().__init__()
        self.w, self.spread = nn.Parameter(w), spread
        self.seen: dict[int, int] = {}

    def sample_logits(self, x: Tensor, noise: Noise) -> Tensor:
        self.seen[noise.key] = self.seen.get(noise.key, 0) + 1
        weights = self.w + self.spread * noise.normal(*x.shape[1:]).flatten(1)
        value = (weights * (x - 0.5).flatten(1)).sum(dim=1)
        return torch.stack([torch.zeros_like(value), value], dim=1)


W = torch.linspace(0.5, 1.5, 16) * torch.tensor([1.0, -1.0]).repeat(8)
X, Y = torch.full((40, 1, 4, 4), 0.5), torch.ones(40, dtype=torch.long)


def fall(norm: str, model: NoisyWeights, **options: Any) -> Tensor:
    """Return how far the expected margin of each image falls, as a share of the optimum."""
    eps = 0.1
    made = ATTACKS[f"pgd-{norm}"](eps=eps, loss="margin", **options)
    found = made(model, X, Y, Context(noise=bound(0, "t", range(40))))
    largest = eps * (W.abs().sum() if norm == "linf" else W.norm())
    share: Tensor = -((found - 0.5).flatten(1) @ W) / largest
    return share.double()


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_more_draws_come_nearer_to_the_optimum(norm: str) -> None:
    model = NoisyWeights(W, spread=5.0)
    reached = [float(fall(norm, model, steps=30, eot_samples=k).mean()) for k in (1, 5, 20)]
    assert reached == sorted(reached)
    assert reached[2] > reached[0] + 0.25
    assert reached[2] < 1


def test_restarts_with_few_draws_do_no_harm() -> None:
    """The best of many runs must not be the luckiest: by margins met on the way it would be."""
    model = NoisyWeights(W, spread=5.0)
    one = fall("linf", model, steps=10, eot_samples=20)
    many = fall("linf", model, steps=10, eot_samples=20, restarts=5)
    assert float(many.mean()) > float(one.mean())


def test_every_point_to_choose_from_meets_the_same_draws() -> None:
    model = NoisyWeights(W, spread=1.0)
    fall("linf", model, steps=4, eot_samples=2, restarts=3, step_size=0.02)
    counts = sorted(model.seen.values())
    # Twelve steps with draws of their own; two points of each of three runs in the same ones.
    assert counts == [1] * 12 + [6]


def test_a_model_without_noise_loses_nothing_by_it() -> None:
    model = NoisyWeights(W, spread=0.0)
    for norm in ("linf", "l2"):
        torch.testing.assert_close(
            fall(norm, model, steps=20, eot_samples=1), torch.ones(40).double(), rtol=1e-3, atol=0
        )


def test_one_run_has_both_losses() -> None:
    class Three(nn.Module):
        """Three classes: cross-entropy and margin go different ways."""

        stochastic = True

        def sample_logits(self, x: Tensor, noise: Noise) -> Tensor:
            generator = torch.Generator().manual_seed(0)
            weights = torch.randn(16, 3, generator=generator) + noise.normal(16, 3)
            return torch.einsum("bi,bij->bj", x.flatten(1), weights)

    def found(loss: str, steps: int) -> Tensor:
        made = ATTACKS["pgd-l2"](eps=0.5, loss=loss, steps=steps, eot_samples=2)
        points: Tensor = made(Three(), X, Y, Context(noise=bound(0, "t", range(40))))
        return points

    for other in ("ce", "margin"):
        assert (found("both", 4) != found(other, 4)).flatten(1).any(dim=1).all()
    assert torch.equal(found("both", 1), found("margin", 1))  # half of one step is none
