"""Scores that ask no model: if one of them separates a set, the set proves little.

Low-level statistics alone beat density models on several benchmark pairs (Nalisnick et al. 2019,
arXiv 1810.09136; Serra et al. 2020, arXiv 1909.11480), so each is a row of every table. The
direction of each is fixed here, before any data: an AUROC far below 0.5 separates as well as one
far above it, and says that the direction was wrong, not that the set is hard.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bench.registry import SCORES

from .png import png_lengths


@SCORES.register("border-ink", trivial=True)
def border_ink(model: Any, x: Tensor) -> Tensor:
    """Return minus the sum of the first and last columns, ``(B,)``: objects sit in the middle."""
    return -x[..., [0, -1]].double().sum(dim=(1, 2, 3))


@SCORES.register("mean-intensity", trivial=True)
def mean_intensity(model: Any, x: Tensor) -> Tensor:
    """Return minus the mean over pixels and channels, ``(B,)``: dark is in-distribution."""
    return -x.double().mean(dim=(1, 2, 3))


@SCORES.register("total-variation", trivial=True)
def total_variation(model: Any, x: Tensor) -> Tensor:
    """Return minus the sum of differences between neighbours, ``(B,)``: smooth is familiar.

    Anisotropic: sum of |x[i+1, j] - x[i, j]| + |x[i, j+1] - x[i, j]| over pixels and channels
    (Rudin, Osher and Fatemi 1992).
    """
    x = x.double()
    down, across = x.diff(dim=2).abs(), x.diff(dim=3).abs()
    return -(down.sum(dim=(1, 2, 3)) + across.sum(dim=(1, 2, 3)))


@SCORES.register("png-size", trivial=True)
def png_size(model: Any, x: Tensor) -> Tensor:
    """Return minus the bytes of the image as PNG, ``(B,)``: what compresses is familiar.

    Values are rounded to 8 bits. The compressor is zlib at its default level; the channels of an
    image that is neither grey nor RGB lie side by side.
    """
    pixels = x.detach().mul(255).round().clamp(0, 255).to(torch.uint8).cpu().numpy()
    sizes = [-float(length) for length in png_lengths(pixels)]
    return torch.tensor(sizes, dtype=torch.float64, device=x.device)
