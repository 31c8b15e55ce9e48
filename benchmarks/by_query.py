"""Comparisons of attacks that only ask: Square, boundary and pointwise."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from matches import Call, Match, Section, change, foolbox_model, forwards, nearest, within, wrong
from torch import Tensor, nn


def square(match: Match) -> Section:
    """Compare Square, which sees scores only."""
    model, x, y, eps, queries = match.model, match.x, match.y, match.linf, match.queries
    section = Section(
        f"Square L∞ at {eps:.4g}, {queries} queries, {len(x)} images",
        "queries x forward",
        forwards(model, x, queries),
        within(match, torch.inf, eps),
    )
    section.ours("bench", "square-linf", model, x, y, eps=eps, queries=queries)
    section.peer(
        "torchattacks",
        lambda package: (
            lambda: package.Square(model, norm="Linf", eps=eps, n_queries=queries)(x, y)
        ),
    )
    return section


class Counted(nn.Module):
    """Counts the images that a model is shown."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.images = model, 0

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        self.images += len(x)
        logits: Tensor = self.model(x)
        return logits

    def during(self, work: Call) -> Call:
        """Return a call that returns ``work``'s result and the images it was shown."""

        def run() -> tuple[Any, int]:
            before = self.images
            found = work()
            return found, self.images - before

        return run


def right_when_clean(match: Match) -> tuple[Tensor, Tensor]:
    """Return the first few images that the model gets right."""
    right = ~wrong(match.model, match.x, match.y)
    return match.x[right][: match.few], match.y[right][: match.few]


def starting_points(
    model: nn.Module, x: Tensor, y: Tensor, corrupt: Callable[[float, Tensor], Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return images, labels and a misclassified start for each; without a start, an image goes.

    ``corrupt`` takes a strength in (0, 1] and uniform noise of the images' shape.
    """
    generator = torch.Generator().manual_seed(1)
    starts, need = x.clone(), torch.ones(len(x), dtype=torch.bool)
    for _ in range(40):
        for strength in (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0):
            tried = corrupt(strength, torch.rand(x.shape, generator=generator))
            hit = need & wrong(model, tried, y)
            starts[hit] = tried[hit]
            need &= ~hit
    return x[~need], y[~need], starts[~need]


def boundary(match: Match) -> Section:
    """Compare the boundary attack, from the same starts."""
    x, y = right_when_clean(match)
    x, y, starts = starting_points(match.model, x, y, lambda s, noise: (1 - s) * x + s * noise)
    model, steps = Counted(match.model).eval(), match.walk
    section = Section(
        f"Boundary L2, {steps} steps, {len(x)} images, "
        f"median distance {float(change(starts, x, 2).quantile(0.5)):.3g} at the start",
        "steps x forward",
        forwards(match.model, x, steps),
        nearest(match.model, x, y, 2, "L2"),
    )
    section.ours("bench", "boundary-l2", model, x, y, starts=starts, steps=steps)

    def foolbox(package: Any) -> Call:
        attack = package.attacks.BoundaryAttack(steps=steps)
        wrapped = foolbox_model(package, model)
        return lambda: attack(wrapped, x, y, epsilons=None, starting_points=starts)[1]

    section.peer("foolbox", foolbox)
    section.contenders = {name: model.during(call) for name, call in section.contenders.items()}
    return section


def pointwise(match: Match) -> Section:
    """Compare the pointwise attack, from the same starts of salt and pepper."""
    x, y = right_when_clean(match)

    def salt_and_pepper(share: float, noise: Tensor) -> Tensor:
        salted = torch.where(noise > 1 - share / 2, torch.ones_like(x), x)
        return torch.where(noise < share / 2, torch.zeros_like(x), salted)

    x, y, starts = starting_points(match.model, x, y, salt_and_pepper)
    model, changed = Counted(match.model).eval(), change(starts, x, 0)
    section = Section(
        f"Pointwise L0, {len(x)} images, {float(changed.mean()):.0f} entries changed at the start",
        "forward for every entry that the start changes, once",
        forwards(match.model, x, int(changed.mean())),
        nearest(match.model, x, y, 0, "L0"),
    )
    section.ours("bench", "pointwise-l0", model, x, y, starts=starts)

    def foolbox(**options: Any) -> Callable[[Any], Call]:
        def make(package: Any) -> Call:
            attack = importlib.import_module("foolbox.attacks.pointwise").PointwiseAttack(**options)
            wrapped = foolbox_model(package, model)
            return lambda: attack(wrapped, x, y, epsilons=None, starting_points=starts)[1]

        return make

    section.peer("foolbox, L0 only", foolbox(l2_binary_search=False))
    section.peer("foolbox", foolbox())
    section.contenders = {name: model.during(call) for name, call in section.contenders.items()}
    return section
