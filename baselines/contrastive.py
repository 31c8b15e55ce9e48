"""The contrastive term for log p(x|y), HDGE, in three forms.

HDGE (Liu and Abbeel 2020, arXiv 2007.09070) approximates the normaliser of
q(x|y) = exp f(x)[y] / Z over other images (equation 13). Its Algorithm 1 and its public code do
something else: logits are L2-normalised over the classes, multiplied by the one-hot label and
reduced with logsumexp over *all* classes, so that C - 1 zeros stay and a logit p in [-1, 1]
becomes log(C - 1 + e^p); that is divided by the temperature; and the negatives are stored logits
that carry no gradient. The three forms are named in every result: `Algorithm1`, `Masked` (the
same with a true class mask) and `Equation13`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from .objectives import Step


@dataclass(frozen=True, kw_only=True)
class QueueOptions:
    """Options of the forms that contrast with stored logits.

    Attributes:
        n_negatives: K, the length of the queue of past logits.
        temperature: Divides the reduced logits.
    """

    n_negatives: int = 65_536
    temperature: float = 0.1


class Algorithm1:
    """-log of the positive's share among itself and K stored negatives.

    Args:
        options: Queue length and temperature.
        num_classes: C.
        generator: Fills the queue with Gaussian noise, as the public code does.
    """

    def __init__(self, options: QueueOptions, num_classes: int, generator: torch.Generator) -> None:
        self.options = options
        size = (options.n_negatives, num_classes)
        queue = torch.randn(size, generator=generator, device=generator.device)
        # The public code stores raw logits and normalises them when read: the same numbers.
        self.memory = {"queue": normalize(queue, dim=1), "next": torch.tensor(0)}

    def similarity(self, unit: Tensor) -> Tensor:
        """Return ``(n, C)``: what a unit logit vector scores under each label."""
        return torch.log(unit.shape[1] - 1 + unit.exp())

    def __call__(self, step: Step) -> Tensor:
        """Return the scalar loss, and store the batch's logits in place of the oldest."""
        unit = normalize(step.logits, dim=1)
        positive = self.similarity(unit).gather(1, step.y[:, None])[:, 0]
        positive = positive / self.options.temperature
        # The negatives of an image depend on its label alone: C sums serve the whole batch.
        negative = self.similarity(self.memory["queue"]) / self.options.temperature
        negative = negative.logsumexp(dim=0)[step.y]
        self._store(unit.detach())
        return (torch.logaddexp(positive, negative) - positive).mean()

    def _store(self, unit: Tensor) -> None:
        queue, first = self.memory["queue"], int(self.memory["next"])
        unit = unit[-len(queue) :]
        rows = torch.arange(first, first + len(unit), device=queue.device) % len(queue)
        queue[rows] = unit
        self.memory["next"] = torch.tensor((first + len(unit)) % len(queue))


class Masked(Algorithm1):
    """Algorithm 1 with a true class mask: the score is the label's normalised logit itself."""

    def similarity(self, unit: Tensor) -> Tensor:
        """Return ``(n, C)``: the normalised logits."""
        return unit


class Equation13:
    """-log(exp f(x_i)[y_i] / mean_j exp f(x_j)[y_i]) on raw logits, j over the batch.

    The negatives carry gradient: against detached ones, raising every logit always lowers the
    loss. The mean in place of the paper's sum makes 0 the value of a constant f, whatever the
    batch size.
    """

    def __init__(self) -> None:
        self.memory: dict[str, Tensor] = {}

    def __call__(self, step: Step) -> Tensor:
        """Return the scalar loss, at least -log of the batch size."""
        positive = step.logits.gather(1, step.y[:, None])[:, 0]
        normaliser = step.logits.logsumexp(dim=0)[step.y] - math.log(len(step.logits))
        return (normaliser - positive).mean()
