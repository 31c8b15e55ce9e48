"""The active set: who stays is known later on a GPU, and that changes nothing."""

from __future__ import annotations

import importlib

import pytest
import torch
from torch import Tensor, nn

from bench.attacking import attack
from bench.registry import ATTACKS, discover

discover()
survivors = importlib.import_module(
    ATTACKS.entry("pgd-linf").module.rpartition(".")[0] + ".survivors"
)


def test_an_answer_comes_after_its_lag_and_is_of_the_question() -> None:
    asked = survivors.Survivors(lag=2)
    first, later = torch.tensor([1, 0, 0]), torch.tensor([1, 1, 0])
    assert asked.after(first.clone()) is None
    assert asked.after(later) is None
    assert asked.after(later).tolist() == [1, 0, 0]
    assert asked.after(later) is None  # a new question


def test_few_do_not_count() -> None:
    state = torch.zeros(64, dtype=torch.bool)
    asked = survivors.Survivors(lag=0)
    assert asked.after(state) is None
    state[:3] = True
    assert asked.after(state) is None
    state[3] = True
    assert asked.after(state).tolist() == state.tolist()


@pytest.mark.parametrize("name", ["pgd-linf", "pgd-l2"])
@pytest.mark.parametrize("eps", [[0.08], [0.03, 0.06, 0.1, 0.2]])
def test_lag_changes_nothing(
    trained_net: nn.Module,
    test_digits: tuple[Tensor, Tensor],
    name: str,
    eps: list[float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, y = test_digits
    eps = eps if name == "pgd-linf" else [8 * e for e in eps]
    plain = attack(name, trained_net, x, y, eps=eps, restarts=2, steps=8)
    make = survivors.Survivors.__init__
    monkeypatch.setattr(survivors.Survivors, "__init__", lambda self, lag=None: make(self, 3))
    late = attack(name, trained_net, x, y, eps=eps, restarts=2, steps=8)
    same = late.margin.sub(plain.margin).abs() < 1e-3
    # A sign of a gradient near zero may flip with the last bits of a convolution.
    assert same.double().mean() > 0.95
    assert torch.equal(late.success[same], plain.success[same])
    assert (late.queries == plain.queries).double().mean() > 0.95
