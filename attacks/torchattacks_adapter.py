"""Attacks of torchattacks (Kim 2020): ``torchattacks:NAME``, and FAB by names of its own.

Options are torchattacks', with its defaults: step sizes are absolute there, whatever eps is. The
number of classes is asked of the model, and seeds are ours. Attacks for either norm are for
L-infinity under their name and for L2 under ``NAME-L2``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bench.context import Context
from bench.errors import InputError, MissingExtra, UnknownName, Unsupported
from bench.registry import ATTACKS, Entry
from bench.types import Norm

from .foreign import Foreign, Shown, made
from .geometry import ball, per_image

# The library says the norms in its documentation only; those without a budget minimise a distance,
# or are measured as if they did.
_LINF = (
    "FGSM BIM RFGSM PGD EOTPGD FFGSM TPGD MIFGSM UPGD DIFGSM TIFGSM Jitter NIFGSM PGDRS SINIFGSM "
    "VMIFGSM VNIFGSM SPSA PIFGSM PIFGSMPP"
)
_L2 = "PGDL2 PGDRSL2 CW DeepFool EADEN GN"
_L0 = "OnePixel Pixle JSMA"
_EITHER = "APGD APGDT FAB AutoAttack Square"
_NORMS = {
    **dict.fromkeys(f"{_LINF} {_EITHER}".split(), Norm.LINF),
    **dict.fromkeys(_L2.split(), Norm.L2),
    **dict.fromkeys((f"{name}-L2" for name in _EITHER.split()), Norm.L2),
    **dict.fromkeys(_L0.split(), Norm.L0),
}
_REFUSED = {
    "SparseFool": "it changed all of 3,072 entries where it should change few, and took half a "
    "minute an image; take 'fmn-l0' or 'pointwise-l0'",
    "EADL1": f"it is for the L1 distance; measured here are {', '.join(Norm)}",
    "VANILA": "it changes nothing",
    "MultiAttack": "it is made of attacks; name several in the suite's option 'attacks'",
    "LGV": "it trains models on a data set",
}
_BUDGETS = {"eps", "max_epsilon"}
_OURS = {"model", "norm", "seed", "n_classes", "verbose", *_BUDGETS}


def _library() -> Any:
    """Return torchattacks.

    Raises:
        MissingExtra: It is not installed.
    """
    try:
        import torchattacks
    except ImportError as error:
        raise MissingExtra(
            "this attack is torchattacks', which is not installed: 'pip install --no-deps "
            "torchattacks tqdm' (without its own requirements: they hold back other packages)"
        ) from error
    return torchattacks


@dataclass(frozen=True, kw_only=True)
class Torchattacks(Foreign):
    """An attack of torchattacks."""

    library: ClassVar[str] = "torchattacks"

    def run(self, shown: Shown, x: Tensor, y: Tensor, starts: Tensor | None) -> Tensor:
        """Return what torchattacks makes of some images."""
        kind = getattr(_library(), self.attack)
        known = set(inspect.signature(kind).parameters)
        options = {**self.options(), **dict.fromkeys(known & _BUDGETS, self.eps)}
        if "norm" in known:
            options["norm"] = {Norm.LINF: "Linf", Norm.L2: "L2"}[self.norm]
        if "seed" in known:
            options["seed"] = torch.initial_seed() % (1 << 31)
        if "n_classes" in known:
            options["n_classes"] = self.classes(shown, x)
        try:
            attack = kind(shown, **options)
        except (AssertionError, TypeError, ValueError) as error:
            raise InputError(f"{self.name} does not take {options}: {error}") from error
        found: Tensor = attack(x, y)
        return found

    def classes(self, shown: Shown, x: Tensor) -> int:
        """Return how many classes the model has."""
        with torch.no_grad():
            return int(shown(x[:1]).shape[1])


@ATTACKS.scheme("torchattacks")
@cache
def torchattacks_attack(name: str) -> Entry[Callable[..., Any]]:
    """Any attack of torchattacks by its name there, e.g. torchattacks:MIFGSM, torchattacks:APGD-L2.

    Raises:
        UnknownName: It is not known here.
        Unsupported: It cannot be measured here.
        MissingExtra: torchattacks is not installed.
    """
    title = f"torchattacks:{name}"
    if name in _REFUSED:
        raise Unsupported(f"'{title}' is not run here: {_REFUSED[name]}")
    if name not in _NORMS:
        raise UnknownName("attack", title, [f"torchattacks:{key}" for key in _NORMS])
    attack = name.removesuffix("-L2")
    kind = getattr(_library(), attack)
    parameters = inspect.signature(kind).parameters
    options = {key: p.default for key, p in parameters.items() if key not in _OURS}
    target = made(
        Torchattacks,
        title,
        attack,
        _NORMS[name],
        options,
        f"{_headline(kind)}; torchattacks' {attack}.",
        minimum_norm=not _BUDGETS & set(parameters),
    )
    return Entry(title, target, target.__module__, {"norm": _NORMS[name]})


def _headline(kind: Any) -> str:
    """Return the first line of an attack's documentation, without the dots around the name."""
    lines = (inspect.getdoc(kind) or kind.__name__).splitlines()
    return lines[0].rstrip(". ")


@dataclass(frozen=True, kw_only=True)
class FAB(Torchattacks):
    """Fast adaptive boundary attack, Croce and Hein (2020), arXiv 1907.02044; torchattacks' FAB.

    It looks for the nearest adversarial image, and a budget says how near it must be.

    Attributes:
        steps: Steps a start.
        restarts: Starts, the first at the image.
        targeted: Whether to go towards each of the nearest ``targets`` classes in turn, as
            AutoAttack does, instead of differentiating all logits at each step.
        targets: How many, at most.
    """

    steps: int = 100
    restarts: int = 1
    targeted: bool = False
    targets: int = 9

    attack: ClassVar[str] = "FAB"
    watched: ClassVar[bool] = True

    def options(self) -> dict[str, Any]:
        """Return the library's options."""
        return {
            "steps": self.steps,
            "n_restarts": self.restarts,
            "multi_targeted": self.targeted,
        }

    def classes(self, shown: Shown, x: Tensor) -> int:
        """Return the number of classes to say, of which it attacks all but one."""
        return min(self.targets + 1, super().classes(shown, x))

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, context: Context) -> Tensor:
        """Return the nearest adversarial images within the budget, else the clean ones."""
        assert self.eps is not None
        return self.sweep(model, x, y, context, (self.eps,))[0]

    def sweep(
        self, model: nn.Module, x: Tensor, y: Tensor, context: Context, eps: tuple[float, ...]
    ) -> Tensor:
        """Return candidates for increasing budgets, ``(n_eps, B, C, H, W)``, of one search."""
        found = replace(self, eps=eps[-1]).found(model, x, y, context)
        change = (found - x).flatten(1)
        order = torch.inf if self.norm is Norm.LINF else 2
        distance = torch.linalg.vector_norm(change, ord=order, dim=1)
        near = [torch.where(per_image(distance <= e, x), found, x) for e in eps]
        return torch.stack(
            [ball(self.norm, x, e).project(points) for e, points in zip(eps, near, strict=True)]
        )


@ATTACKS.register("fab-linf", norm=Norm.LINF)
@dataclass(frozen=True, kw_only=True)
class LinfFAB(FAB):
    """Fast adaptive boundary attack, Croce and Hein (2020), in L-infinity; torchattacks' FAB."""

    norm: Norm = field(default=Norm.LINF, init=False)
    called: ClassVar[str] = "fab-linf"


@ATTACKS.register("fab-l2", norm=Norm.L2)
@dataclass(frozen=True, kw_only=True)
class L2FAB(FAB):
    """Fast adaptive boundary attack, Croce and Hein (2020), in L2; torchattacks' FAB."""

    norm: Norm = field(default=Norm.L2, init=False)
    called: ClassVar[str] = "fab-l2"
