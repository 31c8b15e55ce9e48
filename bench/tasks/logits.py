"""Measure: the logits of every image, from which accuracy, calibration and more are reduced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from bench.context import Context
from bench.errors import Unsupported
from bench.models import LoadedModel
from bench.refinement import is_stochastic, unrefined
from bench.tasks.base import Arrays, Batch, DataRef
from bench.wrapping import checked_logits

PROBED = 8  # images that tell whether a model returns logits at all


@dataclass(frozen=True, kw_only=True)
class Logits:
    """Logits of ``draws`` independent draws (one for a deterministic model).

    Attributes:
        data: The images.
        draws: How many draws of a stochastic model.
        input_noise: Standard deviation of noise added to each image once, x units; the papers'
            evaluation adds 0.015 (0.03 in z = 2x - 1). With it the unrefined model is asked.
        images_per_shard: Size of a shard.
    """

    data: DataRef
    draws: int = 1
    input_noise: float = 0.0
    images_per_shard: int = 250
    name: str = "logits"

    @property
    def uses_model(self) -> str:
        """The unrefined model under the protocol's input noise, else the model as it is."""
        return "plain" if self.input_noise else "full"

    def settings(self) -> Mapping[str, Any]:
        """Return draws and noise."""
        return {"draws": self.draws, "input_noise": self.input_noise}

    def code(self) -> Sequence[Any]:
        """Return what determines the numbers."""
        return [Logits]

    def __call__(self, model: LoadedModel | None, batch: Batch, context: Context) -> Arrays:
        """Return ``logits`` (B, draws, K) float32 and ``labels`` (B,)."""
        assert model is not None
        if batch.y is None or batch.num_classes is None:
            raise Unsupported(f"data set '{self.data.spec}' has no labels")
        module = unrefined(model.module) if self.input_noise else model.module
        require_logits(module, model.name)
        draws = self.draws if is_stochastic(module) else 1
        chunks = []
        for part in torch.split(torch.arange(len(batch.x)), context.micro_batch):
            noise = context.noise.select(part.to(batch.x.device))
            x = batch.x[part]
            if self.input_noise:
                x = x + self.input_noise * noise.at("input").normal(*x.shape[1:])
            with torch.no_grad():
                per_draw = [
                    checked_logits(module, x, noise.at("draw", r), batch.num_classes)
                    for r in range(draws)
                ]
            chunks.append(torch.stack(per_draw, dim=1))
            context.progress(len(part))
        return {"logits": torch.cat(chunks).cpu().numpy(), "labels": batch.y.cpu().numpy()}


def probe(module: nn.Module, batch: Batch, context: Context) -> None:
    """Raise `ModelError` where the answers to the first images are no logits of the data set."""
    with torch.no_grad():
        noise = context.noise.select(torch.arange(len(batch.x))[:PROBED].to(batch.x.device))
        checked_logits(module, batch.x[:PROBED], noise.at("probe"), batch.num_classes)


def require_logits(module: nn.Module, name: str) -> None:
    """Raise `Unsupported` for a model that has no ``forward``: a density without classes."""
    if type(module).forward is nn.Module.forward:
        raise Unsupported(f"{name} has no logits: it is a density without classes")
