"""The verdict on adversarial images: fresh passes, and measured distances.

What an attack says of its own success is never used: its images are checked against the budget
here, and shown to the model again.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bench import wrapping
from bench.errors import InputError, ModelError
from bench.refinement import is_stochastic
from bench.types import Norm

# Rounding of a float32 candidate; the measurement itself is in float64.
_SLACK = 1e-6


def check_logits(logits: object, image_ids: Tensor, y: Tensor) -> Tensor:
    """Return the logits, ``(B, K)`` float32, finite and with a column for every label.

    ``image_ids`` are the numbers of the images, for messages.

    Raises:
        ModelError: They are not logits.
        InputError: A label is outside the model's classes.
    """
    wrapping.check_logits(logits, len(y), image_ids)
    assert isinstance(logits, Tensor)
    if logits.shape[1] < 2:
        raise ModelError(
            "the model returned one column; an attack needs at least two classes: give a binary "
            "model the logits (0, z)"
        )
    if int(y.max()) >= logits.shape[1]:
        raise InputError(
            f"labels go up to {int(y.max())} and the model has {logits.shape[1]} classes; expected "
            f"labels of at most {logits.shape[1] - 1}"
        )
    return logits.float()


@torch.no_grad()
def verdict(
    model: nn.Module, x: Tensor, y: Tensor, image_ids: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the predicted classes and the margins, both ``(B,)``, of one fresh pass.

    The margin is the true logit minus the best other one. Messages name the images by their
    numbers, or else by their places among these.
    """
    ids = torch.arange(len(x), device=x.device) if image_ids is None else image_ids
    logits = check_logits(model(x), ids, y)
    return logits.argmax(dim=1), margin(logits, y)


def margin(logits: Tensor, y: Tensor) -> Tensor:
    """Return the true logit minus the best other one, ``(B,)``."""
    true = logits.gather(1, y[:, None])
    others = logits.scatter(1, y[:, None], -torch.inf)
    return true[:, 0] - others.amax(dim=1)


def per_image(values: Tensor, like: Tensor) -> Tensor:
    """Return ``(B,)`` values in the shape that broadcasts over ``like``, ``(B, ...)``."""
    return values.view(-1, *[1] * (like.ndim - 1))


@torch.no_grad()
def settled(
    model: nn.Module, x: Tensor, found: Tensor, y: Tensor, image_ids: Tensor | None = None
) -> Tensor:
    """Return nearest adversarial images that a fresh pass, too, finds misclassified.

    A nearest image lies on the boundary, where the pass that found it and another one, of another
    batch size, can round to different classes. What came out right is moved away from the clean
    image by 1e-5 of its distance, then by 4 times as much, up to 1 %; what stays right is replaced
    by the clean image. A stochastic model's points are returned as they are: there one pass says
    nothing.
    """
    if is_stochastic(model):
        return found
    found = found.clone()
    rows = (found != x).flatten(1).any(dim=1).nonzero()[:, 0]
    for stretch in (0.0, *(1e-5 * 4**k for k in range(6))):
        if len(rows) == 0:
            return found
        away = found.clone()
        away[rows] = (found[rows] + stretch * (found[rows] - x[rows])).clamp(0, 1)
        # All images again: the verdict is taken in a batch of this size.
        wrong = verdict(model, away, y, image_ids)[0][rows] != y[rows]
        found[rows[wrong]] = away[rows[wrong]]
        rows = rows[~wrong]
    found[rows] = x[rows]
    return found


def distances(x: Tensor, x_adv: Tensor) -> dict[Norm, Tensor]:
    """Return L0, L2 and L-infinity of the change, each ``(B,)`` float64 on the CPU.

    L0 counts the changed entries, pixels times channels.
    """
    change = _change(x, x_adv)
    return {norm: _size(norm, change) for norm in Norm}


def _change(x: Tensor, x_adv: Tensor) -> Tensor:
    return (x_adv.cpu().double() - x.cpu()).flatten(1)


def _size(norm: Norm, change: Tensor) -> Tensor:
    """Return the size of changes ``(B, pixels)``, ``(B,)`` float64."""
    if norm is Norm.L0:
        return (change != 0).sum(dim=1).double()
    if norm is Norm.L2:
        length: Tensor = torch.linalg.vector_norm(change, dim=1)
        return length
    return change.abs().amax(dim=1)


def check_candidates(name: str, x: Tensor, candidates: object, norm: Norm, eps: float) -> Tensor:
    """Return the candidates of an attack, detached float32, if they keep to the rules.

    Raises:
        InputError: They have another shape, or leave [0, 1] or the ball.
    """
    if not isinstance(candidates, Tensor) or candidates.shape != x.shape:
        shape = tuple(candidates.shape) if isinstance(candidates, Tensor) else type(candidates)
        raise InputError(
            f"attack '{name}' returned {shape} for images of shape {tuple(x.shape)}; expected one "
            "candidate an image"
        )
    candidates = candidates.detach().to(x.dtype)
    low, high = float(candidates.min()), float(candidates.max())
    if not (low >= 0 and high <= 1):  # also false for NaN
        raise InputError(
            f"attack '{name}' returned pixel values from {low:g} to {high:g}; expected [0, 1]: "
            "clamp the candidates"
        )
    distance = float(_size(norm, _change(x, candidates)).max())
    if distance > eps * (1 + _SLACK):
        raise InputError(
            f"attack '{name}' went {distance:.9g} in {norm} where eps is {eps:.9g}; expected at "
            f"most eps * (1 + {_SLACK:g}): project the candidates, rounding towards the clean image"
        )
    return candidates
