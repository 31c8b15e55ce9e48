"""One comparison: contenders on the same model, images and steps, the floor, and the judges.

Peers are called as well as they can be: weights frozen, so that their ``backward()`` computes no
gradient of theirs; eval mode; no progress bars; one call for the whole batch. What each returned is
shown to the model again here, whoever made it.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import bench

Call = Callable[[], Any]


@dataclass(frozen=True)
class Match:
    """Model, images and sizes.

    Attributes:
        model: In eval mode, weights frozen.
        jem: The energy-based classifier behind the refined model, in the same state.
        x: Images in [0, 1].
        y: Labels.
        linf: Budget that some images survive.
        l2: The same in L2.
        sweep: Budgets of the sweep, L-infinity.
        steps: Of gradient attacks.
        queries: Of Square.
        walk: Steps of the boundary attack.
        few: Images for attacks that ask much: boundary, pointwise, draws.
    """

    model: nn.Module
    jem: nn.Module
    x: Tensor
    y: Tensor
    linf: float
    l2: float
    sweep: tuple[float, ...]
    steps: int
    queries: int
    walk: int
    few: int


@dataclass
class Section:
    """One comparison.

    Attributes:
        title: What is compared.
        floor_is: The least work that the task takes, in words.
        floor: That work.
        contenders: By name.
        judge: What a contender returned, to the figures shown.
        skipped: Why a contender is missing, by name.
    """

    title: str
    floor_is: str
    floor: Call
    judge: Callable[[Any], dict[str, Any]]
    contenders: dict[str, Call] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    def peer(self, name: str, make: Callable[[Any], Call]) -> None:
        """Add what ``make`` makes of the peer's package, named by the first word of ``name``."""
        package = name.split()[0].rstrip(",")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.contenders[name] = make(importlib.import_module(package))
        except Exception as error:
            self.skipped[name] = f"{type(error).__name__}: {error}".splitlines()[0][:160]

    def ours(self, name: str, attack: str, *args: Any, **options: Any) -> None:
        """Add a call of `bench.attack` that returns its images."""
        if attack in bench.ATTACKS:
            self.contenders[name] = lambda: bench.attack(attack, *args, **options).x_adv
        else:
            self.skipped[name] = f"no attack is named {attack}"


def gradient(model: nn.Module, x: Tensor, y: Tensor) -> None:
    """Do what a step cannot do without: one forward pass, and one backward pass to the input."""
    point = x.detach().requires_grad_()
    loss = nn.functional.cross_entropy(model(point), y, reduction="sum")
    torch.autograd.grad(loss, point)


def passes(model: nn.Module, x: Tensor, y: Tensor, count: int) -> Call:
    """Return the floor of gradient attacks: ``count`` forward and backward passes."""

    def run() -> None:
        for _ in range(count):
            gradient(model, x, y)

    return run


def copies(x: Tensor, y: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return every image and label ``count`` times."""
    return x.repeat_interleave(count, dim=0), y.repeat_interleave(count)


def forwards(model: nn.Module, x: Tensor, count: int) -> Call:
    """Return the floor of query attacks: ``count`` forward passes."""

    @torch.no_grad()
    def run() -> None:
        for _ in range(count):
            model(x)

    return run


@torch.no_grad()
def wrong(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return which images are misclassified, ``(B,)``, by a pass of our own."""
    missed: Tensor = model(x).argmax(dim=1) != y
    return missed


def change(x_adv: Tensor, x: Tensor, order: float) -> Tensor:
    """Return the size of the change of every image in float64, ``(B,)``."""
    return torch.linalg.vector_norm((x_adv.double() - x.double()).flatten(1), order, dim=1)


def within(match: Match, order: float, eps: float) -> Callable[[Tensor], dict[str, Any]]:
    """Judge images at a fixed budget: robust accuracy, and how far beyond the budget they go."""

    def judge(x_adv: Tensor) -> dict[str, Any]:
        x_adv = x_adv.detach()
        robust = 1 - wrong(match.model, x_adv, match.y).double().mean()
        over = change(x_adv, match.x, order).max() / eps - 1
        return {"robust": float(robust), "over eps": max(float(over), 0.0)}

    return judge


def foolbox_model(package: Any, model: nn.Module) -> Any:
    """Return foolbox's wrapper of a model."""
    return package.PyTorchModel(model, bounds=(0, 1), device="cpu")


def nearest(
    model: nn.Module, x: Tensor, y: Tensor, order: float, name: str
) -> Callable[[Any], dict[str, Any]]:
    """Judge nearest images: the mean and the median distance, infinite where none was found."""

    def judge(found: Any) -> dict[str, Any]:
        x_adv, images = found if isinstance(found, tuple) else (found, None)
        distance = change(x_adv, x, order)
        distance[~wrong(model, x_adv, y)] = torch.inf
        figures = {f"median {name}": float(distance.quantile(0.5))}
        figures[f"mean {name}"] = float(distance.mean())
        return figures if images is None else {**figures, "queries": images / len(x)}

    return judge
