"""AutoAttack, Croce and Hein (2020), arXiv 2003.01690, section 6: the worst of four attacks.

Standard: APGD on cross-entropy, targeted APGD on the DLR, targeted FAB and Square, each only on
what is unbroken so far. For models that answer at random: APGD on cross-entropy and on the DLR
with 20 draws a gradient (the authors' version ``rand``).

It differs from the authors' code in the eps sweep, where what is broken at one budget is not
attacked at larger ones; in that a broken image leaves each part at once; and in ``rand``, where
they drop an image after one wrong draw: here both parts see every image, and the point of the
lower mean margin over fresh draws is returned.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from bench.batching import in_parts
from bench.context import Context
from bench.errors import BenchError, InputError, Unsupported
from bench.noise import Noise
from bench.registry import ATTACKS
from bench.target import Gradient, Target, target
from bench.types import Norm

from .descent import Best

Version = Literal["standard", "rand"]


@dataclass(frozen=True, kw_only=True)
class AutoAttack:
    """The ensemble; the norm is the subclass's.

    Attributes:
        eps: Budget, in units of the [0, 1] pixel range.
        version: ``standard``, ``rand``, or ``None``: ``rand`` for a stochastic model.
        apgd_steps: Steps of each run of APGD.
        targets: Wrong classes that the targeted APGD and FAB try.
        fab_steps: Steps of each run of FAB.
        square_queries: Queries of Square.
        early_stop: As of APGD and Square: stop at the first point that breaks an image.
        eot_samples: Draws of a stochastic model behind each gradient.
        gradient: How a stochastic model is differentiated; see `bench.target`.
    """

    eps: float
    version: Version | None = None
    apgd_steps: int = 100
    targets: int = 9
    fab_steps: int = 100
    square_queries: int = 5000
    early_stop: bool = True
    eot_samples: int = 20
    gradient: Gradient = "straight-through"
    norm: Norm = field(init=False)

    parts: ClassVar[tuple[str, ...]] = ()  # names in the registry, in order

    def __post_init__(self) -> None:
        wanted = {
            "eps a finite number of at least 0": 0 <= self.eps < math.inf,
            f"version one of {', '.join(get_args(Version))}, or none": self.version
            in (None, *get_args(Version)),
        }
        broken = [want for want, holds in wanted.items() if not holds]
        if broken:
            raise InputError(f"{self}: expected {'; '.join(broken)}")
        for version in get_args(Version):
            for name, options in self.stages(version):
                ATTACKS[name](eps=self.eps, **options)  # refuses what it cannot do

    @property
    def title(self) -> str:
        """The name for a table: it says which version it is, and when FAB is not installed."""
        if self.version == "rand":
            return f"autoattack-rand-{self.norm}"
        return f"autoattack-{'' if self.has_fab() else 'nofab-'}{self.norm}"

    def has_fab(self) -> bool:
        """Say whether the package behind FAB is installed."""
        return find_spec("torchattacks") is not None

    def stages(self, version: Version, classes: int = 10) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the parts with their options, in order; the DLR needs three classes."""
        norm = self.norm
        apgd: dict[str, Any] = {"steps": self.apgd_steps, "early_stop": self.early_stop}
        if version == "rand":
            apgd |= {"eot_samples": self.eot_samples, "gradient": self.gradient}
            yield f"apgd-{norm}", {**apgd, "loss": "ce"}
            yield f"apgd-{norm}", {**apgd, "loss": "dlr" if classes > 2 else "margin"}
            return
        yield f"apgd-{norm}", {**apgd, "loss": "ce"}
        yield f"apgd-t-{norm}", {**apgd, "targets": self.targets}
        if self.has_fab():
            fab = {"targeted": True, "targets": self.targets, "steps": self.fab_steps}
            yield f"fab-{norm}", fab
        yield f"square-{norm}", {"queries": self.square_queries, "early_stop": self.early_stop}

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, context: Context) -> Tensor:
        """Return the best point found for each image, ``(B, C, H, W)``."""
        return self.sweep(model, x, y, context, (self.eps,))[0]

    def sweep(
        self, model: nn.Module, x: Tensor, y: Tensor, context: Context, eps: tuple[float, ...]
    ) -> Tensor:
        """Return candidates for increasing budgets, ``(n_eps, B, C, H, W)``.

        Args:
            model: Returns logits.
            x: Clean images in [0, 1], ``(B, C, H, W)``.
            y: True classes, ``(B,)``.
            context: Its noise has one row an image.
            eps: The budgets, increasing; they take the place of the field ``eps``.

        Raises:
            InputError: The budgets decrease.
            Unsupported: The version ``standard`` was asked for and the model is stochastic.
            BenchError: A part failed; the message names it.
        """
        if any(a > b for a, b in itertools.pairwise(eps)):
            raise InputError(f"the budgets {eps} of a sweep decrease; sort them")
        goal = target(model, self.gradient, self.eot_samples)
        if goal.stochastic and self.version == "standard":
            raise Unsupported(
                f"{type(model).__name__} is stochastic, and the parts of AutoAttack's version "
                "'standard' take one draw for the truth; use version='rand'"
            )
        ensemble = _Ensemble(self, goal, context, x, y, eps)
        found = torch.stack([ensemble.at(i) for i in range(len(eps))])
        context.spent(ensemble.best.passes)
        return found


class _Ensemble:
    """The worst case so far of every image of a batch."""

    def __init__(
        self,
        attack: AutoAttack,
        goal: Target,
        context: Context,
        x: Tensor,
        y: Tensor,
        eps: tuple[float, ...],
    ) -> None:
        self._attack, self._goal, self._context = attack, goal, context
        self._x, self._y, self._eps = x, y, eps
        self._drop = not goal.stochastic  # of a stochastic model one wrong draw proves nothing
        self._nearest: Tensor | None = None
        self.best = Best.of(x)

    def at(self, i: int) -> Tensor:
        """Return the worst case at a budget; the smaller ones come first."""
        if not self._drop:
            self.best.forget(self._x)
        if self._eps[i] > 0:
            self._attack_at(i)
        return self.best.point.clone()

    def _attack_at(self, i: int) -> None:
        """Run the parts at a budget, each on what the ones before have left."""
        for place, (name, options) in enumerate(self._stages()):
            rows = torch.arange(len(self._x), device=self._x.device)
            rows = rows[~self.best.broken] if self._drop else rows
            if len(rows) == 0 or self._context.out_of_time():
                return
            noise = self._context.noise.select(rows).at("part", place, name)
            try:
                found = self._found(name, options, i, rows, noise)
            except torch.OutOfMemoryError:
                raise  # who made the batch can make it smaller
            except Exception as error:
                raise _named(name, self._attack, error) from error
            self._take_up(rows, found)

    def _found(
        self, name: str, options: dict[str, Any], i: int, rows: Tensor, noise: Noise
    ) -> Tensor:
        """Return the candidates of a part at budget ``i``."""
        part: Any = ATTACKS[name](eps=self._eps[i], **options)
        images, y = self._x[rows], self._y[rows]
        if not name.startswith("fab"):
            return self._run(part, rows, noise, images.clone(), y)
        if self._nearest is None:  # FAB looks for the nearest image: one search serves all budgets
            self._nearest = self._x.expand(len(self._eps), *self._x.shape).clone()
            found = self._run(part.sweep, rows, noise, images.clone(), y, eps=self._eps[i:])
            self._nearest[i:, rows] = found
        return self._nearest[i, rows]

    def _stages(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Return the parts for this model."""
        version = self._attack.version or ("rand" if self._goal.stochastic else "standard")
        if version == "standard":
            return self._attack.stages(version)
        one = torch.arange(1, device=self._x.device)
        with torch.no_grad():
            logits = self._goal(self._x[one], self._context.noise.select(one))
        return self._attack.stages(version, logits.shape[2])

    def _run(
        self,
        part: Callable[..., Tensor],
        rows: Tensor,
        noise: Noise,
        images: Tensor,
        y: Tensor,
        **more: Any,
    ) -> Tensor:
        """Return what a part finds, and charge what it spent."""
        reports: list[Tensor] = []
        seen = 0

        def count(_: nn.Module, inputs: tuple[Any, ...]) -> None:
            nonlocal seen
            seen += len(inputs[0])

        context = replace(self._context, noise=noise, spent=reports.append)
        hook = self._goal.model.register_forward_pre_hook(count)
        try:
            found = part(self._goal.model, images, y, context, **more)
        finally:
            hook.remove()
        self.best.passes[rows] += sum(reports) if reports else -(-seen // len(rows))
        return found.detach()

    def _take_up(self, rows: Tensor, found: Tensor) -> None:
        """Keep what a fresh pass says is better: no part is believed."""
        noise = self._context.noise.select(rows).at("verify")

        @torch.no_grad()
        def logits(part: Tensor) -> Tensor:
            return self._goal(found[part], noise.select(part))

        size = self._context.micro_batch // self._goal.rows
        fresh = torch.cat(in_parts(len(rows), size, logits, rows.device))
        self.best.see(rows, found, fresh, self._y[rows], freeze=False)


def _named(part: str, attack: AutoAttack, error: Exception) -> Exception:
    """Return the error of a part in words that name it, of the same kind where that takes words."""
    words = f"part '{part}' of {attack.title} failed: {error}"
    try:
        return type(error)(words)
    except TypeError:
        return BenchError(f"{words} ({type(error).__name__})")


@ATTACKS.register("autoattack-linf", norm=Norm.LINF)
@dataclass(frozen=True, kw_only=True)
class LinfAutoAttack(AutoAttack):
    """AutoAttack in L-infinity: APGD, targeted APGD, FAB and Square; the worst counts."""

    norm: Norm = field(default=Norm.LINF, init=False)
    parts: ClassVar[tuple[str, ...]] = ("apgd-linf", "apgd-t-linf", "fab-linf", "square-linf")


@ATTACKS.register("autoattack-l2", norm=Norm.L2)
@dataclass(frozen=True, kw_only=True)
class L2AutoAttack(AutoAttack):
    """AutoAttack in L2: APGD, targeted APGD, FAB and Square; the worst counts."""

    norm: Norm = field(default=Norm.L2, init=False)
    parts: ClassVar[tuple[str, ...]] = ("apgd-l2", "apgd-t-l2", "fab-l2", "square-l2")
