"""Typicality, Nalisnick et al. (2019, arXiv 1906.02994), section 3, for one image at a time.

A set of high probability holds images whose log density is near its mean; one far above the mean
is as strange as one far below. With the mean for the entropy, the paper's test statistic of a
batch of one is the distance below.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from bench.registry import SCORES

from .log_density import log_density_score


class Typicality:
    """Negative distance of log density from that of training images: -|log p(x) - mean|."""

    def fit(self, train: Iterable[tuple[Any, Tensor, Tensor | None]]) -> Mapping[str, Tensor]:
        """Return ``log_density`` (N,) float64 of the training images."""
        return {"log_density": torch.cat([log_density_score(model, x) for model, x, _ in train])}

    def __call__(self, model: Any, x: Tensor, fitted: Mapping[str, Tensor]) -> Tensor:
        """Return ``(B,)`` float64, at most 0."""
        return -(log_density_score(model, x) - fitted["log_density"].cpu().mean()).abs()


SCORES.register("typicality")(Typicality())
