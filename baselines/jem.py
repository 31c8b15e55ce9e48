"""JEM, the joint energy-based model (Grathwohl et al. 2019, arXiv 1912.03263)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from bench.registry import MODELS, TRAINERS
from bench.types import Dataset

from .hybrid import build
from .likelihood import LogDensity, SamplerOptions
from .objectives import CrossEntropy, Term
from .training_loop import Recipe


@MODELS.register("jem", trainer="jem")
def jem(
    dataset: Dataset, network: str, checkpoint: Path | None = None, trust: bool = False
) -> nn.Module:
    """Classifier trained with cross-entropy and log p(x) by SGLD (JEM)."""
    return build(dataset, network, checkpoint, trust)


@TRAINERS.register("jem")
@dataclass(frozen=True, kw_only=True)
class JEMTrainer(SamplerOptions, Recipe):
    """-log p(y|x) - log p(x), both with weight 1 (equation 5)."""

    def terms(
        self, shape: tuple[int, int, int], num_classes: int, generator: torch.Generator
    ) -> dict[str, Term]:
        """Return the terms of the objective, by name."""
        return {
            "cross_entropy": CrossEntropy(),
            "log_density": LogDensity(self, shape, generator),
        }
