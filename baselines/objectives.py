"""What a training step is given, and what the terms of an objective are.

An objective is a sum of named terms with weight 1 each, as in JEM and HDGE: cross-entropy, a
contrastive term for log p(x|y), a maximum-likelihood term for log p(x).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


@dataclass(frozen=True, kw_only=True)
class Step:
    """One training step; images are in z = 2x - 1, noise added.

    Attributes:
        network: Maps z to logits.
        z: Labelled images ``(B, C, H, W)``.
        y: Their labels ``(B,)``.
        logits: ``network(z)``, ``(B, K)``, with its graph.
        unlabelled: Images of a second, independently shuffled order, as JEM takes for log p(x).
        generator: The source of the step's random draws, on the device.
        caution: Factor on the step size of a sampler; below 1 after a divergence.
    """

    network: nn.Module
    z: Tensor
    y: Tensor
    logits: Tensor
    unlabelled: Tensor
    generator: torch.Generator
    caution: float = 1.0


class Term(Protocol):
    """One term of an objective; what it remembers between steps are tensors in ``memory``."""

    memory: dict[str, Tensor]

    def __call__(self, step: Step) -> Tensor:
        """Return the term's scalar loss; raise `Unhealthy` where it has left its bounds."""
        ...


class Unhealthy(Exception):
    """The training diverges; the message is the reason."""


class CrossEntropy:
    """-log p(y|x), averaged over the batch."""

    def __init__(self) -> None:
        self.memory: dict[str, Tensor] = {}

    def __call__(self, step: Step) -> Tensor:
        """Return the scalar loss."""
        return cross_entropy(step.logits, step.y)
