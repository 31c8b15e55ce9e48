"""Nothing of the caller's is changed: flags, statistics, gradients, random state."""

from __future__ import annotations

import random
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bench.attacking import attack, attack_stochastic
from bench.preserving import preserved
from bench.refinement import Refined


class Fragile(nn.Module):
    """Trains one batch norm, keeps another frozen, counts, draws, and fails when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.bn, self.frozen = nn.BatchNorm2d(1), nn.BatchNorm2d(1)
        self.head = nn.Linear(64, 10)
        self.register_buffer("seen", torch.zeros(1))
        self.fail_at, self.calls = -1, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == self.fail_at:
            raise RuntimeError("planted")
        torch.rand(3)
        np.random.rand(3)
        random.random()
        x = x + 0 * self.seen.add_(0.25).sum()  # type: ignore[operator]
        logits: Tensor = self.head(self.frozen(self.bn(x)).flatten(1))
        return logits


def state(model: nn.Module) -> list[Any]:
    return [
        [m.training for m in model.modules()],
        [p.requires_grad for p in model.parameters()],
        [None if p.grad is None else p.grad.tolist() for p in model.parameters()],
        [b.tolist() for b in model.buffers()],
        torch.get_rng_state().tolist(),
        random.getstate(),
        [np.asarray(part).tolist() for part in np.random.get_state()],
        torch.is_grad_enabled(),
    ]


@pytest.fixture
def fragile() -> Fragile:
    model = Fragile().train()
    model.frozen.eval()
    model.head.bias.requires_grad_(False)
    model.head.weight.grad = torch.full_like(model.head.weight, 0.5)
    return model


@pytest.mark.parametrize("fail_at", [-1, 1, 6, 7, 8])
@pytest.mark.parametrize("name", ["pgd-linf", "pgd-l2"])
def test_everything_is_as_before(fragile: Fragile, name: str, fail_at: int) -> None:
    before, grad = state(fragile), fragile.head.weight.grad
    fragile.fail_at = fail_at
    x = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    y = fragile.head(fragile.frozen(x).flatten(1)).argmax(dim=1)
    y[0] = (y[0] + 1) % 10
    fails = pytest.raises(RuntimeError, match="planted") if fail_at > 0 else nullcontext()
    with fails:
        attack(name, fragile, x, y, eps=0.1, steps=3)
    assert state(fragile) == before
    assert fragile.head.weight.grad is grad


def test_a_stochastic_model_too(fragile: Fragile) -> None:
    model = Refined(fragile, steps=1, n_chains=2)
    before = state(model)
    x = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    attack_stochastic(
        "pgd-linf",
        model,
        x,
        [0, 1, 2],
        eps=0.1,
        # Its statistics change in place and are part of the answer: no gradient goes through two
        # calls.
        gradients=("static", "straight-through"),
        steps=2,
        eot_samples=2,
        scoring_draws=2,
    )
    assert state(model) == before


def test_the_block_runs_in_eval_mode_with_gradients_to_the_input_only(fragile: Fragile) -> None:
    with torch.no_grad(), preserved(fragile):
        assert not any(m.training for m in fragile.modules())
        x = torch.rand(2, 1, 8, 8, requires_grad=True)
        fragile(x).sum().backward()
        assert x.grad is not None
        assert fragile.bn.weight.grad is None
    assert fragile.bn.training
    assert not fragile.frozen.training
    assert fragile.bn.weight.requires_grad
    assert not fragile.head.bias.requires_grad


def test_gradients_left_by_a_foreign_attack_are_undone(fragile: Fragile) -> None:
    fragile.eval()
    with preserved(fragile):
        for p in fragile.parameters():
            p.requires_grad_(True)
        fragile(torch.rand(2, 1, 8, 8)).sum().backward()
    assert fragile.bn.weight.grad is None
    assert fragile.head.weight.grad is not None
    assert (fragile.head.weight.grad == 0.5).all()
