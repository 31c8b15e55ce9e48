"""max p(y|x), Hendrycks and Gimpel (2017), section 2; JEM's second score."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bench.registry import SCORES


@SCORES.register("max-softmax", needs="logits")
def max_softmax_score(model: Any, x: Tensor) -> Tensor:
    """Confidence of the predicted class: max_y softmax f(x)[y].

    Returns:
        ``(B,)`` float64. The value is log p, which orders images as p does but stays apart
        where p rounds to 1.
    """
    with torch.no_grad():
        log_p = torch.log_softmax(model(x).cpu().double(), dim=1)
    return log_p.max(dim=1).values
