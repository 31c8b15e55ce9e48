"""HDGE+JEM: cross-entropy, contrastive log p(x|y) and log p(x) by SGLD together.

Liu and Abbeel 2020, arXiv 2007.09070. The contrastive term is equation 13, the form that
did best on validation over three seeds (docs/training.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from bench.registry import MODELS, TRAINERS
from bench.types import Dataset

from .contrastive import Equation13
from .hybrid import build
from .likelihood import LogDensity, SamplerOptions
from .objectives import CrossEntropy, Term
from .training_loop import Recipe


@MODELS.register("hdge-jem", trainer="hdge-jem")
def hdge_jem(
    dataset: Dataset, network: str, checkpoint: Path | None = None, trust: bool = False
) -> nn.Module:
    """Classifier trained with cross-entropy, contrastive log p(x|y) and log p(x) (HDGE+JEM)."""
    return build(dataset, network, checkpoint, trust)


@TRAINERS.register("hdge-jem")
@dataclass(frozen=True, kw_only=True)
class HDGEJEMTrainer(SamplerOptions, Recipe):
    """-log p(y|x) - log p(x|y) - log p(x), with equation 13 for the second."""

    def terms(
        self, shape: tuple[int, int, int], num_classes: int, generator: torch.Generator
    ) -> dict[str, Term]:
        """Return the terms of the objective, by name."""
        return {
            "cross_entropy": CrossEntropy(),
            "contrastive": Equation13(),
            "log_density": LogDensity(self, shape, generator),
        }
