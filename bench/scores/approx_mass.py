"""Approximate mass, JEM (Grathwohl et al. 2019, arXiv 1912.03263), section 5.2.

A point can have high density and yet lie outside the typical set; there the density changes fast.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bench.registry import SCORES
from bench.sharing import gradient_at


def gradient_length(model: Any, x: Tensor) -> Tensor:
    """Return ||d log p(x) / dx||_2, ``(B,)`` float64; the squares are added in float64."""
    _, gradient = gradient_at(model, x)
    length: Tensor = torch.linalg.vector_norm(gradient.flatten(1).cpu().double(), dim=1)
    return length


@SCORES.register("approx-mass", needs="gradient")
def approx_mass_score(model: Any, x: Tensor) -> Tensor:
    """Negative length of the density's gradient: -||d log p(x) / dx||_2.

    The gradient is in x units, twice that in the papers' z = 2x - 1; the order is the same.

    Returns:
        ``(B,)`` float64, at most 0.
    """
    return -gradient_length(model, x)


@SCORES.register("approx-mass-log", needs="gradient")
def approx_mass_log_score(model: Any, x: Tensor) -> Tensor:
    """Negative logarithm of that length: -log ||d log p(x) / dx||_2.

    The form of the histograms of JEM's and HDGE's code. It ranks as ``approx-mass`` does; where
    float64 rounds two logarithms to one, ties are more.

    Returns:
        ``(B,)`` float64; +inf, the most in-distribution, where the gradient is zero.
    """
    return -gradient_length(model, x).log()
