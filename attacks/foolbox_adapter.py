"""Attacks of foolbox (Rauber et al. 2017, 2020): ``foolbox:NAME``, and some by names of their own.

Options are foolbox's, with its defaults unless the table says otherwise. foolbox's ``__call__`` is
not used: ``run`` needs neither a distance (PointwiseAttack has none to give) nor a further pass.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bench.context import Context
from bench.errors import InputError, MissingExtra, UnknownName, Unsupported
from bench.registry import ATTACKS, Entry
from bench.types import Norm

from .foreign import Foreign, Shown, made

_NORMS = {  # where the class does not say it, or says what is not so
    "HopSkipJumpAttack": Norm.L2,
    "PointwiseAttack": Norm.L0,
    "SaltAndPepperNoiseAttack": Norm.L2,
}
_REFUSED = {
    "GenAttack": "it attacks towards a class that must be named; 'square-linf' needs no gradient",
    "DatasetAttack": "it tries the images of a data set; give some as starts= to 'boundary-l2'",
    "BinarizationRefinementAttack": "it is for models that threshold their input",
    "SpatialAttack": "rotations and translations have no norm",
}
_STARTS_FAIL = {"L0FMNAttack"}  # with points to start from it asks a tensor for an arange
_AT_ONCE = {"HopSkipJumpAttack": 16}  # it makes up to 800 copies of them together
_BLEND, _SALT = "LinearSearchBlendedUniformNoiseAttack", "SaltAndPepperNoiseAttack"
_STARTS = {  # the search for an adversarial image to start from, as foolbox has it
    "BoundaryAttack": (_BLEND, {"steps": 50}),
    "HopSkipJumpAttack": (_BLEND, {"steps": 50}),
    "PointwiseAttack": (_SALT, {}),
    "L0BrendelBethgeAttack": (_BLEND, {}),
    "L2BrendelBethgeAttack": (_BLEND, {}),
    "LinfinityBrendelBethgeAttack": (_BLEND, {}),
}
_HIDDEN = {"distance", "init_attack", "tensorboard", "channel_axis"}
_DEFAULTS = {"VirtualAdversarialAttack": {"steps": 10}}  # foolbox has none


def _library() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of SciPy, about a name that foolbox imports
        import foolbox

    return foolbox


@cache
def _kind(attack: str) -> Any:
    """Return foolbox's class of that name, or one without a fault that was found in it."""
    kind = getattr(_library().attacks, attack)
    return _REPAIRS[attack](kind) if attack in _REPAIRS else kind


def _hopskipjump(kind: Any) -> Any:
    """Return HopSkipJump with directions of length 1 (Chen et al. 2020, equation 16).

    foolbox divides by the length of the whole batch's, so that the step of an image is 4 times too
    short in a batch of 16.
    """

    class HopSkipJumpAttack(kind):  # type: ignore[misc]
        def approximate_gradients(self, *arguments: Any) -> Any:
            whole = super().approximate_gradients(*arguments)
            lengths = whole.square().sum(axis=(1, 2, 3), keepdims=True).sqrt()
            return whole / lengths.maximum(1e-12)

    return HopSkipJumpAttack


def _fmn_l2(kind: Any) -> Any:
    """Return FMN with a projection (Pintor et al. 2021, algorithm 1, line 8).

    foolbox scales by the ratio of a norm to itself, so that no point is ever nearer than its first
    step of length 1. A point is projected from its first success on only. Before it the paper's
    radius is the distance plus what a linear model lacks, and where the box cuts off part of every
    step a point within that radius comes ever nearer to the boundary and never crosses it.
    """
    misclassified: Any = _library().criteria.Misclassification

    class Remembered(misclassified):  # type: ignore[misc]
        found: Any = False

        def __call__(self, perturbed: Any, outputs: Any) -> Any:
            wrong = super().__call__(perturbed, outputs)
            self.found = wrong.logical_or(self.found)
            return wrong

    class L2FMNAttack(kind):  # type: ignore[misc]
        def run(self, model: Any, inputs: Any, criterion: Any, **more: Any) -> Any:
            self.seen = Remembered(criterion.labels)
            return super().run(model, inputs, self.seen, **more)

        def project(self, x: Any, x0: Any, epsilon: Any) -> Any:
            lengths = (x - x0).square().sum(axis=(1, 2, 3)).sqrt().maximum(1e-12)
            factor = self.seen.found.where((epsilon / lengths).minimum(1.0), 1.0)
            return x0 + (x - x0) * factor.reshape((-1, 1, 1, 1))

    return L2FMNAttack


_REPAIRS = {"HopSkipJumpAttack": _hopskipjump, "L2FMNAttack": _fmn_l2}


@dataclass(frozen=True, kw_only=True)
class Foolbox(Foreign):
    """An attack of foolbox."""

    library: ClassVar[str] = "foolbox"

    def built(self) -> Any:
        """Return foolbox's own object.

        Raises:
            InputError: It does not take the options.
            MissingExtra: It needs a package that is not here.
        """
        kind, options = _kind(self.attack), self.options()
        if "distance" in inspect.signature(kind).parameters:
            options["distance"] = getattr(_library().distances, self.norm.value)
        try:
            return kind(**options)
        except ImportError as error:
            raise MissingExtra(
                f"{self.name} needs {error.name}: 'pip install {error.name}'"
            ) from error
        except (AssertionError, TypeError, ValueError) as error:
            raise InputError(f"foolbox's {self.attack} does not take {options}: {error}") from error

    def run(self, shown: Shown, x: Tensor, y: Tensor, starts: Tensor | None) -> Tensor:
        """Return what foolbox makes of some images."""
        more: dict[str, Any] = {} if self.minimum_norm else {"epsilon": self.eps}
        return self.ran(shown, x, y, **more)

    def ran(self, shown: Shown, x: Tensor, y: Tensor, **more: Any) -> Tensor:
        """Return what its ``run`` does, with more arguments of its own."""
        model = _library().PyTorchModel(shown, bounds=(0, 1), device=x.device)
        criterion = _library().criteria.Misclassification(y)
        found: Tensor = self.built().run(model, x, criterion, **more)
        return found


@dataclass(frozen=True, kw_only=True)
class FoolboxFrom(Foolbox):
    """An attack of foolbox that can be given images to start from, or has to find some.

    An image for which none is found comes back as it is. foolbox stops the whole batch there.
    """

    def __call__(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        context: Context,
        starts: Tensor | None = None,
    ) -> Tensor:
        """Return the nearest adversarial images, and clean ones where there was none.

        Args:
            model: Returns logits.
            x: Clean images, ``(B, C, H, W)``.
            y: True classes, ``(B,)``.
            context: Noise and limits.
            starts: Adversarial images to start from, the shape of ``x``.
        """
        if starts is None:
            if self.attack not in _STARTS:
                return self.found(model, x, y, context)
            self.built()  # what it does not take is told before the search
            name, options = _STARTS[self.attack]
            search = made(
                Foolbox, self.called, name, self.norm, options, "Starts.", minimum_norm=True
            )
            starts = search()(model, x, y, context)
        rows = (starts != x).flatten(1).any(dim=1).nonzero()[:, 0]
        found, none = x.clone(), torch.zeros_like(y)
        if len(rows):
            local = replace(
                context,
                noise=context.noise.select(rows),
                spent=lambda passes: context.spent(none.index_copy(0, rows, passes)),
            )
            found[rows] = self.found(model, x[rows], y[rows], local, starts[rows])
        return found

    def run(self, shown: Shown, x: Tensor, y: Tensor, starts: Tensor | None) -> Tensor:
        """Return what foolbox makes of the images whose start is adversarial."""
        if starts is None:
            return super().run(shown, x, y, None)
        with torch.no_grad():
            rows = (shown(starts).argmax(dim=1) != y).nonzero()[:, 0]
        found = x.clone()
        if len(rows):
            found[rows] = self._from(shown, x[rows], y[rows], starts[rows])
        return found

    def _from(self, shown: Shown, x: Tensor, y: Tensor, starts: Tensor) -> Tensor:
        from eagerpy.astensor import astensor

        try:  # FMN in L0 takes no plain tensor here
            return self.ran(shown, x, y, starting_points=astensor(starts))
        except (AssertionError, ValueError) as error:
            if isinstance(error, ValueError) and "adversarial" not in str(error):
                raise
            if shown.stochastic:
                raise Unsupported(
                    f"{self.name} found an image adversarial and then not: it cannot attack a "
                    "model whose answers change; take 'boundary-l2' or 'square-linf'"
                ) from error
            return starts  # what it has shown to the model until here counts


def _norm(name: str, kind: Any) -> Norm:
    """Return the norm of an attack of foolbox; where it takes any, L2.

    Raises:
        Unsupported: It is L1.
    """
    distance = kind.distance
    if name in _NORMS or "distance" in inspect.signature(kind).parameters:
        return _NORMS.get(name, Norm.L2)
    if isinstance(distance, property):
        distance = kind().distance
    norms = [norm for norm in Norm if getattr(_library().distances, norm.value) is distance]
    if not norms:
        raise Unsupported(
            f"'foolbox:{name}' is for the {distance}; measured here are {', '.join(Norm)}"
        )
    return norms[0]


@ATTACKS.scheme("foolbox")
@cache
def foolbox_attack(name: str) -> Entry[Callable[..., Any]]:
    """Any attack of foolbox by its name there, e.g. foolbox:LinfPGD; options are foolbox's.

    Raises:
        UnknownName: foolbox has none of that name.
        Unsupported: It cannot be measured here.
    """
    base = _library().attacks.base
    kinds = {
        key: value
        for key, value in vars(_library().attacks).items()
        if inspect.isclass(value) and issubclass(value, base.Attack) and value is not base.Attack
    }
    if name not in kinds:
        raise UnknownName("attack", f"foolbox:{name}", [f"foolbox:{key}" for key in kinds])
    kind: Any = kinds[name]
    attack = kind.__name__
    if attack in _REFUSED:
        raise Unsupported(f"'foolbox:{name}' is not run here: {_REFUSED[attack]}")
    signature = inspect.signature(kind)
    options = {key: p.default for key, p in signature.parameters.items() if key not in _HIDDEN}
    options = {**options, **_DEFAULTS.get(attack, {})}
    takes = "starting_points" in inspect.signature(kind.run).parameters
    can_start = takes and attack not in _STARTS_FAIL
    norm = _norm(attack, kind)
    target = made(
        FoolboxFrom if can_start else Foolbox,
        f"foolbox:{name}",
        attack,
        norm,
        options,
        f"{(inspect.getdoc(kind) or attack).splitlines()[0].rstrip('.')}; foolbox's {attack}.",
        minimum_norm=issubclass(kind, base.MinimizationAttack),
        at_once=_AT_ONCE.get(attack, 0),
    )
    return Entry(f"foolbox:{name}", target, target.__module__, {"norm": norm})


# Name here, name in foolbox, norm, options with their defaults, paper.
_FMN = {"steps": 100, "max_stepsize": 1.0, "gamma": 0.05}
_DEEPFOOL = {"steps": 50, "candidates": 10, "overshoot": 0.02}
_JUMPS = {"steps": 64, "initial_gradient_eval_steps": 100, "gamma": 1.0}
_TABLE: tuple[tuple[str, str, Norm, dict[str, Any], str], ...] = (
    (
        "cw-l2",
        "L2CarliniWagnerAttack",
        Norm.L2,
        {"steps": 1000, "binary_search_steps": 9, "stepsize": 0.01, "initial_const": 0.001},
        "Carlini and Wagner (2017)",
    ),
    (
        "ddn-l2",
        "DDNAttack",
        Norm.L2,
        {"steps": 100, "init_epsilon": 1.0, "gamma": 0.05},
        "Decoupled direction and norm, Rony et al. (2019)",
    ),
    ("deepfool-l2", "L2DeepFoolAttack", Norm.L2, _DEEPFOOL, "DeepFool, Moosavi et al. (2016)"),
    ("deepfool-linf", "LinfDeepFoolAttack", Norm.LINF, _DEEPFOOL, "DeepFool in L-infinity"),
    ("fmn-l0", "L0FMNAttack", Norm.L0, _FMN, "Fast minimum norm, Pintor et al. (2021)"),
    ("fmn-l2", "L2FMNAttack", Norm.L2, _FMN, "Fast minimum norm, Pintor et al. (2021)"),
    ("fmn-linf", "LInfFMNAttack", Norm.LINF, _FMN, "Fast minimum norm, Pintor et al. (2021)"),
    ("hopskipjump-l2", "HopSkipJumpAttack", Norm.L2, _JUMPS, "HopSkipJump, Chen et al. (2020)"),
    ("hopskipjump-linf", "HopSkipJumpAttack", Norm.LINF, _JUMPS, "HopSkipJump, Chen et al. (2020)"),
)
for _name, _attack, _of, _options, _paper in _TABLE:
    _jumps = _attack == "HopSkipJumpAttack"
    _can_start = _jumps or ("FMN" in _attack and _attack not in _STARTS_FAIL)
    ATTACKS.register(_name, norm=_of)(
        made(
            FoolboxFrom if _can_start else Foolbox,
            _name,
            _attack,
            _of,
            _options,
            f"{_paper}; foolbox's {_attack}.",
            minimum_norm=True,
            at_once=_AT_ONCE.get(_attack, 0),
            fixed={"constraint": _of.value} if _jumps else {},
        )
    )
