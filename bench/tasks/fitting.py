"""Measure: what a score learns from the training images before it can score any other."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from bench.context import Context
from bench.data import to_tensor
from bench.errors import BenchError, ModelError
from bench.models import LoadedModel
from bench.noise import bound
from bench.refinement import unrefined
from bench.registry import SCORES
from bench.tasks.base import Arrays, Batch, DataRef, identity, load
from bench.tasks.logits import require_logits
from bench.tasks.parts import Part, parts_of
from bench.tasks.scores import needs_of
from bench.types import FittedScore


@dataclass(frozen=True, kw_only=True)
class Fitting:
    """The fit of a registered score, on all images of one reference at once.

    Fits of one model share a pass over the training images.

    Attributes:
        data: The training images.
        score: Name in the registry.
        input_noise: Standard deviation of noise added to each image once, x units.
        images_per_shard: More than there are: a fit is of all of them.
    """

    data: DataRef
    score: str
    input_noise: float = 0.0
    images_per_shard: int = sys.maxsize

    @property
    def name(self) -> str:
        """E.g. ``fit/digits``."""
        return f"fit/{self.data.title}"

    @property
    def uses_model(self) -> str:
        """Scores are of the unrefined model."""
        return "plain"

    def settings(self) -> Mapping[str, Any]:
        """Return score and noise."""
        return {"fitted": self.score, "input_noise": self.input_noise}

    def code(self) -> Sequence[Any]:
        """Return what determines the fit."""
        return [Fitting, SCORES[self.score]]

    def __call__(self, model: LoadedModel | None, batch: Batch, context: Context) -> Arrays:
        """Return what the score's ``fit`` returns, as arrays."""
        assert model is not None
        if "logits" in needs_of(self.score):
            require_logits(unrefined(model.module), model.name)
        # The noise of training images is theirs, whatever the seed of the run.
        ids = context.noise.image_ids
        context = replace(context, noise=bound(0, self.name, ids))
        parts = parts_of(
            model, batch, context, input_noise=self.input_noise, gradient=self._gradient(batch)
        )
        fitted = self._fit(parts)
        context.progress(len(batch.x))
        return {name: values.detach().cpu().numpy() for name, values in fitted.items()}

    def _gradient(self, batch: Batch) -> bool:
        together = [m for m in batch.measures if isinstance(m, Fitting)]
        return any("gradient" in needs_of(m.score) for m in (self, *together))

    def _fit(self, parts: Sequence[Part]) -> Mapping[str, Tensor]:
        score = SCORES[self.score]
        assert isinstance(score, FittedScore)
        try:
            fitted = score.fit([(part.model, part.x, part.y) for part in parts])
        except (BenchError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            raise ModelError(
                f"score '{self.score}' raised {type(error).__name__} when it was fitted on "
                f"'{self.data.title}' ({self.data.split}): {error}"
            ) from error
        for name, values in fitted.items():
            if values.isnan().any():
                raise ModelError(
                    f"score '{self.score}' fitted on '{self.data.title}' ({self.data.split}) has "
                    f"NaN in '{name}': check the model's arithmetic on these images"
                )
        return fitted


_here: WeakKeyDictionary[nn.Module, dict[str, Arrays]] = WeakKeyDictionary()


def fit_here(
    fitting: Fitting, model: LoadedModel, device: torch.device, micro_batch: int
) -> Arrays:
    """Return a fit that nobody has stored, made in this process, once for each model."""
    known = _here.setdefault(model.module, {})
    name = f"{identity(fitting)} {device}"
    if name not in known:
        images = load(fitting.data)
        labels = None if images.labels is None else torch.as_tensor(images.labels).to(device)
        batch = Batch(to_tensor(images.images, device), labels, len(images.classes) or None)
        noise = bound(0, fitting.name, torch.arange(len(images), device=device))
        known[name] = fitting(model, batch, Context(noise=noise, micro_batch=micro_batch))
    return known[name]
