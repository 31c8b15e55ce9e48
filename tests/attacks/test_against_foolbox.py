"""PGD is at least as strong as foolbox's at the same number of steps."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

from bench.attacking import attack

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import foolbox
    from foolbox.models.pytorch import PyTorchModel


@pytest.mark.parametrize(
    ("name", "peer", "eps"),
    [
        ("pgd-linf", foolbox.attacks.LinfPGD, [0.03, 0.06, 0.1, 0.15]),
        ("pgd-l2", foolbox.attacks.L2PGD, [0.3, 0.5, 0.8, 1.2]),
    ],
)
def test_robust_accuracy_is_not_above_foolboxs(
    trained_net: nn.Module, digits: tuple[Tensor, Tensor], name: str, peer: type, eps: list[float]
) -> None:
    x, y = digits[0][1000:1128], digits[1][1000:1128]
    ours = attack(name, trained_net, x, y, eps=eps, steps=20)
    wrapped = PyTorchModel(trained_net, bounds=(0, 1), device="cpu")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for best_of_defaults in (peer(steps=20), peer()):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                _, _, broken = best_of_defaults(wrapped, x, y, epsilons=eps)
            for mine, theirs in zip(ours.success, broken, strict=True):
                assert int(mine.sum()) >= int(theirs.sum()) - 1
    for p in trained_net.parameters():
        p.grad = None  # foolbox leaves weight gradients
