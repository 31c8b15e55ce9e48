"""The plain classifier: cross-entropy alone, the row that every hybrid is compared with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from bench.registry import MODELS, TRAINERS
from bench.types import Dataset

from .hybrid import build
from .objectives import CrossEntropy, Term
from .training_loop import Recipe


@MODELS.register("baseline", trainer="baseline")
def baseline(
    dataset: Dataset, network: str, checkpoint: Path | None = None, trust: bool = False
) -> nn.Module:
    """Classifier trained with cross-entropy."""
    return build(dataset, network, checkpoint, trust)


@TRAINERS.register("baseline")
@dataclass(frozen=True, kw_only=True)
class BaselineTrainer(Recipe):
    """-log p(y|x)."""

    def terms(
        self, shape: tuple[int, int, int], num_classes: int, generator: torch.Generator
    ) -> dict[str, Term]:
        """Return the terms of the objective, by name."""
        return {"cross_entropy": CrossEntropy()}
