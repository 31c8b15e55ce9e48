"""Attacks of other libraries behind this package's contract, and what they break kept away.

A library gets the images, the labels and a module that answers with logits; it cannot reach the
model's weights, flags or statistics through it. Its global random numbers are seeded from the keyed
noise of the first image it is given, and put back. So its draws belong to the micro-batch, not to
the image (`Foreign.keyed`); so do the draws of a stochastic model.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bench.batching import in_parts
from bench.context import Context
from bench.errors import BenchError, InputError
from bench.noise import Noise
from bench.preserving import preserved, seeded
from bench.target import Target, target
from bench.types import Norm

from .geometry import ball, per_image

_REAL = {"c", "confidence", "kappa", "scale"}  # numbers whose default has no point
_STEPS = {"alpha", "lr", "step", "stepsize"}  # lengths of steps: last words of an option's name


class OutOfTime(Exception):
    """Raised by `Shown` into a library, which has no other way to be told to stop."""


class Shown(nn.Module):
    """A model as a library sees it: logits of images, and one empty weight that names the device.

    Attributes:
        images: How many images it was shown.
        failure: What the model raised.
        nearest: With ``watch``, the nearest misclassified image of the batch's size that it was
            shown, ``(B, C, H, W)``; the clean image where there was none. A library may return
            another point than the best it has seen, or stop at an assertion.
    """

    def __init__(
        self, goal: Target, x: Tensor, y: Tensor, norm: Norm, context: Context, watch: bool
    ) -> None:
        super().__init__()
        self.device_of = nn.Parameter(torch.empty(0, device=x.device), requires_grad=False)
        self._goal, self._x, self._y, self._norm, self._context = goal, x, y, norm, context
        self._watch = watch and not goal.stochastic  # one wrong draw proves nothing
        self.nearest, self._distance = x.clone(), torch.full_like(x[:, 0, 0, 0], torch.inf)
        self.images = self._calls = 0
        self.failure: Exception | None = None

    @property
    def stochastic(self) -> bool:
        """Whether every call is another draw."""
        return self._goal.stochastic

    def forward(self, x: Tensor) -> Tensor:
        """Return logits ``(b, K)`` of any number of images; every call is another draw."""
        if self._context.out_of_time():
            raise OutOfTime
        self._calls, self.images = self._calls + 1, self.images + len(x)
        x = x.float()
        try:
            logits = self._goal(x, self._draws(len(x)))[:, 0]
        except Exception as error:
            self.failure = error
            raise
        if self._watch and x.shape == self._x.shape:
            self._note(x.detach(), logits.detach())
        return logits

    def _draws(self, count: int) -> Noise:
        first = self._context.noise
        first = first.select(torch.zeros(1, dtype=torch.int64, device=first.image_ids.device))
        return first.at("foreign", self._calls).expand(count)

    @torch.no_grad()
    def _note(self, x: Tensor, logits: Tensor) -> None:
        change = (x - self._x).flatten(1)
        order = {Norm.L0: 0, Norm.L2: 2, Norm.LINF: math.inf}[self._norm]
        distance = torch.linalg.vector_norm(change, ord=order, dim=1)
        inside = ((x >= 0) & (x <= 1)).flatten(1).all(dim=1)
        better = (logits.argmax(dim=1) != self._y) & inside & (distance < self._distance)
        self.nearest = torch.where(per_image(better, x), x, self.nearest)
        self._distance = torch.where(better, distance, self._distance)


@dataclass(frozen=True, kw_only=True)
class Foreign:
    """An attack of another library; `made` gives it a name, a norm and options.

    Attributes:
        eps: Budget, in units of the [0, 1] pixel range; ``None`` for an attack that minimises the
            distance.
        library: The distribution that it is from: its version determines the numbers.
        attack: Its name in the library.
        fixed: Options of the library that its norm decides.
        minimum_norm: Whether it minimises the distance, and ``eps`` is ignored.
        watched: Whether the nearest adversarial image that the library showed to the model counts
            instead of the one it returns.
        at_once: At most so many images together; 0 for as many as go through the model.
        keyed: Whether an image's draws do not depend on the other images of the micro-batch.
        called: Its name here.
    """

    eps: float | None = None
    norm: Norm = field(init=False)

    library: ClassVar[str]
    attack: ClassVar[str]
    fixed: ClassVar[Mapping[str, Any]] = {}
    minimum_norm: ClassVar[bool] = False
    watched: ClassVar[bool] = False
    at_once: ClassVar[int] = 0
    keyed: ClassVar[bool] = False
    called: ClassVar[str] = ""

    def __post_init__(self) -> None:
        if self.eps is None and not self.minimum_norm:
            raise InputError(
                f"{self.name} keeps to a budget; give one, e.g. eps=8/255, or take an attack that "
                "looks for the nearest adversarial image, e.g. 'ddn-l2'"
            )
        if self.eps is not None and not self.eps >= 0:
            raise InputError(f"{self.name}: eps={self.eps}, expected at least 0")
        self._check_options()

    def _check_options(self) -> None:
        """Refuse what would make the library search nothing, and return as if it had."""
        for option in dataclasses.fields(self):
            value, default, wanted = getattr(self, option.name), option.default, ""
            if option.name in ("eps", "norm"):
                continue
            number = isinstance(value, Real) and not isinstance(value, bool)
            if isinstance(default, int) and not isinstance(default, bool):
                if not (number and isinstance(value, Integral) and int(value) >= 1):
                    wanted = "a whole number of at least 1"
            elif option.name.rpartition("_")[2] in _STEPS and value is not None:
                wanted = "" if number and 0 < value < math.inf else "a length above 0"
            if wanted:
                raise InputError(f"{self.name}: {option.name}={value!r}, expected {wanted}")

    @property
    def name(self) -> str:
        """What to call it in messages."""
        return f"attack '{self.called}'"

    def options(self) -> dict[str, Any]:
        """Return the library's options."""
        names = (f.name for f in dataclasses.fields(self) if f.name not in ("eps", "norm"))
        return {**{name: getattr(self, name) for name in names}, **self.fixed}

    def run(self, shown: Shown, x: Tensor, y: Tensor, starts: Tensor | None) -> Tensor:
        """Return what the library makes of some images."""
        raise NotImplementedError

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, context: Context) -> Tensor:
        """Return the library's images, moved into the box and, with a budget, into the ball.

        Without a budget: the nearest adversarial image, and the clean one where there was none.

        Raises:
            MissingExtra: The library is not installed.
        """
        return self.found(model, x, y, context)

    def found(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        context: Context,
        starts: Tensor | None = None,
    ) -> Tensor:
        """Return what `__call__` does, from starting points if there are any."""
        if not self.minimum_norm and self.eps == 0:
            return x.clone()
        goal = target(model)

        def attack(rows: Tensor) -> tuple[Tensor, Tensor]:
            local = replace(context, noise=context.noise.select(rows))
            near = None if starts is None else starts[rows]
            return self._part(goal, x[rows], y[rows], local, near)

        size = context.micro_batch // goal.rows
        size = min(self.at_once or size, size)
        with preserved(model):
            parts = in_parts(len(x), size, attack, x.device)
        context.spent(torch.cat([passes for _, passes in parts]))
        return torch.cat([points for points, _ in parts])

    def _part(
        self, goal: Target, x: Tensor, y: Tensor, context: Context, starts: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return candidates and passes of as many images as the library gets together."""
        shown = Shown(goal, x, y, self.norm, context, self.watched).eval()
        seed = int(context.noise.at("foreign").integers(1 << 62, 1)[0])
        candidates = x
        with seeded(seed), warnings.catch_warnings(), contextlib.suppress(OutOfTime):
            warnings.filterwarnings("ignore", module=r"foolbox|eagerpy|torchattacks")
            candidates = self._ran(shown, x, y, starts).to(x.dtype).clamp(0, 1)
            if self.watched:
                with torch.no_grad():
                    shown(candidates)
        if self.watched and not goal.stochastic:
            candidates = shown.nearest
        elif not self.minimum_norm and self.eps is not None:
            candidates = ball(self.norm, x, self.eps).project(candidates)
        context.progress(len(x))
        return candidates, torch.full_like(y, -(-shown.images // len(x)))

    def _ran(self, shown: Shown, x: Tensor, y: Tensor, starts: Tensor | None) -> Tensor:
        """Return what `run` does, or say which library failed; what the model raised stays."""
        x = x.clone(memory_format=torch.contiguous_format)  # a library may want it in one piece
        try:
            return self.run(shown, x, y.clone(), starts).detach()
        except (BenchError, OutOfTime, torch.OutOfMemoryError):
            raise
        except Exception as error:
            if error is shown.failure:
                raise
            raise BenchError(
                f"{self.name} with {self.options()} stopped inside its library with "
                f"{type(error).__name__}: {error}; try other options, or leave the attack out"
            ) from error


def made(
    base: type[Foreign],
    called: str,
    attack: str,
    norm: Norm,
    options: Mapping[str, Any],
    summary: str,
    **facts: Any,
) -> type[Foreign]:
    """Return the class of one attack of a library.

    Args:
        base: The library's subclass of `Foreign`.
        called: Its name here.
        attack: Its name there.
        norm: Of its budget or distance.
        options: Its options with their defaults: fields of the class.
        summary: The docstring.
        **facts: Attributes of the class, e.g. ``minimum_norm``.
    """
    defaults = {name: float(v) if name in _REAL else v for name, v in options.items()}
    fields: list[Any] = [(name, Any, field(default=value)) for name, value in defaults.items()]
    facts.setdefault("watched", facts.get("minimum_norm", False))
    kind = dataclasses.make_dataclass(
        attack,
        [*fields, ("norm", Norm, field(default=norm, init=False))],
        bases=(base,),
        namespace={"__doc__": summary, "called": called, "attack": attack, **facts},
        frozen=True,
        kw_only=True,
    )
    kind.__module__ = base.__module__  # the source that its results depend on
    return kind
