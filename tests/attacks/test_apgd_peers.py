"""APGD and AutoAttack beside torchattacks': same model, images, steps; no more is left robust."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bench.attacking import attack
from bench.preserving import preserved
from tests.attacks.real import cifar, network
from tests.attacks.toys import answers

peers = pytest.importorskip("torchattacks")

NORMS = {"linf": "Linf", "l2": "L2"}
Peer = Callable[[nn.Module], Any]


def robust(net: nn.Module, x: Tensor, y: Tensor, peer: Peer) -> int:
    """How many images a peer leaves right; what it does to model and generators is undone."""
    right = answers(net, x) == y
    x, y = x[right], y[right]
    with preserved(net), warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        return int((answers(net, peer(net)(x, y)) == y).sum())


def apgd(norm: str, eps: float, steps: int, targeted: bool) -> Peer:
    kind = peers.APGDT if targeted else peers.APGD
    return lambda net: kind(net, norm=NORMS[norm], eps=eps, steps=steps)


@pytest.mark.parametrize(("norm", "eps"), [("linf", 0.07), ("l2", 0.7)])
@pytest.mark.parametrize("targeted", [False, True])
def test_on_digits(
    trained_net: nn.Module, digits: tuple[Tensor, Tensor], norm: str, eps: float, targeted: bool
) -> None:
    x, y = digits[0][1000:1100], digits[1][1000:1100]
    name = f"apgd-t-{norm}" if targeted else f"apgd-{norm}"
    ours = attack(name, trained_net, x, y, eps=eps, steps=10)
    theirs = robust(trained_net, x, y, apgd(norm, eps, 10, targeted))
    assert 10 < theirs < 90
    assert int((~ours.success).sum()) <= theirs + 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "norm", "eps", "targeted"),
    [
        ("resnet2b", "linf", 2 / 255, False),
        ("resnet2b", "linf", 4 / 255, True),
        ("resnet2b", "l2", 0.25, False),
        ("resnet20", "linf", 0.3 / 255, False),
    ],
)
def test_on_published_networks(name: str, norm: str, eps: float, targeted: bool) -> None:
    net, (x, y) = network(name), cifar(200)
    ours = attack(f"apgd-t-{norm}" if targeted else f"apgd-{norm}", net, x, y, eps=eps, steps=20)
    theirs = robust(net, x, y, apgd(norm, eps, 20, targeted))
    assert int((~ours.success).sum()) <= theirs + 1  # 0.5 points of 200


@pytest.mark.slow
@pytest.mark.parametrize("eps", [2 / 255, 8 / 255])
def test_the_ensemble_on_a_published_network(eps: float) -> None:
    # Fewer steps and queries for both than the standard ones: the standard took the same images.
    net, (x, y) = network("resnet2b"), cifar(64)
    few = {"apgd_steps": 20, "fab_steps": 5, "square_queries": 500}
    ours = attack("autoattack-linf", net, x, y, eps=eps, **few)  # type: ignore[arg-type]

    def parts(net: nn.Module) -> Any:
        common: dict[str, Any] = {"norm": "Linf", "eps": eps}
        return peers.MultiAttack(
            [
                peers.APGD(net, steps=20, **common),
                peers.APGDT(net, steps=20, **common),
                peers.FAB(net, steps=5, multi_targeted=True, **common),
                peers.Square(net, n_queries=500, **common),
            ]
        )

    theirs = robust(net, x, y, parts)
    assert torch.count_nonzero(~ours.success) <= theirs
