"""What an attack is asked: images, labels, budgets and options, checked and in one form."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from bench.context import Context
from bench.errors import BenchError, InputError, ModelError
from bench.noise import Noise, bound
from bench.registry import ATTACKS
from bench.specs import wrong_type
from bench.types import Attack, Norm

Arrays = Tensor | npt.NDArray[Any]
_SLACK = 1e-6  # rounding of a caller's own scaling to [0, 1]


def as_images(x: Arrays) -> Tensor:
    """Return the images as float32 in [0, 1], detached; uint8 is divided by 255.

    Raises:
        InputError: The shape, type or range is not that of images.
    """
    images = torch.as_tensor(x).detach()
    if images.ndim != 4 or images.shape[0] == 0 or images.numel() == 0:
        raise InputError(
            f"images have shape {tuple(images.shape)}; expected (B, C, H, W) with at least one "
            "image: move the channels to the second axis, and do not pass an empty batch"
        )
    if images.dtype == torch.uint8:
        return (images.to(torch.float32) / 255).contiguous()
    if not images.is_floating_point():
        raise InputError(
            f"images are {images.dtype}; expected floating-point numbers in [0, 1] or uint8 in "
            "0..255"
        )
    low, high = float(images.min()), float(images.max())
    if not (low >= -_SLACK and high <= 1 + _SLACK):  # also false for NaN
        raise InputError(
            f"pixel values run from {low:g} to {high:g}; expected [0, 1]: divide by 255, or undo "
            "the normalisation (it belongs into the model); NaN is not a pixel value"
        )
    # In one layout: sums over another one round otherwise.
    return images.to(torch.float32).clamp(0, 1).contiguous()


def as_labels(y: Arrays | Sequence[int], count: int) -> Tensor:
    """Return the labels as int64, ``(B,)``.

    Raises:
        InputError: They are not one class number an image.
    """
    labels = torch.as_tensor(y).detach()
    if labels.shape != (count,) or labels.is_floating_point() or labels.dtype == torch.bool:
        raise InputError(
            f"labels are {labels.dtype} of shape {tuple(labels.shape)}; expected integer class "
            f"numbers of shape ({count},)"
        )
    labels = labels.to(torch.int64)  # torch has no minimum of some unsigned types
    if int(labels.min()) < 0:
        raise InputError(
            f"labels start at {int(labels.min())}; expected class numbers from 0: leave images "
            "without a class out"
        )
    return labels


def as_starts(starts: Arrays | None, x: Tensor) -> Tensor | None:
    """Return the starting points, one an image, in the form of `as_images`.

    Raises:
        InputError: They are not images of the shape of ``x``, ``(B, C, H, W)``.
    """
    if starts is None:
        return None
    points = as_images(starts).to(x.device)
    if points.shape != x.shape:
        raise InputError(
            f"starts have shape {tuple(points.shape)}; expected one starting point an image, "
            f"{tuple(x.shape)}"
        )
    return points


def as_budgets(eps: float | Sequence[float] | None, endless: bool = False) -> tuple[float, ...]:
    """Return the budgets, at least one, as numbers of at least 0; ``None`` is no limit.

    With ``endless`` one of several may be infinite, too: no limit.
    """
    if eps is None:
        return (math.inf,)
    try:
        budgets = tuple(float(e) for e in np.atleast_1d(np.asarray(eps, dtype=np.float64)))
    except (TypeError, ValueError) as error:
        raise InputError(f"eps is {eps!r}; expected a number or a list of numbers") from error
    if not budgets or not all(0 <= e < math.inf or (endless and e == math.inf) for e in budgets):
        raise InputError(
            f"eps is {eps!r}; expected finite numbers of at least 0, in units of the [0, 1] pixel "
            "range (write 8/255, not 8)"
        )
    return budgets


@dataclass(frozen=True)
class Plan:
    """One attack at increasing budgets.

    Attributes:
        name: What to call the attack in messages.
        norm: The norm of its budget.
        eps: The budgets, increasing; infinite alone for the nearest adversarial image.
        order: Place of each budget in the order it was asked for.
        attacks: The attack with its options, one for each budget; a single one for all where it
            looks for the nearest adversarial image.
        whole: The attack that takes the budgets together, where it has a ``sweep``.
    """

    name: str
    norm: Norm
    eps: tuple[float, ...]
    order: tuple[int, ...]
    attacks: tuple[Attack, ...]
    whole: Any | None

    @property
    def nearest(self) -> bool:
        """Whether the attack minimises the distance instead of keeping to a budget."""
        return self.eps == (math.inf,) or minimises(self.attacks[0])

    @property
    def takes_starts(self) -> bool:
        """Whether the attack can be given starting points."""
        call = self.attacks[0].__call__ if self.whole is None else self.whole.sweep
        return "starts" in inspect.signature(call).parameters

    def has(self, option: str) -> bool:
        """Say whether the attack has that option."""
        return option in {f.name for f in dataclasses.fields(self.attacks[0]) if f.init}  # type: ignore[arg-type]

    def option(self, name: str) -> Any:
        """Return the value of an option that the attack has; all budgets share it."""
        return getattr(self.attacks[0], name)

    def varied(self, **fields: Any) -> Plan:
        """Return the plan with other values of those options that the attack has."""

        def vary(attack: Any) -> Any:
            known = {f.name for f in dataclasses.fields(attack) if f.init}
            return dataclasses.replace(attack, **{k: v for k, v in fields.items() if k in known})

        whole = None if self.whole is None else vary(self.whole)
        return dataclasses.replace(self, attacks=tuple(map(vary, self.attacks)), whole=whole)


def minimises(attack: object) -> bool:
    """Say whether an attack, or a class of attacks, always minimises the distance."""
    return bool(getattr(attack, "minimum_norm", False))


def _build(attack: str | Attack, fields: dict[str, Any]) -> Any:
    """Return the attack of that name, or a variant of an attack that there is.

    Raises:
        UnknownName: No attack has that name.
        InputError: It has no such option, does not take the value, or needs a budget.
    """
    kind = ATTACKS[attack] if isinstance(attack, str) else type(attack)
    if not dataclasses.is_dataclass(kind):
        raise InputError(f"the attack {attack!r} is not a frozen dataclass with a field 'eps'")
    known = [f for f in dataclasses.fields(kind) if f.init]
    unknown = sorted(set(fields) - {f.name for f in known})
    if unknown:
        raise InputError(
            f"attack {attack!r} has no option {', '.join(unknown)}; it has "
            f"{', '.join(f.name for f in known)}"
        )
    for option in known:
        # Of an attack that is handed over, also what it was made with.
        value = fields.get(option.name, getattr(attack, option.name, option.default))
        if option.name != "eps" and (words := wrong_type(value, option.default)):
            raise InputError(f"attack {attack!r} with {option.name}={value!r}: expected {words}")
    try:
        return kind(**fields) if isinstance(attack, str) else dataclasses.replace(attack, **fields)  # type: ignore[type-var]
    except BenchError:
        raise
    except (TypeError, ValueError) as error:
        if fields.get("eps", 0) is None:  # its check compares the budget with a number
            raise InputError(
                f"attack {attack!r} needs a budget: give eps=8/255, say; attacks that look for the "
                "nearest adversarial image are e.g. 'boundary-l2' and 'ddn-l2'"
            ) from error
        raise InputError(
            f"attack {attack!r} cannot be made with {fields}: {error}; 'bench list attacks' shows "
            "its options"
        ) from error


def plan(
    attack: str | Attack, eps: float | Sequence[float] | None, options: dict[str, Any]
) -> Plan:
    """Return the attack at each budget; ``step_size`` may have one value for each.

    Raises:
        UnknownName: No attack has that name.
        InputError: The attack has no such option, or a value is impossible.
    """
    name = attack if isinstance(attack, str) else type(attack).__name__
    kind = ATTACKS[attack] if isinstance(attack, str) else attack
    asked = as_budgets(eps, endless=minimises(kind))
    if eps is None or minimises(kind):
        one = _build(attack, {**options, "eps": None})
        order = tuple(sorted(range(len(asked)), key=asked.__getitem__))
        return Plan(name, Norm(one.norm), tuple(asked[i] for i in order), order, (one,), None)
    order = tuple(sorted(range(len(asked)), key=asked.__getitem__))
    budgets = tuple(asked[i] for i in order)
    options = dict(options)
    sizes = options.get("step_size")
    if isinstance(sizes, Sequence | np.ndarray) and not isinstance(sizes, str):
        if len(sizes) != len(asked):
            raise InputError(
                f"{len(sizes)} step sizes for {len(asked)} values of eps; give one each"
            )
        each = [{**options, "step_size": float(sizes[i])} for i in order]
        options["step_size"] = tuple(float(sizes[i]) for i in order)
    else:
        each = [options] * len(asked)
    attacks = [_build(attack, {**o, "eps": e}) for o, e in zip(each, budgets, strict=True)]
    whole = (
        _build(attack, {**options, "eps": budgets[-1]}) if hasattr(attacks[0], "sweep") else None
    )
    return Plan(name, Norm(attacks[0].norm), budgets, order, tuple(attacks), whole)


def as_ids(ids: Any) -> Tensor:
    """Return the numbers of images, int64.

    Raises:
        InputError: They are no whole numbers.
    """
    try:
        numbers = torch.as_tensor(ids)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"ids are {ids!r}; expected a whole number for every image") from error
    if numbers.ndim != 1 or numbers.is_floating_point() or numbers.is_complex():
        raise InputError(
            f"ids are {numbers.dtype} of shape {tuple(numbers.shape)}; expected a whole number for "
            "every image"
        )
    return numbers.to(torch.int64)


def around(noise: Noise, context: Context | None, micro_batch: int) -> Context:
    """Return the context with that noise, or a new one.

    Raises:
        InputError: The micro-batch is no count.
    """
    if context is not None:
        return dataclasses.replace(context, noise=noise)
    if not isinstance(micro_batch, Integral) or isinstance(micro_batch, bool) or micro_batch < 1:
        raise InputError(f"micro_batch={micro_batch!r}; expected a whole number of at least 1")
    return Context(noise=noise, micro_batch=micro_batch)


def home(model: nn.Module, otherwise: torch.device) -> torch.device:
    """Return the device of the model's weights, or another where it has none.

    Raises:
        ModelError: It is not a module.
    """
    if not isinstance(model, nn.Module):
        raise ModelError(
            f"the model is a {type(model).__name__}; expected an nn.Module that takes images in "
            "[0, 1] and returns logits"
        )
    first = next(iter(model.parameters()), next(iter(model.buffers()), None))
    return otherwise if first is None else first.device


def noise_of(
    context: Context | None, count: int, seed: int, task: str, ids: Any | None, device: torch.device
) -> Noise:
    """Return the noise of the images on the device: the context's, or that of (seed, task, ids).

    Raises:
        InputError: There is not one whole number as id an image, or the seed is none.
    """
    if context is not None:
        given = context.noise
        noise = dataclasses.replace(
            given, image_ids=given.image_ids.to(device), lanes=given.lanes.to(device)
        )
    else:
        if not isinstance(seed, Integral) or isinstance(seed, bool):
            raise InputError(f"seed={seed!r}; expected a whole number")
        numbers = as_ids(range(count) if ids is None else ids)
        noise = bound(int(seed), task, numbers, device=device)
    if len(noise) != count:
        raise InputError(f"{len(noise)} ids for {count} images; give every image its number")
    return noise
