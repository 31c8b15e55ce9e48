"""Comparisons of attacks that take gradients: PGD, sweeps, APGD and nearest images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from matches import Call, Match, Section, change, foolbox_model, nearest, passes, within, wrong
from torch import nn

_LONG = 10  # PGD without a budget searches in turns, at about so many times the cost of one run


def pgd_linf(match: Match) -> Section:
    """Compare PGD in L-infinity at one budget."""
    section = _pgd(match, "pgd-linf", torch.inf, match.linf, ("LinfPGD", "PGD"))
    plain = section.contenders.get("foolbox")
    if plain is not None:  # as it is usually called: it computes the weights' gradients as well
        section.contenders["foolbox, weights not frozen"] = lambda: _unfrozen(match.model, plain)
    return section


def pgd_l2(match: Match) -> Section:
    """Compare PGD in L2 at one budget."""
    return _pgd(match, "pgd-l2", 2, match.l2, ("L2PGD", "PGDL2"))


def _pgd(match: Match, name: str, order: float, eps: float, peers: tuple[str, str]) -> Section:
    model, x, y, steps, size = match.model, match.x, match.y, match.steps, eps / 4
    section = Section(
        f"{name} at {eps:.4g}, {steps} steps, {len(x)} images",
        "steps x (forward + backward to the input)",
        passes(model, x, y, steps),
        within(match, order, eps),
    )
    same = {"eps": eps, "step_size": size, "steps": steps}
    section.ours("bench, every step", name, model, x, y, early_stop=False, **same)
    section.ours("bench", name, model, x, y, **same)

    def foolbox(package: Any) -> Call:
        attack = getattr(package.attacks, peers[0])(abs_stepsize=size, steps=steps)
        wrapped = foolbox_model(package, model)
        return lambda: attack(wrapped, x, y, epsilons=eps)[1]

    def torchattacks(package: Any) -> Call:
        attack = getattr(package, peers[1])(model, eps=eps, alpha=size, steps=steps)
        return lambda: attack(x, y)

    section.peer("foolbox", foolbox)
    section.peer("torchattacks", torchattacks)
    return section


def _unfrozen(model: nn.Module, work: Call) -> Any:
    """Call with weights as a user has them, and leave none of the gradients behind."""
    model.requires_grad_(True)
    try:
        return work()
    finally:
        for weight in model.parameters():
            weight.grad = None
        model.requires_grad_(False)


def sweep(match: Match) -> Section:
    """Compare a sweep of five budgets."""
    model, x, y, grid, steps = match.model, match.x, match.y, match.sweep, match.steps

    def judge(found: Any) -> dict[str, Any]:
        robust = [1 - float(wrong(model, one, y).double().mean()) for one in found]
        over = [
            float(change(one, x, torch.inf).max()) / e - 1
            for one, e in zip(found, grid, strict=True)
        ]
        return {"robust": robust, "over eps": max(*over, 0.0)}

    section = Section(
        f"PGD L∞ at {', '.join(f'{e:.3g}' for e in grid)}, {steps} steps each, {len(x)} images",
        "budgets x steps x (forward + backward to the input)",
        passes(model, x, y, steps * len(grid)),
        judge,
    )
    section.ours("bench", "pgd-linf", model, x, y, eps=list(grid), steps=steps)

    def foolbox(package: Any) -> Call:
        attack = package.attacks.LinfPGD(rel_stepsize=0.25, steps=steps)
        wrapped = foolbox_model(package, model)
        return lambda: attack(wrapped, x, y, epsilons=list(grid))[1]

    def torchattacks(package: Any) -> Call:
        made = [package.PGD(model, eps=e, alpha=e / 4, steps=steps) for e in grid]
        return lambda: [one(x, y) for one in made]

    section.peer("foolbox", foolbox)
    section.peer("torchattacks", torchattacks)
    return section


def apgd(match: Match) -> Section:
    """Compare APGD on cross-entropy."""
    model, x, y, eps, steps = match.model, match.x, match.y, match.linf, match.steps
    section = Section(
        f"APGD-CE L∞ at {eps:.4g}, {steps} steps, {len(x)} images",
        "steps x (forward + backward to the input)",
        passes(model, x, y, steps),
        within(match, torch.inf, eps),
    )
    section.ours("bench", "apgd-linf", model, x, y, eps=eps, steps=steps)
    section.peer(
        "torchattacks",
        lambda package: lambda: package.APGD(model, norm="Linf", eps=eps, steps=steps)(x, y),
    )
    return section


def _minimum_norm(
    match: Match, order: float, name: str, ours: tuple[str, ...], peers: dict[str, str]
) -> Section:
    model, steps = match.model, match.steps
    right = ~wrong(model, match.x, match.y)
    x, y = match.x[right], match.y[right]
    section = Section(
        f"Nearest image in {name}, {steps} steps, {len(x)} images",
        "steps x (forward + backward to the input)",
        passes(model, x, y, steps),
        nearest(model, x, y, order, name),
    )
    for attack in ours:
        section.ours(f"bench {attack}", attack, model, x, y, steps=steps)

    def foolbox(kind: str, times: int) -> Callable[[Any], Call]:
        def make(package: Any) -> Call:
            attack = getattr(package.attacks, kind)(steps=times * steps)
            wrapped = foolbox_model(package, model)
            return lambda: attack(wrapped, x, y, epsilons=None)[1]

        return make

    for peer, kind in peers.items():
        section.peer(peer, foolbox(kind, 1))
        section.peer(f"{peer}, {_LONG} x steps", foolbox(kind, _LONG))
    return section


def minimum_l2(match: Match) -> Section:
    """Compare the nearest adversarial images in L2."""
    return _minimum_norm(
        match,
        2,
        "L2",
        ("pgd-l2", "ddn-l2", "fmn-l2"),
        {"foolbox DDN": "DDNAttack", "foolbox FMN": "L2FMNAttack"},
    )


def minimum_linf(match: Match) -> Section:
    """Compare the nearest adversarial images in L-infinity."""
    peers = {"foolbox FMN": "LInfFMNAttack"}
    return _minimum_norm(match, torch.inf, "L∞", ("pgd-linf", "fmn-linf"), peers)
