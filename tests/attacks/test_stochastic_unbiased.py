"""No number of attacks makes a model look weaker than it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bench.attacking import AttackResult, attack
from bench.noise import Noise
from bench.tasks.attacked import arrays_of_result
from bench.tasks.base import Reduction
from bench.tasks.outcomes import stochastic_rows

WRONG = 0.2
IMAGES, EPS = 150, (0.05, 0.1)


class Unreliable(nn.Module):
    """Answers wrong with probability 0.2 whatever the input; how the coin falls depends on it."""

    stochastic = True

    def sample_logits(self, x: Tensor, noise: Noise) -> Tensor:
        value = 1e3 * (x * noise.normal(*x.shape[1:])).flatten(1).sum(dim=1)
        wrong = (value - value.floor() < WRONG).float()
        logits = torch.stack([2 - 3 * wrong, 0 * wrong, -1 + 2 * wrong], dim=1)
        return logits + 0 * value[:, None]


# Six attacks of one norm, each with restarts where it has them.
ATTACKS: list[tuple[str, dict[str, Any]]] = [
    ("pgd-linf", {"restarts": 3, "steps": 5, "eot_samples": 3}),
    ("pgd-linf", {"restarts": 3, "steps": 5, "eot_samples": 3, "loss": "margin"}),
    ("pgd-linf", {"restarts": 2, "steps": 10, "eot_samples": 1, "momentum": 0.5}),
    ("apgd-linf", {"restarts": 2, "steps": 5, "eot_samples": 3}),
    ("square-linf", {"queries": 30, "restarts": 2}),
    ("noise-linf", {"draws": 20}),
]


@pytest.fixture(scope="module")
def results() -> list[AttackResult]:
    x = torch.rand(IMAGES, 1, 3, 3, generator=torch.Generator().manual_seed(0))
    y = torch.zeros(IMAGES, dtype=torch.long)
    return [
        attack(name, Unreliable(), x, y, eps=[*EPS], task=f"attack {number}", **options)
        for number, (name, options) in enumerate(ATTACKS)
    ]


def test_the_selection_draws_were_tempting(results: list[AttackResult]) -> None:
    """On them the winners are wrong in far more than a fifth: there was luck to be found."""
    for out in results:
        assert out.draws is not None
        assert float(out.draws.rank[-1].mean()) < 10 * (1 - WRONG) - 0.5


def test_six_attacks_with_restarts_find_eighty_percent(results: list[AttackResult]) -> None:
    labels = np.zeros(IMAGES, dtype=np.int64)
    parts = [arrays_of_result(out, labels) for out in results]
    titles = [name for name, _ in ATTACKS]
    rows = {
        row.settings["eps"]: row
        for row in stochastic_rows(titles, parts, (0.0, *EPS), Reduction())
        if row.metric == "robust_accuracy"
    }
    for eps in (0.0, *EPS):
        row = rows[eps]
        assert row.value is not None
        assert row.low is not None
        assert row.high is not None
        assert row.low <= 1 - WRONG <= row.high
        assert row.high - row.low < 0.06  # else the interval would say nothing


def test_the_worst_attack_of_the_scoring_draws_would_be_biased(results: list[AttackResult]) -> None:
    """The planted fault: the number that the protocol is there to avoid."""
    drawn = torch.stack([out.draws.predictions[-1] for out in results if out.draws is not None])
    assert len(drawn) == 6
    shares = (drawn == 0).double().mean(dim=2)  # of each attack and image
    assert float(shares.mean()) == pytest.approx(1 - WRONG, abs=0.02)
    assert float(shares.amin(dim=0).mean()) < 0.72
