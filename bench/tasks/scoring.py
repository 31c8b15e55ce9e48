"""Measure: one out-of-distribution score of every image."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bench.context import Context
from bench.errors import BenchError, InputError, ModelError
from bench.models import LoadedModel
from bench.refinement import unrefined
from bench.registry import SCORES
from bench.sharing import Shared
from bench.tasks.base import Arrays, Batch, DataRef
from bench.tasks.fitting import Fitting, fit_here
from bench.tasks.logits import require_logits
from bench.tasks.parts import Part, parts_of
from bench.tasks.scores import is_fitted, is_random, needs_of
from bench.types import DensityModel
from bench.wrapping import check_form


@dataclass(frozen=True, kw_only=True)
class Scored:
    """Values of a registered score; it is given the unrefined model.

    Scores of the same images in one job share a forward pass, and a backward pass where one of
    them needs the gradient.

    Attributes:
        data: The images.
        score: Name in the registry.
        input_noise: Standard deviation of noise added to each image once, x units.
        repeats: Draws of a random score; others have one value whatever this is.
        steps: Of a score that has steps as an option; ``None``: its own default.
        train: The training images, for a score that is fitted.
        images_per_shard: Size of a shard.
    """

    data: DataRef
    score: str
    input_noise: float = 0.0
    repeats: int = 5
    steps: int | None = None
    train: DataRef | None = None
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
        """Return score and noise, the draws where it is random, and what it is fitted on."""
        settings: dict[str, Any] = {"score": self.score, "input_noise": self.input_noise}
        if is_random(self.score):
            settings["repeats"] = self.repeats
        if self.fitting is not None:
            data = self.fitting.data
            settings["fitted_on"] = {
                "dataset": data.title,
                "split": data.split,
                "limit": data.limit,
            }
        return settings | self._options()

    @property
    def fitting(self) -> Fitting | None:
        """What must be measured on the training images first, where anything must."""
        if not is_fitted(self.score):
            return None
        if self.train is None:
            raise InputError(
                f"score '{self.score}' is fitted on training images: say which, train=DataRef(...)"
            )
        return Fitting(data=self.train, score=self.score, input_noise=self.input_noise)

    def _options(self) -> dict[str, int]:
        default = SCORES.entry(self.score).options.get("steps")
        return {} if default is None else {"steps": self.steps or default}

    def code(self) -> Sequence[Any]:
        """Return what determines the numbers, the score that a score is made of with it."""
        of = SCORES.entry(self.score).facts.get("of")
        return [Scored, SCORES[self.score], *([] if of is None else [SCORES[of]])]

    def __call__(self, model: LoadedModel | None, batch: Batch, context: Context) -> Arrays:
        """Return ``score`` (B,) float64, (B, repeats) of a random score.

        Infinities are legal, NaN is an error.
        """
        if model is not None and "logits" in needs_of(self.score):
            require_logits(unrefined(model.module), model.name)
        fitted, options = self._fitted(model, batch, context), self._options()
        chunks: list[Tensor] = []
        for part in self._parts(model, batch, context):
            if not chunks:
                self._check_form(part)
            chunks.append(self._values(part, fitted, options))
            context.progress(len(part.x))
        return {"score": torch.cat(chunks).numpy()}

    def _parts(self, model: LoadedModel | None, batch: Batch, context: Context) -> Sequence[Part]:
        together = [m for m in batch.measures if isinstance(m, Scored)]
        gradient = any("gradient" in needs_of(m.score) for m in (self, *together))
        return parts_of(model, batch, context, input_noise=self.input_noise, gradient=gradient)

    def _fitted(
        self, model: LoadedModel | None, batch: Batch, context: Context
    ) -> tuple[Mapping[str, Tensor], ...]:
        """Return what the score has learnt, stored or made now; nothing for most scores."""
        if self.fitting is None or model is None:
            return ()
        device = batch.x.device
        arrays = batch.fitted.get(self.score)
        if arrays is None:
            arrays = fit_here(self.fitting, model, device, context.micro_batch)
        return ({name: torch.as_tensor(a).to(device) for name, a in arrays.items()},)

    def _check_form(self, part: Part) -> None:
        """Raise `ModelError` where a score would read something else as logits."""
        model, x = part.model, part.x
        own = isinstance(model, DensityModel) and "logits" not in needs_of(self.score)
        if model is None or own:
            return
        model.once("form", lambda: check_form_of(model, x))  # all scores see the same logits

    def _values(
        self, part: Part, fitted: Sequence[Mapping[str, Tensor]], options: Mapping[str, int]
    ) -> Tensor:
        score = partial(SCORES[self.score], part.model, part.x)
        if not is_random(self.score):
            return self._checked(partial(score, *fitted, **options), part)
        draws = [part.noise.at("repeat", r) for r in range(self.repeats)]
        calls = (partial(score, draw, *fitted, **options) for draw in draws)
        return torch.stack([self._checked(call, part) for call in calls], dim=1)

    def _checked(self, score: Callable[[], Any], part: Part) -> Tensor:
        """Return one float64 an image, or say what is wrong with what the score returns."""
        ids, count = part.noise.image_ids.cpu(), len(part.x)
        try:
            values = score()
        except (BenchError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            raise ModelError(
                f"score '{self.score}' raised {type(error).__name__} on images "
                f"{ids[:5].tolist()}…: {error}"
            ) from error
        if not isinstance(values, Tensor) or values.shape != (count,):
            shape = tuple(values.shape) if isinstance(values, Tensor) else type(values)
            raise ModelError(f"score '{self.score}' returned {shape}; expected ({count},)")
        values = values.detach().cpu().double()
        bad = torch.isnan(values)
        if bool(bad.any()):
            raise ModelError(
                f"score '{self.score}' is NaN for {int(bad.sum())} of {count} images of "
                f"'{self.data.spec}', numbers {ids[bad][:5].tolist()}: check the model's "
                "arithmetic on them"
            )
        return values


def check_form_of(model: Shared, x: Tensor) -> None:
    """Raise `ModelError` where a model returns something else than logits."""
    try:
        check_form(model(x), len(x))
        return
    except ModelError:
        raise
    except Exception:  # what is no tensor, say, has no pass that could be shared
        pass
    try:
        with torch.no_grad():
            answer = model.asked(x)
    except Exception:  # the score meets it too, and its message names the images
        return
    check_form(answer, len(x))
