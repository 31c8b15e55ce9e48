"""Random directions to step along: white noise, and noise of low frequencies only.

White noise is random signs, low frequencies have them as amplitudes: in many dimensions such
directions are as even as Gaussian ones, and cost a quarter of them.

Networks are more sensitive to coarse changes, and there are fewer of them to try: Guo et al.
(2019), "Low frequency adversarial perturbation", arXiv 1809.08758, sections 3 and 4.1.
"""

from __future__ import annotations

import math
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


class Directions:
    """Random directions for the images of a batch, one a step, with a known length.

    Their coarseness takes turns, so that no direction is out of reach.

    Args:
        noise: One row an image.
        shape: ``(C, H, W)``.
    """

    def __init__(self, noise: Noise, shape: torch.Size) -> None:
        self._noise, self._shape = noise, shape
        self._sizes = [(-(-shape[1] // c), -(-shape[2] // c)) for c in COARSENESS]
        self._counts = [shape[0] * height * width for height, width in self._sizes]
        device = noise.image_ids.device
        self._shifts = 8 * torch.arange(7, device=device)
        octet, place = torch.arange(256, device=device), torch.arange(8, device=device)
        self._signs = 2.0 * (octet[:, None] >> place & 1) - 1  # of the bits of every octet
        self._ahead: tuple[Tensor, ...] = ()

    def at(self, step: int) -> tuple[Tensor, float]:
        """Return the directions of a step, flat: ``(B, C * H * W)``, and the length of each."""
        turn = step % len(COARSENESS)
        if turn == 0 or not self._ahead:
            self._ahead = self._draw(step // len(COARSENESS))
        whole = self._spread(self._ahead[turn], *self._sizes[turn])
        return whole.flatten(1), math.sqrt(self._counts[turn])  # the basis is orthonormal

    def _draw(self, turn: int) -> tuple[Tensor, ...]:
        """Return the signs of the next steps; making them together costs less."""
        total = sum(self._counts)
        words = self._noise.at("directions", turn).integers(1 << 56, -(-total // 56))
        octets = (words[:, :, None] >> self._shifts) & 255
        return torch.split(
            embedding(octets, self._signs).flatten(1)[:, :total], self._counts, dim=1
        )

    def _spread(self, draws: Tensor, height: int, width: int) -> Tensor:
        """Return the image that has the draws as its lowest frequencies."""
        channels, full_height, full_width = self._shape
        grid = draws.reshape(-1, channels, height, width)
        if (height, width) == (full_height, full_width):
            return grid
        down = _cosines(full_height, height, draws.device)
        across = _cosines(full_width, width, draws.device)
        return down.T @ (grid @ across)
