"""Measure: one out-of-distribution score of every image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bench.context import Context
from bench.errors import BenchError, ModelError
from bench.models import LoadedModel
from bench.refinement import OneDraw, is_stochastic, unrefined
from bench.registry import SCORES
from bench.tasks.base import Arrays, Batch, DataRef
from bench.tasks.logits import PROBED, require_logits
from bench.types import DensityModel
from bench.wrapping import check_form


@dataclass(frozen=True, kw_only=True)
class Scored:
    """Values of a registered score; it is given the unrefined model.

    Attributes:
        data: The images.
        score: Name in the registry.
        input_noise: Standard deviation of noise added to each image once, x units.
        images_per_shard: Size of a shard.
    """

    data: DataRef
    score: str
    input_noise: float = 0.0
    images_per_shard: int = 250

    @property
    def name(self) -> str:
        """All scores of a set see the same noisy images."""
        return f"scores/{self.data.title}"

    @property
    def uses_model(self) -> str:
        """A trivial score needs no model, so its shard serves every model."""
        return "none" if SCORES.entry(self.score).facts.get("trivial") else "plain"

    def settings(self) -> Mapping[str, Any]:
        """Return score and noise."""
        return {"score": self.score, "input_noise": self.input_noise}

    def code(self) -> Sequence[Any]:
        """Return what determines the numbers."""
        return [Scored, SCORES[self.score]]

    def __call__(self, model: LoadedModel | None, batch: Batch, context: Context) -> Arrays:
        """Return ``score`` (B,) float64; infinities are legal, NaN is an error."""
        entry = SCORES.entry(self.score)
        module = unrefined(model.module) if model is not None else None
        if model is not None and module is not None and entry.facts.get("needs") == "logits":
            require_logits(module, model.name)
        chunks: list[torch.Tensor] = []
        for part in torch.split(torch.arange(len(batch.x)), context.micro_batch):
            noise = context.noise.select(part.to(batch.x.device))
            x = batch.x[part]
            if self.input_noise:
                x = x + self.input_noise * noise.at("input").normal(*x.shape[1:])
            asked = module
            if module is not None and is_stochastic(module):
                asked = OneDraw(module, noise.at("draw", 0))
            if asked is not None and not chunks:
                self._check_form(asked, x[:PROBED])
            chunks.append(self._values(asked, x, noise.image_ids))
            context.progress(len(part))
        return {"score": torch.cat(chunks).numpy()}

    def _check_form(self, module: torch.nn.Module, x: torch.Tensor) -> None:
        """Raise `ModelError` where a score would read something else as logits."""
        reads_logits = SCORES.entry(self.score).facts.get("needs") == "logits"
        if isinstance(module, DensityModel) and not reads_logits:
            return
        try:
            with torch.no_grad():
                logits = module(x)
        except Exception:  # the score meets it too, and its message names the images
            return
        check_form(logits, len(x))

    def _values(self, module: Any, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        try:
            values = SCORES[self.score](module, x)
        except BenchError:
            raise
        except Exception as error:
            raise ModelError(
                f"score '{self.score}' raised {type(error).__name__} on images "
                f"{ids[:5].tolist()}…: {error}"
            ) from error
        if not isinstance(values, torch.Tensor) or values.shape != (len(x),):
            shape = tuple(values.shape) if isinstance(values, torch.Tensor) else type(values)
            raise ModelError(f"score '{self.score}' returned {shape}; expected ({len(x)},)")
        values = values.detach().cpu().double()
        bad = torch.isnan(values)
        if bool(bad.any()):
            first = ids.cpu()[bad][:5].tolist()
            raise ModelError(
                f"score '{self.score}' is NaN for {int(bad.sum())} of {len(x)} images of "
                f"'{self.data.spec}', numbers {first}: check the model's arithmetic on them"
            )
        return values
