"""Approximate mass, JEM (Grathwohl et al. 2019, arXiv 1912.03263), section 5.2.

A point can have high density and yet lie outside the typical set; there the density changes fast.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bench.energy import density_gradient
from bench.registry import SCORES


@SCORES.register("approx-mass")
def approx_mass_score(model: Any, x: Tensor) -> Tensor:
    """Negative length of the density's gradient: -||d log p(x) / dx||_2.

    The gradient is in x units, twice that in the papers' z = 2x - 1; the order is the same.

    Returns:
        ``(B,)`` float64, at most 0; the squares are added in float64.
    """
    _, gradient = density_gradient(model, x)
    length: Tensor = torch.linalg.vector_norm(gradient.flatten(1).cpu().double(), dim=1)
    return -length
