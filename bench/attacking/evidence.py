"""What is tried on a model to see whether its gradients are masked.

Every attack starts from scratch and meets one budget: what another budget, or another attack, has
found would hide that this one finds nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy

from bench.announcing import Announced
from bench.attacking.checks import HUGE, LOSSES, STEPS
from bench.attacking.measured import attack
from bench.attacking.sources import GRADIENTS
from bench.attacking.verifying import margin
from bench.batching import in_parts
from bench.context import Context
from bench.noise import Noise
from bench.preserving import preserved
from bench.refinement import draw_logits, is_refining, is_stochastic
from bench.registry import ATTACKS
from bench.target import Target, not_applicable, target
from bench.types import Norm

PASSES = 5  # over one input, to see whether the model is random
FEW = STEPS[0] + 1  # random points that cost as much as the shortest of the attacks
ENOUGH = STEPS[-2]  # steps where the number of steps is not what is looked at
DRAWS = {"selection_draws": 5, "scoring_draws": 10}  # of a stochastic model, for each attack
DRAWN = {"gradients": ("straight-through",)}  # the draws alone, not the network behind them
WHITE = {Norm.LINF: "pgd-linf", Norm.L2: "pgd-l2"}
BLACK = {Norm.LINF: "square-linf", Norm.L2: "square-l2"}
RANDOM = {Norm.LINF: "noise-linf", Norm.L2: "noise-l2"}


class TimeIsUp(Exception):
    """No time is left to begin another attack."""


@dataclass(frozen=True)
class Scene:
    """A model and the images that it is looked at with."""

    module: nn.Module
    x: Tensor
    y: Tensor
    context: Context

    @property
    def refines(self) -> bool:
        """Whether there is a deterministic network behind a refinement."""
        return is_refining(self.module) and not is_stochastic(self.module.base)

    @property
    def adaptive(self) -> tuple[str, ...]:
        """The gradients of the model itself, rather than of the network behind it."""
        return tuple(g for g in GRADIENTS if g != "static" and not not_applicable(self.module, g))

    def under(self, name: str, eps: float, **options: Any) -> tuple[Tensor, Tensor]:
        """Return the share of draws each image is right in under an attack, and its margin.

        Raises:
            TimeIsUp: There is no time for it: even one that is broken off at once is scored.
        """
        if self.context.out_of_time():
            raise TimeIsUp
        known = set(ATTACKS.entry(name).options)
        if is_stochastic(self.module):
            known |= {"gradients", *DRAWS}
        options = {k: v for k, v in {**options, **DRAWS}.items() if k in known}
        noise = self.context.noise.at(name, *(f"{k}={v}" for k, v in options.items()))
        local = replace(self.context, noise=noise)
        result = attack(name, self.module, self.x, self.y, eps=eps, context=local, **options)
        return 1 - result.success.double(), result.margin.double()

    def _logits(self, noise: Noise) -> Tensor:
        """Return the logits of one draw, ``(B, classes)``."""

        @torch.no_grad()
        def one(rows: Tensor) -> Tensor:
            return draw_logits(self.module, self.x[rows], noise.select(rows))

        return torch.cat(in_parts(len(self.x), self.context.micro_batch, one, self.x.device))

    def answers(self) -> dict[str, Tensor]:
        """Return what some passes over the clean images say of the model."""
        with preserved(self.module):
            draws = [self._logits(self.context.noise.at("pass", k)) for k in range(PASSES)]
            again = self._logits(self.context.noise.at("pass", 0))
        right = torch.stack([(logits.argmax(dim=1) == self.y).double() for logits in draws])
        differs = torch.stack([_differ(draws[0], other) for other in draws[1:]]).any(dim=0)
        stochastic = is_stochastic(self.module)
        found_out = isinstance(self.module, Announced)
        first = draws[0]
        return {
            "clean_right": right.mean(dim=0),
            "differs": differs,
            "declared": torch.full_like(differs, stochastic and not found_out),
            "unkeyed": _differ(first, again) & stochastic,
            "probabilities": (first >= 0).all(dim=1) & ((first.sum(dim=1) - 1).abs() < 1e-3),
        }

    def gradients(self, samples: int) -> dict[str, Tensor]:
        """Return which images have no gradient, and how far two draws of it agree."""
        goal = target(self.module, "straight-through", samples)

        def look(rows: Tensor) -> dict[str, Tensor]:
            x, y, noise = self.x[rows], self.y[rows], self.context.noise.select(rows)
            first = {k: _gradient(goal, x, y, noise.at("gradient", 0), k) for k in LOSSES}
            found = {f"flat_{k}": ~(g.abs() > 0).any(dim=1) for k, g in first.items()}
            if goal.stochastic:
                other = _gradient(goal, x, y, noise.at("gradient", 1), "margin")
                found["cosine"] = cosine_similarity(first["margin"], other)
            return found

        with preserved(self.module):
            size = self.context.micro_batch // goal.rows
            parts = in_parts(len(self.x), size, look, self.x.device)
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


@dataclass(frozen=True)
class Trials:
    """Attacks in one norm, as `bench.attacking.checks` compares them.

    Attributes:
        scene: The model and the images.
        norm: Of the attacks; one of `WHITE`.
        eps: The budgets of the row, increasing; attacks are compared at the middle one.
        grid_steps: Steps of the white-box attack at each budget.
        queries: Of the black-box attack.
        noise_draws: Random points an image.
        eot_samples: Draws behind a gradient of a stochastic model.
    """

    scene: Scene
    norm: Norm
    eps: tuple[float, ...]
    grid_steps: int
    queries: int
    noise_draws: int
    eot_samples: int

    def __iter__(self) -> Iterator[Callable[[], dict[str, Tensor]]]:
        """Yield what is to be done; each gives arrays with one row an image."""
        yield from (self.steps, self.noise, self.one_step, self.huge, self.grid, self.black_box)
        if is_stochastic(self.scene.module):
            yield self.adaptive
        if self.scene.refines:
            yield self.transfer

    @property
    def middle(self) -> float:
        """The budget at which attacks are compared."""
        return self.eps[len(self.eps) // 2]

    def _white(self, eps: float, steps: int, **options: Any) -> tuple[Tensor, Tensor]:
        """Return what the white-box attack comes to, by one gradient unless others are named."""
        usual = {**DRAWN, "restarts": 1, "eot_samples": self.eot_samples}
        return self.scene.under(WHITE[self.norm], eps, steps=steps, **{**usual, **options})

    def steps(self) -> dict[str, Tensor]:
        """Attack with more and more steps; of a deterministic model the last is the white box."""
        each = [self._white(self.middle, n, early_stop=False) for n in STEPS]
        found = {"steps_margin": torch.stack([margins for _, margins in each], dim=1)}
        stochastic = is_stochastic(self.scene.module)
        return found if stochastic else {**found, "white_right": each[-1][0]}

    def adaptive(self) -> dict[str, Tensor]:
        """Attack a stochastic model by every gradient of its own: its white box."""
        gradients = self.scene.adaptive
        return {"white_right": self._white(self.middle, ENOUGH, gradients=gradients)[0]}

    def transfer(self) -> dict[str, Tensor]:
        """Attack the network behind the refinement."""
        return {"transfer_right": self._white(self.middle, ENOUGH, gradients=("static",))[0]}

    def grid(self) -> dict[str, Tensor]:
        """Attack at each budget."""
        each = [self._white(eps, self.grid_steps)[0] for eps in self.eps]
        return {"grid_right": torch.stack(each, dim=1)}

    def huge(self) -> dict[str, Tensor]:
        """Attack where any image is allowed, or nearly so."""
        eps = HUGE * (math.sqrt(self.scene.x[0].numel()) if self.norm is Norm.L2 else 1.0)
        return {"huge_right": self._white(eps, ENOUGH)[0]}

    def one_step(self) -> dict[str, Tensor]:
        """Take one step of the whole budget (Goodfellow et al. 2015)."""
        one = self._white(self.middle, 1, step_size=self.middle, random_start=False)
        return {"fgsm_right": one[0]}

    def noise(self) -> dict[str, Tensor]:
        """Try random points, many and few."""
        noise = RANDOM[self.norm]
        many = self.scene.under(noise, self.middle, draws=self.noise_draws, **DRAWN)
        few = self.scene.under(noise, self.middle, draws=FEW, **DRAWN)
        return {"noise_right": many[0], "few_margin": few[1]}

    def black_box(self) -> dict[str, Tensor]:
        """Attack without a gradient."""
        found = self.scene.under(BLACK[self.norm], self.middle, queries=self.queries, **DRAWN)
        return {"black_right": found[0]}


def _differ(a: Tensor, b: Tensor) -> Tensor:
    """Say which images' logits differ by more than rounding, ``(B,)``."""
    return (a - b).abs().amax(dim=1) > 1e-5 * a.abs().amax(dim=1)


def _gradient(goal: Target, x: Tensor, y: Tensor, noise: Noise, loss: str) -> Tensor:
    """Return the gradient of a loss at the images, ``(B, pixels)``."""
    x = x.clone().requires_grad_()
    logits = goal(x, noise)
    labels = y.repeat_interleave(logits.shape[1])
    of_draws = logits.flatten(0, 1)
    value = (_cross_entropy if loss == "ce" else margin)(of_draws, labels).sum()
    if not value.requires_grad:
        return torch.zeros_like(x).flatten(1)
    (gradient,) = torch.autograd.grad(value, x, allow_unused=True, materialize_grads=True)
    return gradient.flatten(1)


def _cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Return the plain cross-entropy, ``(B,)``, each image's times a number of its own.

    It is what other attacks see, whatever ours does about saturation. The number, up to 1e7, is as
    in training in mixed precision: it keeps gradients of answers in float16 from rounding to zero.
    """
    losses = cross_entropy(logits, y, reduction="none")
    wrong = -torch.expm1(-losses.detach())  # 1 - p(y|x), which the gradient is proportional to
    return losses / wrong.clamp(min=1e-7)
