"""Starts of decision attacks: who finds one, of what, and for how many questions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bench
from bench.context import Context
from bench.noise import Noise, bound
from bench.registry import ATTACKS
from tests.attacks.toys import Recorder

SHORT: dict[str, dict[str, Any]] = {"boundary-l2": {"steps": 1}, "pointwise-l0": {"queries": 1}}


class Far(nn.Module):
    """Class 1 where at least ``least`` entries exceed 1/2; some draws lie."""

    def __init__(self, least: int, lies: float = 0.0) -> None:
        super().__init__()
        self.least, self.lies, self.stochastic = least, lies, lies > 0

    def forward(self, x: Tensor) -> Tensor:
        away = (x.flatten(1) > 0.5).float().sum(dim=1) - self.least + 0.5
        return torch.stack([-away, away], dim=1)

    def sample_logits(self, x: Tensor, noise: Noise) -> Tensor:
        logits: Tensor = self(x)
        return torch.where(noise.uniform(1) < self.lies, -logits, logits)


def images(count: int) -> tuple[Tensor, Tensor]:
    return torch.full((count, 1, 8, 8), 0.2), torch.zeros(count, dtype=torch.int64)


def candidates(name: str, model: nn.Module, count: int, **more: Any) -> Tensor:
    """Return what the attack itself returns, before it is judged."""
    x, y = images(count)
    attack: Any = ATTACKS[name]
    noise = bound(0, "starting", range(count))
    found: Tensor = attack(**SHORT[name])(model, x, y, Context(noise=noise), **more)
    return found


def test_a_lucky_answer_keeps_no_image_from_its_start() -> None:
    """Of the 21 questions before the first true start one is lucky for a third of the images."""
    found = candidates("pointwise-l0", Far(60, lies=0.2), 40)
    true = (found > 0.5).flatten(1).sum(dim=1) >= 60
    assert int(true.sum()) >= 36  # of the two answers at the true one either may be unlucky


@pytest.mark.parametrize("name", SHORT)
def test_where_nothing_is_misclassified_hardly_any_start_is_found(name: str) -> None:
    x, _ = images(100)
    found = candidates(name, Far(65, lies=0.2), 100, starts=x + 0.01)
    assert int((found != x).flatten(1).any(dim=1).sum()) <= 5


@pytest.mark.parametrize(("name", "least"), [("boundary-l2", 20), ("pointwise-l0", 60)])
def test_starts_are_looked_for_from_weak_noise_to_strong(name: str, least: int) -> None:
    x, y = images(8)
    near = bench.attack(name, Far(1), x, y, **SHORT[name])
    model = Recorder(Far(least))
    far = bench.attack(name, model, x, y, **SHORT[name])
    assert bool((near.success & far.success).all())
    assert float(near.distance.mean()) < 0.8 * float(far.distance.mean())
    assert bool((near.queries <= far.queries).all())
    assert len(model.shown) < 30 + 12  # a question for each noise, and the passes around the attack
