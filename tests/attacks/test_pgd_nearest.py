"""PGD without a budget: the nearest adversarial image."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from torch import Tensor, nn

from bench.attacking import attack
from bench.context import Context
from bench.noise import bound
from bench.registry import ATTACKS

Digits = tuple[Tensor, Tensor]


def distance_to_plane(norm: str, x: Tensor, w: Tensor, gap: float) -> float:
    """The smallest norm of d with w.d = gap and x + d in [0, 1], all in float64."""
    room, size = torch.where(w > 0, 1 - x, x), w.abs()
    speed = torch.ones_like(size) if norm == "linf" else size

    def moved(far: float) -> Tensor:
        return torch.minimum(far * speed, room)

    def missing(far: float) -> float:
        return float((size * moved(far)).sum()) - gap

    if missing(1e9) < 0:
        return np.inf
    d = moved(brentq(missing, 0, 1e9, xtol=1e-15, rtol=1e-14))
    return float(d.max() if norm == "linf" else d.norm())


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("classes", [2, 10])
@pytest.mark.parametrize("box", [False, True])
def test_a_linear_models_distance_is_the_geometric_one(norm: str, classes: int, box: bool) -> None:
    generator = torch.Generator().manual_seed(classes)
    net = nn.Sequential(nn.Flatten(), nn.Linear(108, classes))
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) / 10)
    x = torch.rand(60, 3, 6, 6, generator=generator)
    x = (1.6 * x - 0.3).clamp(0, 1) if box else 0.4 + 0.2 * x
    weight, bias = (p.detach().double() for p in net.parameters())
    flat = x.flatten(1).double()
    logits = flat @ weight.T + bias
    top = logits.topk(2, dim=1)
    # Where the classes nearly tie, the margin itself is rounding.
    keep = top.values[:, 0] - top.values[:, 1] > 0.05
    x, flat, logits, y = x[keep], flat[keep], logits[keep], top.indices[keep, 0]
    out = attack(f"pgd-{norm}", net, x, y)
    assert out.success.all()
    for i, label in enumerate(y.tolist()):
        planes = [j for j in range(classes) if j != label]
        wanted = min(
            distance_to_plane(
                norm, flat[i], weight[j] - weight[label], float(logits[i, label] - logits[i, j])
            )
            for j in planes
        )
        assert float(out.distance[i]) == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize("name", ["pgd-linf", "pgd-l2"])
def test_batch_size_does_not_matter(trained_net: nn.Module, test_digits: Digits, name: str) -> None:
    x, y = test_digits[0][:32], test_digits[1][:32]
    whole = attack(name, trained_net, x, y, steps=5, micro_batch=64).distance
    seven = attack(name, trained_net, x, y, steps=5, micro_batch=7).distance
    alone = attack(name, trained_net, x[5:6], y[5:6], steps=5, ids=[5]).distance
    # The last bits of a convolution can send a run another way, to about the same distance.
    assert (seven / whole - 1)[whole > 0].abs().median() < 1e-3
    assert ((seven / whole - 1)[whole > 0].abs() > 0.05).double().mean() <= 0.05
    assert float(alone[0]) == pytest.approx(float(whole[5]), rel=0.02)


def test_restarts_come_no_farther_and_eps_agrees(
    trained_net: nn.Module, test_digits: Digits
) -> None:
    x, y = test_digits[0][:32], test_digits[1][:32]
    one = attack("pgd-linf", trained_net, x, y)
    many = attack("pgd-linf", trained_net, x, y, restarts=4)
    assert (many.distance <= one.distance * (1 + 1e-4)).all()
    budget = 0.1
    within = attack("pgd-linf", trained_net, x, y, eps=budget, restarts=4)
    # A search at one budget finds hardly more than the nearest points say.
    assert int(within.success.sum()) <= int((many.distance <= budget).sum()) + 1


def test_nearer_than_ddn_of_foolbox(trained_net: nn.Module, test_digits: Digits) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import foolbox
        from foolbox.models.pytorch import PyTorchModel
    x, y = test_digits
    right = trained_net(x).argmax(dim=1) == y
    x, y = x[right], y[right]
    ours = attack("pgd-l2", trained_net, x, y).distance
    wrapped = PyTorchModel(trained_net, bounds=(0, 1), device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, theirs, found = foolbox.attacks.ddn.DDNAttack(steps=100)(wrapped, x, y, epsilons=None)
    for p in trained_net.parameters():
        p.grad = None  # foolbox leaves weight gradients
    assert bool(found.all())
    peers = (theirs - x).flatten(1).double().norm(dim=1)
    assert float(ours.mean()) <= float(peers.mean())
    assert float(ours.median()) <= float(peers.median()) * 1.01


@pytest.mark.parametrize("name", ["pgd-linf", "pgd-l2"])
def test_nothing_found_and_wrong_when_clean(name: str) -> None:
    class Stubborn(nn.Module):
        """Never changes its mind, though its slope says that it would."""

        def forward(self, x: Tensor) -> Tensor:
            u = x.flatten(1).mean(dim=1)
            return torch.stack([1 + u.sigmoid(), u.sigmoid()], dim=1)

    x = torch.rand(3, 1, 2, 4, generator=torch.Generator().manual_seed(0))
    out = attack(name, Stubborn(), x, [0, 1, 0], steps=5, restarts=2)
    assert out.success.tolist() == [False, True, False]
    assert out.distance.tolist() == [np.inf, 0.0, np.inf]
    assert torch.equal(out.x_adv, x)


@pytest.mark.parametrize("name", ["pgd-linf", "pgd-l2"])
def test_without_gradient_the_search_ends(name: str) -> None:
    class Constant(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.tensor([[2.0, 0.0]]).repeat(len(x), 1)

    x = torch.full((2, 1, 2, 4), 0.5)
    context = Context(noise=bound(0, "t", [0, 1]))
    found = ATTACKS[name](steps=3)(Constant(), x, torch.zeros(2).long(), context)
    assert torch.equal(found, x)


def test_it_starts_where_it_is_told(trained_net: nn.Module, test_digits: Digits) -> None:
    x, y = test_digits[0][:16], test_digits[1][:16]
    context = Context(noise=bound(0, "t", range(16)))
    before = attack("pgd-l2", trained_net, x, y, restarts=3)
    again = ATTACKS["pgd-l2"]()(trained_net, x, y, context, starts=before.x_adv)
    away = (again - x).flatten(1).double().norm(dim=1)
    assert (away <= before.distance + 1e-6).all()


def test_a_noisy_models_mean_margin_decides() -> None:
    class Noisy(nn.Module):
        """Logit difference w.x with noise on the bias: the mean crosses at the geometric place."""

        stochastic = True

        def sample_logits(self, x: Tensor, noise: object) -> Tensor:
            shift = 0.02 * noise.normal(1)[:, 0]  # type: ignore[attr-defined]
            u = x.flatten(1).sum(dim=1) - 4 + shift
            return torch.stack([torch.zeros_like(u), u], dim=1)

    x = torch.full((4, 1, 2, 4), 0.6)
    context = Context(noise=bound(0, "t", range(4)))
    found = ATTACKS["pgd-linf"](eot_samples=64)(Noisy(), x, torch.ones(4).long(), context)
    assert (found - x).abs().flatten(1).amax(dim=1).numpy() == pytest.approx(0.1, abs=0.003)
