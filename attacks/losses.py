"""What an attack raises: losses of logits that are higher the more wrong the model is.

Logits come as ``(B, K, classes)``: K draws of a stochastic model, one of a deterministic model.
Only the direction of a gradient is used by the attacks here, so a loss may be replaced by an
increasing function of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import softplus

from bench.errors import InputError

LossName = Literal["ce", "margin", "dlr"]


def _split(logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the true class's logit, ``(B, K)``, and the logits with it at minus infinity."""
    index = y[:, None, None].expand(-1, logits.shape[1], 1)
    true = logits.gather(2, index)[:, :, 0]
    return true, logits.scatter(2, index, -torch.inf)


def margins(logits: Tensor, y: Tensor) -> Tensor:
    """Return the true logit minus the best other one, ``(B, K)``; negative means wrong.

    No answer, NaN, is as wrong as can be: a search must find it, so that the verdict can refuse it.
    """
    true, others = _split(logits, y)
    lead = true - others.amax(dim=2)
    return torch.nan_to_num(lead, nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Return an increasing function of the cross-entropy summed over the draws, ``(B,)``.

    Of one draw it is the log-odds of the other classes, u, of which the cross-entropy is
    log(1 + e^u); of several the logarithm of the sum. Its gradient has the direction of the
    cross-entropy's own but does not vanish when the model is certain, where 1 - p(y|x) is zero in
    float32 and plain cross-entropy is blind.
    """
    true, others = _split(logits, y)
    odds = torch.logsumexp(others, dim=2) - true
    if odds.shape[1] == 1:
        return odds[:, 0]
    # Below -15, log(softplus(u)) is u to float32 precision.
    logs = softplus(odds.clamp(min=-15)).log() + (odds + 15).clamp(max=0)
    return torch.logsumexp(logs, dim=1)


def margin(logits: Tensor, y: Tensor) -> Tensor:
    """Return the best other logit minus the true one, mean over the draws, ``(B,)``.

    Carlini and Wagner (2017), equation f6 without the cut-off.
    """
    return -margins(logits, y).mean(dim=1)


def dlr(logits: Tensor, y: Tensor) -> Tensor:
    """Return the difference of logits ratio, mean over the draws, ``(B,)``.

    Croce and Hein (2020), equation 6. It does not depend on the scale of the logits.

    Raises:
        InputError: There are fewer than three classes.
    """
    if logits.shape[2] < 3:
        raise InputError(
            f"the loss 'dlr' needs at least 3 classes and the model has {logits.shape[2]}; "
            "use loss='margin'"
        )
    top = logits.topk(3, dim=2).values
    return (-margins(logits, y) / (top[:, :, 0] - top[:, :, 2] + 1e-12)).mean(dim=1)


def in_halves(logits: Tensor, y: Tensor, step: int | Tensor, half: int) -> Tensor:
    """Return the cross-entropy before the step ``half`` of a run, and the margin from there on.

    The cross-entropy climbs towards whatever class gives way; the margin follows the one that leads
    to the end. One run with both finds more than two with either. ``step`` is one for all or
    ``(B,)``.
    """
    if isinstance(step, Tensor):
        return torch.where(step < half, cross_entropy(logits, y), margin(logits, y))
    return (cross_entropy if step < half else margin)(logits, y)


LOSSES: dict[LossName, Callable[[Tensor, Tensor], Tensor]] = {
    "ce": cross_entropy,
    "margin": margin,
    "dlr": dlr,
}
