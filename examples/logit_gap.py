"""Gap between the two largest logits, as a score of how familiar an image is."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bench.registry import SCORES


@SCORES.register("logit-gap", needs="logits")
def logit_gap(model: nn.Module, x: Tensor) -> Tensor:
    """Return the largest logit minus the second largest, ``(B,)``: sure is familiar."""
    with torch.no_grad():
        logits: Tensor = model(x)
    largest = logits.double().topk(2, dim=1).values
    return largest[:, 0] - largest[:, 1]
