"""A candidate belongs to its image and seed, not to the batch it was found in."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from bench.attacking import attack

Digits = tuple[Tensor, Tensor]


@pytest.mark.parametrize("name", ["pgd-linf", "pgd-l2"])
def test_batch_size_does_not_matter(trained_net: nn.Module, test_digits: Digits, name: str) -> None:
    x, y = test_digits
    eps = [0.05, 0.1] if name == "pgd-linf" else [0.4, 0.8]
    runs = {
        size: attack(name, trained_net, x, y, eps=eps, micro_batch=size, restarts=2, steps=4)
        for size in (1, 7, 64)
    }
    for size in (1, 7):
        ours, whole = runs[size], runs[64]
        ties = whole.margin.abs() < 1e-4
        assert torch.equal(ours.success[~ties], whole.success[~ties])
        # A sign of a gradient near zero may flip with the last bits of a convolution.
        far = (ours.x_adv - whole.x_adv).abs() > 1e-4
        assert far.double().mean() < 0.002
        same = ~far.any(dim=0).flatten(1).any(dim=1)
        assert torch.equal(ours.queries[same], whole.queries[same])


def test_alone_or_in_company_or_shuffled(trained_net: nn.Module, test_digits: Digits) -> None:
    x, y = test_digits
    whole = attack("pgd-l2", trained_net, x, y, eps=0.8)
    alone = attack("pgd-l2", trained_net, x[5:6], y[5:6], eps=0.8, ids=[5])
    assert alone.x_adv[0] == pytest.approx(whole.x_adv[5], abs=1e-4)
    other = attack("pgd-l2", trained_net, x[5:6], y[5:6], eps=0.8, ids=[6])
    assert float((other.x_adv[0] - whole.x_adv[5]).abs().max()) > 1e-3
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    shuffled = attack("pgd-l2", trained_net, x[order], y[order], eps=0.8, ids=order)
    assert float((shuffled.x_adv - whole.x_adv[order]).abs().gt(1e-4).double().mean()) < 0.002


def test_the_seed_decides_and_nothing_else(trained_net: nn.Module, test_digits: Digits) -> None:
    x, y = test_digits[0][:16], test_digits[1][:16]
    torch.manual_seed(1)
    one = attack("pgd-linf", trained_net, x, y, eps=[0.05, 0.1], restarts=2)
    torch.manual_seed(2)
    two = attack("pgd-linf", trained_net, x, y, eps=[0.05, 0.1], restarts=2)
    assert torch.equal(one.x_adv, two.x_adv)
    assert torch.equal(one.margin, two.margin)
    three = attack("pgd-linf", trained_net, x, y, eps=[0.05, 0.1], restarts=2, seed=1)
    assert not torch.equal(one.x_adv, three.x_adv)
