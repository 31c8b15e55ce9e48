"""log p(x), JEM (Grathwohl et al. 2019, arXiv 1912.03263), section 5.2.

With T = 1 it is the energy score of Liu et al. (2020).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bench.registry import SCORES
from bench.types import DensityModel


@SCORES.register("log-density")
def log_density_score(model: Any, x: Tensor) -> Tensor:
    """Log p(x) up to a constant: LSE_y f(x)[y], or the model's own density.

    Returns:
        ``(B,)`` float64; the logsumexp is taken in float64, where float32 would make ties.
    """
    with torch.no_grad():
        if isinstance(model, DensityModel):
            return model.log_density(x).cpu().double()
        return torch.logsumexp(model(x).cpu().double(), dim=1)
