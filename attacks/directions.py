"""Random directions to step along: white noise, and noise of low frequencies only.

White noise is random signs, low frequencies have them as amplitudes: in many dimensions such
directions are as even as Gaussian ones, and cost a quarter of them.

Networks are more sensitive to coarse changes, and there are fewer of them to try: Guo et al.
(2019), "Low frequency adversarial perturbation", arXiv 1809.08758.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import embedding

from bench.noise import Noise

COARSENESS = (1, 2, 4)  # a direction has the lowest 1 / c of the frequencies along either axis


@lru_cache(maxsize=64)
def _cosines(size: int, count: int, device: torch.device) -> Tensor:
    """Return the first vectors of the orthonormal cosine basis (DCT-II), ``(count, size)``."""
    places = torch.arange(size, dtype=torch.float64) + 0.5
    waves = torch.cos(torch.pi / size * torch.arange(count)[:, None] * places)
    waves[0] /= math.sqrt(2)
    return (waves * math.sqrt(2 / size)).float().to(device)


def directions(noise: Noise, shape: torch.Size) -> Iterator[tuple[Tensor, float]]:
    """Yield vectors along random directions, flat: ``(B, C * H * W)``, and their length; endless.

    Their coarseness takes turns, so that no direction is out of reach. After each turn come the
    opposites, which cost nothing to make: the same vectors, and a negative length.

    Args:
        noise: One row an image.
        shape: ``(C, H, W)`` of an image.
    """
    channels, height, width = shape
    sizes = [(channels, -(-height // c), -(-width // c)) for c in COARSENESS]
    counts = [math.prod(size) for size in sizes]
    for turn in itertools.count():
        signs = torch.split(_signs(noise.at("directions", turn), sum(counts)), counts, dim=1)
        drawn = [_spread(s, size, shape) for s, size in zip(signs, sizes, strict=True)]
        for opposite in (1, -1):
            for vectors, count in zip(drawn, counts, strict=True):
                yield vectors, opposite * math.sqrt(count)  # the basis is orthonormal


def _signs(noise: Noise, count: int) -> Tensor:
    """Return random signs, ``(B, count)``: the bits of as few draws as will do."""
    device = noise.image_ids.device
    words = noise.integers(1 << 56, -(-count // 56))
    octets = (words[:, :, None] >> _shifts(device)) & 255
    return embedding(octets, _signs_of_octets(device)).flatten(1)[:, :count]


@lru_cache(maxsize=8)
def _shifts(device: torch.device) -> Tensor:
    return 8 * torch.arange(7, device=device)


@lru_cache(maxsize=8)
def _signs_of_octets(device: torch.device) -> Tensor:
    """Return the signs that the bits of every octet stand for, ``(256, 8)``."""
    octet, place = torch.arange(256, device=device), torch.arange(8, device=device)
    return 2.0 * ((octet[:, None] >> place) & 1) - 1


def _spread(amplitudes: Tensor, size: tuple[int, int, int], shape: torch.Size) -> Tensor:
    """Return the flat images that have the amplitudes as their lowest frequencies."""
    if size == tuple(shape):
        return amplitudes
    grid = amplitudes.reshape(-1, *size)
    down = _cosines(shape[1], size[1], grid.device)
    across = _cosines(shape[2], size[2], grid.device)
    return (down.T @ (grid @ across)).flatten(1)
