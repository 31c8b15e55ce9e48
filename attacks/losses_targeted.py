"""What a targeted attack raises: losses that are higher the nearer a given wrong class is to win.

As in `losses`, logits come as ``(B, K, classes)``: K draws of a stochastic model, one of a
deterministic model. ``y`` is the true class and ``aim`` the class to reach, both ``(B,)``.
"""

from __future__ import annotations

import torch
from torch import Tensor


def targeted_margin(logits: Tensor, y: Tensor, aim: Tensor) -> Tensor:
    """Return the logit of ``aim`` minus that of ``y``, mean over the draws, ``(B,)``."""
    return _lead(logits, y, aim).mean(dim=1)


def targeted_dlr(logits: Tensor, y: Tensor, aim: Tensor) -> Tensor:
    """Return the targeted difference of logits ratio, mean over the draws, ``(B,)``.

    Croce and Hein (2020), equation 7. It does not depend on the scale of the logits. The equation
    needs the four largest logits: where there are fewer than four classes the numerator alone, the
    targeted margin, takes its place.
    """
    if logits.shape[2] < 4:
        return targeted_margin(logits, y, aim)
    top = logits.topk(4, dim=2).values
    spread = top[:, :, 0] - (top[:, :, 2] + top[:, :, 3]) / 2
    return (_lead(logits, y, aim) / (spread + 1e-12)).mean(dim=1)


def _lead(logits: Tensor, y: Tensor, aim: Tensor) -> Tensor:
    """Return the logit of ``aim`` minus that of ``y`` in every draw, ``(B, K)``."""
    pair = torch.stack([aim, y], dim=1)[:, None].expand(-1, logits.shape[1], -1)
    chosen = logits.gather(2, pair)
    return chosen[:, :, 0] - chosen[:, :, 1]
