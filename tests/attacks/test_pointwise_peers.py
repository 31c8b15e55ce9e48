"""The decision attacks beside foolbox's, from the same starts: how near they come for how much."""

from __future__ import annotations

import time
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bench
from tests.attacks.real import cifar, network
from tests.attacks.toys import answers

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    foolbox: Any = pytest.importorskip("foolbox")

Digits = tuple[Tensor, Tensor]


def right(net: nn.Module, x: Tensor, y: Tensor, count: int) -> Digits:
    """Return the first images that the network gets right."""
    rows = (answers(net, x) == y).nonzero()[:count, 0]
    return x[rows], y[rows]


def salted(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return images with just so much salt and pepper that they are misclassified."""
    generator = torch.Generator().manual_seed(2)
    starts, need = x.clone(), torch.ones(len(x), dtype=torch.bool)
    for share in (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9) * 5:
        u = torch.rand(len(x), 1, *x.shape[2:], generator=generator)
        tried = torch.where(u < share / 2, 0.0, torch.where(u > 1 - share / 2, 1.0, x))
        hit = need & (answers(net, tried) != y)
        starts[hit] = tried[hit]
        need &= ~hit
    assert not bool(need.any())
    return starts


def foolboxs(net: nn.Module, attack: Any, x: Tensor, y: Tensor, starts: Tensor) -> Tensor:
    """Return what an attack of foolbox finds, its random numbers set."""
    wrapped = foolbox.PyTorchModel(net, bounds=(0, 1), device="cpu")
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        found: Tensor = attack(wrapped, x, y, epsilons=None, starting_points=starts)[1]
    return found


def entries(x_adv: Tensor, x: Tensor) -> float:
    """Return how many entries differ, on average."""
    return float((x_adv != x).flatten(1).sum(dim=1).double().mean())


def compare(net: nn.Module, x: Tensor, y: Tensor, **options: int) -> tuple[float, float, float]:
    """Return our mean L0 and foolbox's, and our share of foolbox's CPU time."""
    starts = salted(net, x, y)
    began = time.process_time()
    out = bench.attack("pointwise-l0", net, x, y, starts=starts, **options)  # type: ignore[arg-type]
    ours = time.process_time() - began
    assert bool(out.success.all())
    began = time.process_time()
    peer = foolbox.attacks.PointwiseAttack(l2_binary_search=False)
    found = foolboxs(net, peer, x, y, starts)
    return entries(out.x_adv, x), entries(found, x), ours / (time.process_time() - began)


def test_fewer_changes_than_foolboxs_on_digits(trained_net: nn.Module, digits: Digits) -> None:
    x, y = right(trained_net, digits[0][1000:1100], digits[1][1000:1100], 64)
    ours, theirs, _ = compare(trained_net, x, y, queries=100)
    assert ours <= theirs


@pytest.mark.slow
@pytest.mark.parametrize(("queries", "share"), [(500, 0.5), (200, 0.2)])
def test_fewer_changes_than_foolboxs_on_cifar(queries: int, share: float) -> None:
    net = network("resnet20")
    x, y = right(net, *cifar(20), 8)
    ours, theirs, took = compare(net, x, y, queries=queries)
    assert ours <= theirs
    assert took < share


@pytest.mark.slow
def test_boundary_comes_nearer_than_foolboxs() -> None:
    net = network("cnn-a-adv")
    x, y = right(net, *cifar(40), 16)
    noise = torch.rand(x.shape, generator=torch.Generator().manual_seed(1))
    starts = torch.where((answers(net, noise) != y).view(-1, 1, 1, 1), noise, 1 - noise)
    rows = answers(net, starts) != y
    x, y, starts = x[rows], y[rows], starts[rows]
    assert len(x) >= 8
    ours = bench.attack("boundary-l2", net, x, y, starts=starts, steps=1000)
    found = foolboxs(net, foolbox.attacks.BoundaryAttack(steps=1000), x, y, starts)
    theirs = (found - x).flatten(1).norm(dim=1)
    assert bool(ours.success.all())
    assert float(ours.distance.median()) <= float(theirs.median())
