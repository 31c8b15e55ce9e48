"""Entropy of p(y|x), one of the measures of uncertainty in Malinin and Gales (2018, 1802.10501)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bench.registry import SCORES


@SCORES.register("entropy", needs="logits")
def entropy_score(model: Any, x: Tensor) -> Tensor:
    """Negative entropy of the predicted classes: sum_y p(y|x) log p(y|x).

    Returns:
        ``(B,)`` float64 in nats, between -log K and 0.
    """
    with torch.no_grad():
        p = torch.softmax(model(x).cpu().double(), dim=1)
    entropy: Tensor = torch.special.entr(p).sum(dim=1)
    return -entropy
