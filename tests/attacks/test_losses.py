from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from bench.attacking import attack
from bench.errors import InputError
from bench.registry import ATTACKS, discover

discover()
losses = __import__("importlib").import_module(ATTACKS.entry("pgd-linf").module).LOSSES


@pytest.mark.parametrize("scale", [0.3, 5.0])
@pytest.mark.parametrize("draws", [1, 4])
def test_cross_entropy_has_the_direction_of_torchs(scale: float, draws: int) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = scale * torch.randn(20, draws, 5, generator=generator, dtype=torch.float64)
    y = torch.randint(5, (20,), generator=generator)
    logits.requires_grad_()
    (ours,) = torch.autograd.grad(losses["ce"](logits, y).sum(), logits)
    plain = functional.cross_entropy(
        logits.flatten(0, 1), y.repeat_interleave(draws), reduction="sum"
    )
    (theirs,) = torch.autograd.grad(plain, logits)
    cosine = functional.cosine_similarity(ours.flatten(1), theirs.flatten(1))
    assert (cosine > 1 - 1e-6).all()


def test_cross_entropy_keeps_a_gradient_where_torchs_has_none() -> None:
    logits = torch.tensor([[[200.0, 1.0, 0.0]]], requires_grad=True)
    y = torch.tensor([0])
    (theirs,) = torch.autograd.grad(functional.cross_entropy(logits[0], y), logits)
    (ours,) = torch.autograd.grad(losses["ce"](logits, y).sum(), logits)
    assert (theirs == 0).all()
    assert ours[0, 0] == pytest.approx(torch.tensor([-1.0, 0.7310586, 0.2689414]), abs=1e-6)


def test_margin_and_dlr_by_hand() -> None:
    logits = torch.tensor([[[4.0, 1.0, 3.0, 0.0], [2.0, 5.0, 0.0, 1.0]]])
    y = torch.tensor([0])
    # Margins 4 - 3 and 2 - 5; ratios 1 / (4 - 1) and -3 / (5 - 1).
    assert losses["margin"](logits, y).item() == pytest.approx(-(1 - 3) / 2)
    assert losses["dlr"](logits, y).item() == pytest.approx(-(1 / 3 - 3 / 4) / 2)


def test_dlr_refuses_two_classes() -> None:
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2))
    x = torch.rand(4, 1, 2, 2)
    y = model(x).argmax(dim=1)
    with pytest.raises(InputError, match="at least 3 classes"):
        attack("pgd-linf", model, x, y, eps=0.1, loss="dlr")
