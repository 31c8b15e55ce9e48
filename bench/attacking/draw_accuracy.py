"""Three accuracies of a model whose answer changes from draw to draw.

Croce et al. (2022), section 4.2, report the mean and the worst of several draws; the vote is what a
user gets who asks several times. Each belongs beside its counterpart on clean images: the
worst of R falls with R without any attack.

``predictions`` is ``(..., B, R)`` classes, ``labels`` ``(B,)``; each function returns ``(...)``
float64 shares in [0, 1].
"""

from __future__ import annotations

from torch import Tensor


def mean_accuracy(predictions: Tensor, labels: Tensor) -> Tensor:
    """Return the share of right answers over images and draws."""
    return (predictions == labels[:, None]).double().mean(dim=(-2, -1))


def vote_accuracy(predictions: Tensor, labels: Tensor) -> Tensor:
    """Return the share of images whose true class has more draws than any other class.

    A tie for the first place is not right.
    """
    right = (predictions == labels[:, None]).sum(dim=-1)
    classes = int(max(predictions.max(), labels.max())) + 1
    counts = (predictions[..., None] == labels.new_tensor(range(classes))).sum(dim=-2)
    index = labels[:, None].expand(*counts.shape[:-1], 1)
    rival = counts.scatter(-1, index, -1).amax(dim=-1)
    return (right > rival).double().mean(dim=-1)


def worst_accuracy(predictions: Tensor, labels: Tensor) -> Tensor:
    """Return the share of images that are right in every draw (worst of R)."""
    return (predictions == labels[:, None]).all(dim=-1).double().mean(dim=-1)
