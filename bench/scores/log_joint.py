"""log p(x, y) at the predicted class, JEM (Grathwohl et al. 2019, arXiv 1912.03263), section 3.

There log p(x, y) = f(x)[y] - log Z of a classifier's logits, so its maximum over the classes is the
largest logit: the score "max logit" of Hendrycks et al. (2022, arXiv 1911.11132) is this one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bench.registry import SCORES
from bench.types import DensityModel


@SCORES.register("log-joint", needs="logits")
def log_joint_score(model: Any, x: Tensor) -> Tensor:
    """Log p(x, y) of the likeliest class, up to a constant: the largest logit.

    A model with a density of its own has log p(x) + max_y log p(y|x) instead: the scale of its
    logits need not be that of its density.

    Returns:
        ``(B,)`` float64.
    """
    with torch.no_grad():
        logits: Tensor = model(x).cpu().double()
        if not isinstance(model, DensityModel):
            return logits.max(dim=1).values
        certainty: Tensor = torch.log_softmax(logits, dim=1).max(dim=1).values
        return model.log_density(x).cpu().double() + certainty
