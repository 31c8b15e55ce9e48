"""What is left of a refining model's accuracy when the attack knows the noise of the score.

Liu et al. (2024), arXiv 2404.14309, call it deterministic white box. A diagnostic: what accuracy is
left is bought by the refinement itself rather than by hiding in noise. No attacker knows the noise,
so the number is never a candidate for the reported one.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bench.attacking.inputs import Plan
from bench.attacking.judging import SCORE, Judge
from bench.attacking.sources import FIXED_NOISE, Searches, Source
from bench.context import Context
from bench.noise import Noise
from bench.refinement import Refining, is_refining


class KnownNoise(nn.Module):
    """A refining model held at the first scoring draw, whatever noise it is asked for."""

    stochastic = True  # it needs to be told which images they are

    def __init__(self, model: Refining, noise: Noise) -> None:
        super().__init__()
        self.base, self.n_chains, self.gradients = model.base, model.n_chains, model.gradients
        self._chains, self._key = model.chain_logits, noise.at(SCORE, 0).key

    def chain_logits(self, x: Tensor, noise: Noise, gradient: str = "straight-through") -> Tensor:
        """Return the logits of the chains of the known draw, ``(B, n_chains, K)``."""
        known = Noise(self._key, noise.image_ids, torch.zeros_like(noise.lanes))
        return self._chains(x, known, gradient)

    def sample_logits(self, x: Tensor, noise: Noise) -> Tensor:
        """Return the logits of the known draw, ``(B, K)``."""
        return self.chain_logits(x, noise).mean(dim=1)


@dataclass(frozen=True)
class Known:
    """What came of it.

    Attributes:
        right: Whether an image is right in the first scoring draw at each budget, ``(n_eps, B)``.
        passes: Evaluations spent, ``(B,)``.
        seconds: Seconds spent.
    """

    right: Tensor
    passes: Tensor
    seconds: float


def unknowable(task: Plan, model: nn.Module) -> str:
    """Say why the diagnostic does not apply, or nothing if it does."""
    if not is_refining(model):
        return f"'fixed-noise' needs a refinement, and {type(model).__name__} is none"
    if not task.has("gradient") or task.nearest:
        return (
            f"'fixed-noise' needs an attack with the option 'gradient' and a budget, and "
            f"'{task.name}' is none"
        )
    return ""


def attack_known_noise(
    task: Plan, model: nn.Module, x: Tensor, judge: Judge, context: Context, winners: Tensor
) -> Known:
    """Attack the first scoring draw itself, by the best gradient that the model has.

    The searches start anew and from the ``winners``, ``(n_eps, B, C, H, W)``, which count too: with
    the noise known, the worst of all candidates is the attack's.
    """
    began = time.perf_counter()
    assert is_refining(model)  # else `unknowable` has said so
    known = KnownNoise(model, context.noise)
    kind = "full" if "full" in model.gradients else "straight-through"
    plan = task.varied(gradient=kind, eot_samples=1)
    search = Searches([Source(FIXED_NOISE, plan, known)], x, judge.y, context)
    right, stages = _right(judge, x), []
    for i, winner in enumerate(winners):
        right &= _right(judge, winner)
        for starts in (None, winner):
            rows = right.nonzero()[:, 0]
            if len(rows) and task.eps[i] > 0 and not context.out_of_time():
                for _, found in search.at(i, rows, None if starts is None else starts[rows]):
                    right[rows] &= _right(judge, found, rows)
        stages.append(right.clone())
    passes = search.passes[FIXED_NOISE]
    return Known(torch.stack(stages), passes, time.perf_counter() - began)


def _right(judge: Judge, x: Tensor, rows: Tensor | None = None) -> Tensor:
    """Say which images are right in the first scoring draw."""
    predictions, _ = judge.draws(x, SCORE, 1, rows)
    return predictions[:, 0] == (judge.y if rows is None else judge.y[rows])
