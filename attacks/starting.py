"""Misclassified images to start from: noise of several kinds, of rising strength.

A decision-based attack walks from such an image towards the clean one. Every image looks for its
own; one that finds none keeps none, and the others go on.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from bench.noise import Noise

from .decisions import Decisions
from .geometry import per_image

# Makes (clean images, strength in (0, 1], draws) to images in [0, 1].
Kind = Callable[[Tensor, float, Noise], Tensor]


def _tiles(noise: Noise, like: Tensor, side: int) -> Tensor:
    """Return uniform draws, the same within tiles of that side, of the shape of ``like``."""
    channels, height, width = like.shape[1:]
    draws = noise.uniform(channels, -(-height // side), -(-width // side))
    whole = draws.repeat_interleave(side, dim=2).repeat_interleave(side, dim=3)
    return whole[:, :, :height, :width]


def blended(x: Tensor, strength: float, noise: Noise) -> Tensor:
    """Mix the images with uniform noise."""
    return torch.lerp(x, noise.uniform(*x.shape[1:]), strength)


def clouded(x: Tensor, strength: float, noise: Noise) -> Tensor:
    """Mix the images with a smooth random pattern, whose contrast is full."""
    draws = noise.uniform(x.shape[1], 4, 4).round()
    smooth = interpolate(draws, size=x.shape[2:], mode="bilinear", align_corners=False)
    return torch.lerp(x, smooth, strength)


def inverted(x: Tensor, strength: float, noise: Noise) -> Tensor:
    """Move some entries to the far end of [0, 1]: at strength 1 all of them."""
    return torch.where(noise.uniform(*x.shape[1:]) < strength, far_end(x), x)


def salted(x: Tensor, strength: float, noise: Noise) -> Tensor:
    """Make some pixels black or white (salt and pepper)."""
    where = noise.at("where").uniform(1, *x.shape[2:]) < strength
    return torch.where(where, noise.at("what").uniform(1, *x.shape[2:]).round(), x)


def tiled(x: Tensor, strength: float, noise: Noise) -> Tensor:
    """Put some tiles of 4 x 4 pixels to an end of [0, 1] in each channel."""
    where = _tiles(noise.at("where"), x, 4) < strength
    return torch.where(where, _tiles(noise.at("what"), x, 4).round(), x)


def far_end(x: Tensor) -> Tensor:
    """Return of every entry the end of [0, 1] that is further away."""
    return (x < 0.5).to(x.dtype)


# How far apart the steps are fits the norm: a mixture is twice as far at twice the strength, and so
# is the number of changed entries.
NEAR_L2: tuple[tuple[Kind, ...], tuple[float, ...]] = (
    (blended, clouded, tiled),
    tuple(k / 10 for k in range(1, 11)),
)
FEW_ENTRIES: tuple[tuple[Kind, ...], tuple[float, ...]] = (
    (inverted, salted, tiled),
    (*(0.01 * 2**k for k in range(7)), 1.0),
)


def from_starts(
    decide: Decisions,
    x: Tensor,
    search: tuple[tuple[Kind, ...], tuple[float, ...]],
    given: Tensor | None,
    go_on: Callable[[Decisions, Tensor, Tensor], Tensor],
) -> Tensor:
    """Return what ``go_on`` makes of the starting points, ``(B, C, H, W)``.

    It gets those images that have one: answers, clean images, starts. The others stay clean.
    """
    points, found = starting_points(decide, x, search, given)
    rows = found.nonzero()[:, 0]
    if len(rows):
        some = decide.select(rows)
        points[rows] = go_on(some, x[rows], points[rows])
        decide.passes[rows] += some.passes
    return points


def starting_points(
    decide: Decisions,
    x: Tensor,
    search: tuple[tuple[Kind, ...], tuple[float, ...]],
    given: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return a misclassified image for each, ``(B, C, H, W)``, and where one was found, ``(B,)``.

    Given points come first. Then, strength by strength, one of each kind of noise is tried, until
    one is misclassified. Where none is, the clean image is returned.

    What a stochastic model gets wrong by chance is no start, and would keep the image from one.
    """
    kinds, strengths = search
    points, found = x.clone(), torch.zeros_like(decide.passes, dtype=torch.bool)
    if given is not None:
        found = decide.surely(given, None, "given")
        points = torch.where(per_image(found, x), given, x)
    draws = decide.noise.at("starting")
    for level, strength in enumerate(strengths):
        for number, kind in enumerate(kinds):
            # Asking a GPU makes it wait, but most images are found by the first few questions.
            rows = (~found).nonzero()[:, 0]
            if len(rows) == 0 or decide.out_of_time():
                return points, found
            tries = kind(x[rows], strength, draws.at(level, number).select(rows))
            hit = decide.surely(tries, rows, "start", level, number)
            points[rows] = torch.where(per_image(hit, tries), tries, x[rows])
            found[rows] = hit
    return points, found
