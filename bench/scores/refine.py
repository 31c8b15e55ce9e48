"""What N steps of SGLD on log p(x) do to an image: three scores of the code of JEM.

Grathwohl et al. (2019, arXiv 1912.03263), ``logp_hist`` in the authors' evaluation code: an image
of the data lies near a mode already, so refining it gains little. The paper has no numbers of
them. Steps are the code's, 1 with noise 0.01 in z = 2x - 1 whatever the training's were, which is
1/4 and 0.005 in x; how many is left open there, and is 20 here as in the paper's training.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bench.energy import NOISE_STD, STEP_SIZE, sgld
from bench.errors import InputError
from bench.noise import Noise
from bench.registry import SCORES
from bench.sharing import Shared, gradient_at, once, shared

from .approx_mass import gradient_length
from .log_density import log_density_score

STEPS = 20


def refined(model: Any, x: Tensor, noise: Noise, steps: int) -> Shared:
    """Return a model that remembers its answers for ``x`` after the steps, its ``batch``.

    One chain an image; all scores of one draw share it. The first gradient is that of the pass
    over ``x`` itself.
    """
    if steps < 1:
        raise InputError(
            f"refinement of {steps} steps leaves images as they are; expected 1 or more"
        )

    def make() -> Shared:
        def draw(k: int) -> Tensor:
            return noise.at("sgld", k).normal(*x.shape[1:])

        first = x + STEP_SIZE * gradient_at(model, x)[1] + NOISE_STD * draw(0)
        end = sgld(model, first, steps - 1, lambda k: draw(k + 1))
        return shared(model, end, gradient=True)

    return once(model, ("refined", noise.key, steps), make)


@SCORES.register("refine-delta", needs=("gradient", "noise"))
def refine_delta_score(model: Any, x: Tensor, noise: Noise, *, steps: int = STEPS) -> Tensor:
    """Loss of log density by refinement: log p(x) - log p(x_N).

    Returns:
        ``(B,)`` float64; unlikely images gain most, so theirs is lowest.
    """
    end = refined(model, x, noise, steps)
    return log_density_score(model, x) - log_density_score(end, end.batch)


@SCORES.register("refine-grad", needs=("gradient", "noise"))
def refine_grad_score(model: Any, x: Tensor, noise: Noise, *, steps: int = STEPS) -> Tensor:
    """Loss of approximate mass by refinement: ||grad log p(x_N)||_2 - ||grad log p(x)||_2.

    Returns:
        ``(B,)`` float64, in x units.
    """
    end = refined(model, x, noise, steps)
    return gradient_length(end, end.batch) - gradient_length(model, x)


@SCORES.register("refine-l2", needs=("gradient", "noise"))
def refine_l2_score(model: Any, x: Tensor, noise: Noise, *, steps: int = STEPS) -> Tensor:
    """Negative way that refinement goes: -||x - x_N||_2.

    Returns:
        ``(B,)`` float64, at most 0, in x units.
    """
    way = x.double() - refined(model, x, noise, steps).batch.double()
    length: Tensor = torch.linalg.vector_norm(way.flatten(1), dim=1)
    return -length.cpu()
