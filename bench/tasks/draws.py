"""The classes that images get in some keyed draws of a model, and intervals over such draws."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from bench import metrics
from bench.attacking.judging import SCORE
from bench.context import Context
from bench.preserving import preserved
from bench.refinement import draw_logits, is_stochastic
from bench.tasks.base import Reduction
from bench.types import Array
from bench.wrapping import check_logits


def draw_answers(
    model: nn.Module, x: Tensor, draws: int, context: Context, branch: str = SCORE
) -> Array:
    """Return the logits of each image in each draw, ``(B, R, K)`` float32.

    Args:
        model: The model; a deterministic one answers every draw alike and is asked once.
        x: Images, ``(B, C, H, W)``.
        draws: R.
        context: Its noise has one row an image; images of equal noise meet equal draws.
        branch: Which draws; those of two branches are independent.
    """
    times = draws if is_stochastic(model) else 1
    parts = []
    with preserved(model), torch.no_grad():
        for rows in torch.split(torch.arange(len(x), device=x.device), context.micro_batch):
            noise, each = context.noise.select(rows), []
            for d in range(times):
                logits = draw_logits(model, x[rows], noise.at(branch, d))
                check_logits(logits, len(rows), noise.image_ids)
                each.append(logits.float())
            parts.append(torch.stack(each, dim=1))
    return np.repeat(torch.cat(parts).cpu().numpy(), draws // times, axis=1)


def draw_classes(
    model: nn.Module, x: Tensor, draws: int, context: Context, branch: str = SCORE
) -> tuple[Array, Array]:
    """Return the class of each image in each draw, and how far it is from the next one.

    The arguments are those of `draw_answers`.

    Returns:
        Classes ``(B, R)`` int16, and the best logit less the second ``(B, R)`` float64.
    """
    return classes_of(draw_answers(model, x, draws, context, branch))


def classes_of(logits: Array) -> tuple[Array, Array]:
    """Return the largest of logits ``(..., K)``, int16, and how far it is from the next one."""
    second, first = np.moveaxis(np.partition(logits, -2, axis=-1)[..., -2:], -1, 0)
    return logits.argmax(axis=-1).astype(np.int16), (first - second).astype(np.float64)


def mean_interval(right: Array, reduction: Reduction) -> tuple[float, float, str]:
    """Return an interval of the mean of ``(N, R)`` shares, and how it was made.

    Images and draws are resampled, each for itself. Where there is one draw, or none that
    disagrees with another, it is Wilson's interval over the images.
    """
    n, draws = right.shape
    value = float(right.mean())
    binary = bool(((right == 0) | (right == 1)).all())
    if binary and bool((right == right[:, :1]).all()):
        return (*metrics.wilson(int(right[:, 0].sum()), n, reduction.level), "wilson")
    rng = np.random.default_rng([reduction.seed, *b"draws"])
    images = rng.multinomial(n, np.full(n, 1.0 / n), size=reduction.resamples)
    times = rng.multinomial(draws, np.full(draws, 1.0 / draws), size=reduction.resamples)
    values = ((images @ right.astype(np.float64)) * times).sum(axis=1) / (n * draws)
    tail = (1.0 - reduction.level) / 2.0
    low, high = (float(q) for q in np.quantile(values, [tail, 1.0 - tail]))
    return min(low, value), max(high, value), "bootstrap-images-draws"
