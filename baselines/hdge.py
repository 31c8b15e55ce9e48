"""HDGE, hybrid discriminative-generative training (Liu and Abbeel 2020, arXiv 2007.09070).

The paper's equations and its algorithm are different objectives. Three forms are registered, and
each keeps its own name in every result (docs/training.md says how they compare).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from bench.registry import MODELS, TRAINERS
from bench.types import Dataset

from .contrastive import Algorithm1, Equation13, Masked, QueueOptions
from .hybrid import build
from .objectives import CrossEntropy, Term
from .training_loop import Recipe


@MODELS.register("hdge", trainer="hdge")
def hdge(
    dataset: Dataset, network: str, checkpoint: Path | None = None, trust: bool = False
) -> nn.Module:
    """Classifier trained with cross-entropy and contrastive log p(x|y) (HDGE, Algorithm 1)."""
    return build(dataset, network, checkpoint, trust)


@MODELS.register("hdge-masked", trainer="hdge-masked")
def hdge_masked(
    dataset: Dataset, network: str, checkpoint: Path | None = None, trust: bool = False
) -> nn.Module:
    """HDGE's Algorithm 1 with a true class mask."""
    return build(dataset, network, checkpoint, trust)


@MODELS.register("hdge-eq13", trainer="hdge-eq13")
def hdge_eq13(
    dataset: Dataset, network: str, checkpoint: Path | None = None, trust: bool = False
) -> nn.Module:
    """HDGE by the paper's equation 13: raw logits, negatives in the batch."""
    return build(dataset, network, checkpoint, trust)


@TRAINERS.register("hdge")
@dataclass(frozen=True, kw_only=True)
class HDGETrainer(QueueOptions, Recipe):
    """-log p(y|x) - log p(x|y), contrastive by Algorithm 1 as in the public code."""

    def terms(
        self, shape: tuple[int, int, int], num_classes: int, generator: torch.Generator
    ) -> dict[str, Term]:
        """Return the terms of the objective, by name."""
        contrastive = Algorithm1(self, num_classes, generator)
        return {"cross_entropy": CrossEntropy(), "contrastive": contrastive}


@TRAINERS.register("hdge-masked")
@dataclass(frozen=True, kw_only=True)
class HDGEMaskedTrainer(QueueOptions, Recipe):
    """-log p(y|x) - log p(x|y), contrastive by Algorithm 1 with a true class mask."""

    def terms(
        self, shape: tuple[int, int, int], num_classes: int, generator: torch.Generator
    ) -> dict[str, Term]:
        """Return the terms of the objective, by name."""
        contrastive = Masked(self, num_classes, generator)
        return {"cross_entropy": CrossEntropy(), "contrastive": contrastive}


@TRAINERS.register("hdge-eq13")
@dataclass(frozen=True, kw_only=True)
class HDGEEquation13Trainer(Recipe):
    """-log p(y|x) - log p(x|y), contrastive by equation 13 over the batch."""

    def terms(
        self, shape: tuple[int, int, int], num_classes: int, generator: torch.Generator
    ) -> dict[str, Term]:
        """Return the terms of the objective, by name."""
        return {"cross_entropy": CrossEntropy(), "contrastive": Equation13()}
