"""Every registered attack as a test case with small options, and toy models to attack.

The kinds are asked of the registry (norm, ``minimum_norm``, options), so later attacks fall under
the tests of their kind without an edit:

    @pytest.mark.parametrize("case", cases("minimum norm"), ids=str)
    def test_something(case: Case) -> None:
        out = case.run(model, x, y)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

from bench.attacking import AttackResult, attack
from bench.noise import Noise
from bench.registry import ATTACKS
from bench.types import Norm

Kind = Literal["any", "budget", "minimum norm", "starts", "eot"]

# Budgets that break toy models of 64 pixels, in units of the [0, 1] pixel range (L0: entries).
EPS = {Norm.L0: 24.0, Norm.L2: 1.0, Norm.LINF: 0.15}
# Enough for toy models; an attack keeps its own number where that is smaller.
SMALL = {
    **{"steps": 12, "restarts": 1, "queries": 80, "eot_samples": 2, "targets": 2, "draws": 5},
    **{"apgd_steps": 12, "fab_steps": 4, "square_queries": 80},  # of AutoAttack
    **{"initial_gradient_eval_steps": 4, "binary_search_steps": 3},  # of foolbox
}
SMALL_AND_SLOW = {"steps": 2}
# Names of other libraries; what is not installed is left out.
FOREIGN = (
    *("foolbox:LinfPGD", "foolbox:L2RepeatedAdditiveUniformNoiseAttack", "foolbox:BoundaryAttack"),
    *("torchattacks:MIFGSM", "torchattacks:PGDL2"),
)
# They stand for all attacks of other libraries, which share their adapter; the rest is slow tests.
EXAMPLES = ("ddn-l2", "fab-linf", "torchattacks:MIFGSM")


@dataclass(frozen=True)
class Case:
    """One attack, how to call it cheaply, and of which kind it is.

    Attributes:
        name: In the registry.
        norm: Of its budget.
        minimum_norm: Whether it always looks for the nearest adversarial image.
        slow: Whether its tests are slow ones.
        keyed: Whether an image's draws belong to it; those of other libraries belong to the batch.
        known: Names of its options.
        small: Options with small numbers, those that it has.
    """

    name: str
    norm: Norm
    minimum_norm: bool
    slow: bool
    keyed: bool
    known: frozenset[str]
    small: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name

    @property
    def eps(self) -> float:
        """A budget that breaks the toy models."""
        return EPS[self.norm]

    @property
    def budget(self) -> float | None:
        """That budget, or none for an attack that minimises the distance."""
        return None if self.minimum_norm else self.eps

    def run(self, model: nn.Module, x: Any, y: Any, **more: Any) -> AttackResult:
        """Attack at `budget` with small options, unless said otherwise."""
        return attack(self.name, model, x, y, **{"eps": self.budget, **self.small, **more})


def _case(name: str) -> Case:
    entry = ATTACKS.entry(name)
    defaults, kind = entry.options, entry.target
    keyed, few = bool(getattr(kind, "keyed", True)), bool(getattr(kind, "at_once", 0))
    most = {**SMALL, **(SMALL_AND_SLOW if few else {})}
    small = {
        option: number
        for option, number in most.items()
        if isinstance(defaults.get(option), int) and defaults[option] > number
    }
    return Case(
        name=name,
        norm=Norm(entry.facts["norm"]),
        minimum_norm=bool(getattr(kind, "minimum_norm", False)),
        slow=not keyed and name not in EXAMPLES,
        keyed=keyed,
        known=frozenset(defaults),
        small=small,
    )


def _takes_starts(case: Case) -> bool:
    target: Any = ATTACKS[case.name]
    return "starts" in inspect.signature(target.__call__).parameters


_IS: dict[Kind, Callable[[Case], bool]] = {
    "any": lambda case: True,
    "budget": lambda case: not case.minimum_norm,
    "minimum norm": lambda case: case.minimum_norm,
    "starts": _takes_starts,
    "eot": lambda case: {"gradient", "eot_samples"} <= case.known,
}


def cases(kind: Kind) -> list[Any]:
    """Return the attacks of a kind: all that are registered, and some by other libraries' names."""
    names = [*ATTACKS, *(name for name in FOREIGN if name in ATTACKS)]
    found = [case for case in map(_case, names) if _IS[kind](case)]
    return [pytest.param(case, marks=pytest.mark.slow) if case.slow else case for case in found]


def small_net(classes: int = 4, seed: int = 0) -> nn.Module:
    """Return an untrained net of 64 inputs whose classes all occur among random images."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        first, last = nn.Linear(64, 32), nn.Linear(32, classes)
    with torch.no_grad():
        first.weight *= 3
        first.bias.sub_(0.5 * first.weight.sum(dim=1))
    net = nn.Sequential(nn.Flatten(), first, nn.Tanh(), last)
    return net.eval()


def random_images(count: int, seed: int = 0) -> Tensor:
    """Return ``(count, 1, 8, 8)`` uniform in [0, 1], the first ones at corners of the box."""
    x = torch.rand(count, 1, 8, 8, generator=torch.Generator().manual_seed(seed))
    x[: count // 8] = x[: count // 8].round()
    return x


@torch.no_grad()
def answers(model: nn.Module, x: Tensor) -> Tensor:
    """Return the classes that the model gives, ``(B,)``."""
    logits: Tensor = model(x)
    return logits.argmax(dim=1)


class Linear(nn.Module):
    """Logits W (x - 1/2) + b; images of 64 entries."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(bias)

    def forward(self, x: Tensor) -> Tensor:
        return (x - 0.5).flatten(1) @ self.weight.T + self.bias


class Islands(nn.Module):
    """Class 0 within an L2 distance of 0.4 from any centre, class 1 in all the sea around.

    An image far out at sea has nothing adversarial that a search could come upon: no gradient
    points to an island, and no noise, no blend and no short walk hits one.
    """

    def __init__(self, centres: Tensor) -> None:
        super().__init__()
        self.register_buffer("centres", centres.flatten(1))

    def forward(self, x: Tensor) -> Tensor:
        centres: Tensor = self.centres  # type: ignore[assignment]
        square = (x.flatten(1)[:, None] - centres).square().sum(dim=2).amin(dim=1)
        inside = 10 * (0.4**2 - square).clamp(min=-0.3)
        return torch.stack([inside, torch.zeros_like(inside), 0 * inside - 9], dim=1)


class Recorder(nn.Module):
    """Notes every image that it is shown, and how many calls there were."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.shown: list[Tensor] = []
        self.logits: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x)
        self.shown.append(x.detach().clone())
        self.logits.append(logits.detach())
        return logits


class NoisyWeights(nn.Module):
    """Logits (0, (w + spread * noise) . (x - 1/2) + b): the expected margin is linear in x.

    With noise on the weights, unlike noise on the input, one draw's gradient points elsewhere.
    """

    stochastic = True

    def __init__(self, w: Tensor, b: float, spread: float) -> None:
        super().__init__()
        self.w, self.b, self.spread = nn.Parameter(w), b, spread
        self.batches: list[int] = []

    def sample_logits(self, x: Tensor, noise: Noise) -> Tensor:
        self.batches.append(len(x))
        weights = self.w + self.spread * noise.normal(*x.shape[1:]).flatten(1)
        value = (weights * (x - 0.5).flatten(1)).sum(dim=1) + self.b
        return torch.stack([torch.zeros_like(value), value], dim=1)
