"""Measure: one out-of-distribution score of every image."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bench.context import Context
from bench.errors import BenchError, InputError, ModelError
from bench.models import LoadedModel
from bench.noise import Noise
from bench.refinement import OneDraw, is_stochastic, unrefined
from bench.registry import SCORES
from bench.sharing import Shared, shared
from bench.tasks.base import Arrays, Batch, DataRef
from bench.tasks.logits import require_logits
from bench.types import DensityModel
from bench.wrapping import check_form

NEEDS = ("logits", "gradient", "noise")


def needs_of(score: str) -> tuple[str, ...]:
    """Return what a score says it needs: ``logits``, the ``gradient`` of log p(x), ``noise``.

    A score that needs noise is random, and called with keyed noise as its third argument.

    Raises:
        UnknownName: There is no such score.
        InputError: It needs what nobody gives.
    """
    told = SCORES.entry(score).facts.get("needs", ())
    needs = (told,) if isinstance(told, str) else tuple(told)
    for need in needs:
        if need not in NEEDS:
            raise InputError(
                f"score '{score}' is registered with needs={told!r}; expected some of "
                f"{', '.join(NEEDS)}"
            )
    return needs


@dataclass(frozen=True, eq=False)
class _Part:
    """Images that go through the model at once; all scores of a job see the same ones."""

    model: Shared | None
    x: Tensor
    noise: Noise


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
        images_per_shard: Size of a shard.
    """

    data: DataRef
    score: str
    input_noise: float = 0.0
    repeats: int = 5
    steps: int | None = None
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
        """Return score and noise, and of what kind of draws where it is random."""
        settings: dict[str, Any] = {"score": self.score, "input_noise": self.input_noise}
        if self.random:
            settings["repeats"] = self.repeats
        return settings | self._options()

    @property
    def random(self) -> bool:
        """Whether the score depends on noise of its own."""
        return "noise" in needs_of(self.score)

    def _options(self) -> dict[str, int]:
        default = SCORES.entry(self.score).options.get("steps")
        return {} if default is None else {"steps": self.steps or default}

    def code(self) -> Sequence[Any]:
        """Return what determines the numbers."""
        return [Scored, SCORES[self.score]]

    def __call__(self, model: LoadedModel | None, batch: Batch, context: Context) -> Arrays:
        """Return ``score`` (B,) float64, (B, repeats) of a random score.

        Infinities are legal, NaN is an error.
        """
        if model is not None and "logits" in needs_of(self.score):
            require_logits(unrefined(model.module), model.name)
        chunks: list[Tensor] = []
        for part in self._parts(model, batch, context):
            if not chunks:
                self._check_form(part)
            chunks.append(self._values(part))
            context.progress(len(part.x))
        return {"score": torch.cat(chunks).numpy()}

    def _parts(self, model: LoadedModel | None, batch: Batch, context: Context) -> Sequence[_Part]:
        """Return the images in parts, those of another score of the batch where there are any.

        Parts that were made smaller because memory ran out stay; larger ones are made anew.
        """
        name = f"{self.name}, noise {self.input_noise}"
        size, parts = batch.shared.get(name, (0, ()))
        if not 0 < size <= context.micro_batch:
            parts = list(self._split(model, batch, context))
            batch.shared[name] = context.micro_batch, parts
        return tuple(parts)

    def _split(self, model: LoadedModel | None, batch: Batch, context: Context) -> Iterator[_Part]:
        together = [m for m in batch.measures if isinstance(m, Scored)]
        gradient = any("gradient" in needs_of(m.score) for m in (self, *together))
        positions = torch.arange(len(batch.x), device=batch.x.device)
        for rows in torch.split(positions, context.micro_batch):
            noise = context.noise.select(rows)
            x = batch.x[rows]
            if self.input_noise:
                x = x + self.input_noise * noise.at("input").normal(*x.shape[1:])
            if model is None:
                yield _Part(None, x, noise)
                continue
            module = unrefined(model.module)
            if is_stochastic(module):
                module = OneDraw(module, noise.at("draw", 0))
            yield _Part(shared(module, x, gradient=gradient), x, noise)

    def _check_form(self, part: _Part) -> None:
        """Raise `ModelError` where a score would read something else as logits."""
        own = isinstance(part.model, DensityModel) and "logits" not in needs_of(self.score)
        if part.model is None or own:
            return
        try:
            logits = part.model(part.x)
        except Exception:  # the score meets it too, and its message names the images
            return
        check_form(logits, len(part.x))

    def _values(self, part: _Part) -> Tensor:
        score = partial(SCORES[self.score], part.model, part.x, **self._options())
        if not self.random:
            return self._checked(score, part)
        draws = (part.noise.at("repeat", r) for r in range(self.repeats))
        return torch.stack([self._checked(partial(score, d), part) for d in draws], dim=1)

    def _checked(self, score: Callable[[], Any], part: _Part) -> Tensor:
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
