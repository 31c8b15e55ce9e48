"""Measure and task: distal adversarial images, which are noise made to look certain.

JEM (Grathwohl et al. 2019, arXiv 1912.03263), section 5.3, Figure 6: starting at noise, maximise
p(y|x) of a class. A classifier alone is soon certain of something that still looks like noise; a
density model should say that it is unlike its data.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from scipy.special import stdtrit
from torch import Tensor, nn

from bench import metrics
from bench.context import Context
from bench.errors import Unsupported
from bench.models import LoadedModel
from bench.noise import Noise
from bench.preserving import preserved
from bench.refinement import OneDraw, is_stochastic, unrefined
from bench.registry import SCORES
from bench.target import Target, target
from bench.tasks.base import (
    Arrays,
    Batch,
    DataRef,
    Failure,
    Measure,
    Reduction,
    Results,
    Row,
    arrays_of,
    first_failure,
)
from bench.tasks.logits import probe, require_logits
from bench.tasks.scoring import Scored
from bench.types import Array

SCORE = "log-density"
METRICS = ("distal_confidence", "distal_log_density", "real_log_density", "auroc")
CONFIDENT = 0.9  # of JEM's Figure 6


@dataclass(frozen=True, kw_only=True)
class Distal:
    """Images that start at noise and climb p(y|x) of a class, and what the model says of them.

    Signed gradient steps on the log-odds, cut off at [0, 1] and nothing else. The class of image i
    is i modulo the number of classes. As scores do, it asks the unrefined model.

    Attributes:
        data: The noise.
        steps: Steps of every image.
        step_size: Of a step, in units of the [0, 1] pixel range.
        draws: Behind each gradient and confidence of a stochastic model.
        input_noise: The protocol's, x units: added once to an image before its density is asked.
        images_per_shard: Size of a shard.
    """

    data: DataRef
    steps: int = 200
    step_size: float = 0.01
    draws: int = 8
    input_noise: float = 0.0
    images_per_shard: int = 100

    @property
    def name(self) -> str:
        """The noise is the data set's."""
        return f"distal/{self.data.title}"

    @property
    def uses_model(self) -> str:
        """The model without its refinement."""
        return "plain"

    def settings(self) -> Mapping[str, Any]:
        """Return steps, draws and noise."""
        return {
            "steps": self.steps,
            "step_size": self.step_size,
            "draws": self.draws,
            "input_noise": self.input_noise,
        }

    def code(self) -> Sequence[Any]:
        """Return what determines the numbers."""
        return [Distal, SCORES[SCORE]]

    def __call__(self, model: LoadedModel | None, batch: Batch, context: Context) -> Arrays:
        """Return one row an image.

        ``x_distal`` (B, C, H, W) float32, ``target`` (B,) the class, ``probability`` (B,) its
        p(y|x), ``confidence`` (B,) max p(y|x), ``log_density`` (B,) float64.
        """
        assert model is not None
        if batch.num_classes is None:
            raise Unsupported("the data set names no classes")
        require_logits(model.module, model.name)
        probe(model.module, batch, context)
        goal = self._goal(model)
        parts = []
        with preserved(goal.model):
            for rows in torch.split(
                torch.arange(len(batch.x), device=batch.x.device), self._size(goal, context)
            ):
                noise = context.noise.select(rows)
                classes = noise.image_ids % batch.num_classes
                parts.append(self._climb(goal, batch.x[rows], classes, noise, context))
            x = torch.cat(parts)
            judged = self.judge(model, x, batch.num_classes, context)
        return {"x_distal": x.cpu().numpy(), **judged}

    def _climb(
        self, goal: Target, start: Tensor, classes: Tensor, noise: Noise, context: Context
    ) -> Tensor:
        x = start
        for step in range(self.steps):
            x = x.detach().requires_grad_()
            odds = _log_odds(goal(x, noise.at("step", step)), classes).sum()
            (gradient,) = torch.autograd.grad(odds, x)
            x = (x + self.step_size * gradient.sign()).detach().clamp(0, 1)
            context.progress(1)
            if context.out_of_time():
                break
        return x

    @torch.no_grad()
    def judge(
        self, model: LoadedModel, x: Tensor, num_classes: int, context: Context
    ) -> dict[str, Array]:
        """Return what the model says of images ``(B, C, H, W)``; see the arrays of a shard.

        Probabilities are means over draws that no step has seen.
        """
        goal = self._goal(model)
        parts = []
        for rows in torch.split(torch.arange(len(x), device=x.device), self._size(goal, context)):
            noise, shown = context.noise.select(rows), x[rows]
            classes = noise.image_ids % num_classes
            share = goal(shown, noise.at("judge")).double().softmax(dim=2).mean(dim=1)
            chosen = share.gather(1, classes[:, None])[:, 0]
            parts.append((classes, chosen, share.amax(dim=1), self._density(goal, shown, noise)))
        names = ("target", "probability", "confidence", "log_density")
        joined = (torch.cat(part).cpu().numpy() for part in zip(*parts, strict=True))
        return dict(zip(names, joined, strict=True))

    def _density(self, goal: Target, x: Tensor, noise: Noise) -> Tensor:
        """Return log p(x), ``(B,)`` float64, as suite ``ood`` has it for its images."""
        if self.input_noise:
            x = x + self.input_noise * noise.at("input").normal(*x.shape[1:])
        asked: nn.Module = goal.model
        if is_stochastic(asked):
            asked = OneDraw(asked, noise.at("draw", 0))
        value: Tensor = SCORES[SCORE](asked, x)
        return value.double()

    def _goal(self, model: LoadedModel) -> Target:
        return target(unrefined(model.module), "straight-through", self.draws)

    def _size(self, goal: Target, context: Context) -> int:
        return max(1, context.micro_batch // goal.rows)


def _log_odds(logits: Tensor, classes: Tensor) -> Tensor:
    """Return log p(y|x) - log(1 - p(y|x)) of the classes, the mean over draws, ``(B,)``.

    It grows with p(y|x), and its gradient does not vanish where p(y|x) rounds to 1.
    """
    index = classes[:, None, None].expand(-1, logits.shape[1], 1)
    others = logits.scatter(2, index, -torch.inf).logsumexp(dim=2)
    return (logits.gather(2, index)[:, :, 0] - others).mean(dim=1)


@dataclass(frozen=True)
class DistalTask:
    """How certain the model gets of noise, and whether its density sees through it.

    Attributes:
        measure: The distal images.
        real: log p(x) of the in-distribution test images.
    """

    measure: Distal
    real: Scored

    name: ClassVar[str] = "distal"
    needs_model: ClassVar[bool] = True

    @property
    def measures(self) -> Sequence[Measure]:
        """Both sides."""
        return (self.measure, self.real)

    def missing(self, failure: Failure) -> Iterator[Row]:
        """Yield all rows with the reason in place of the number."""
        for metric in METRICS:
            yield Row(
                metric=metric,
                status=failure.status,
                note=failure.reason,
                settings=self._settings(),
            )

    def rows(self, results: Results, reduction: Reduction) -> Iterator[Row]:
        """Yield mean confidence, mean log p(x) of both sides, and the AUROC of the two."""
        failure = first_failure(self.measures, results)
        if failure is not None:
            yield from self.missing(failure)
            return
        distal = arrays_of(self.measure, results)
        real = arrays_of(self.real, results)["score"]
        confident = {"confident": float((distal["probability"] >= CONFIDENT).mean())}
        yield self._mean("distal_confidence", distal["confidence"], reduction, confident)
        yield self._mean("distal_log_density", distal["log_density"], reduction, {})
        yield self._mean("real_log_density", real, reduction, {})
        sides = (real, distal["log_density"])
        low, high = metrics.interval("auroc", *sides, level=reduction.level, seed=reduction.seed)
        yield Row(
            metric="auroc",
            value=metrics.auroc(*sides),
            low=low,
            high=high,
            interval=metrics.interval_method("auroc"),
            n=len(real),
            n_ood=len(sides[1]),
            settings=self._settings(),
        )

    def _settings(self) -> dict[str, Any]:
        return {**self.measure.settings(), "score": SCORE}

    def _mean(
        self, metric: str, values: Array, reduction: Reduction, details: Mapping[str, Any]
    ) -> Row:
        """Return a row of the mean, with Student's interval where the values are finite."""
        value, n = float(values.mean()), len(values)
        low = high = None
        if n > 1 and np.isfinite(values).all():
            quantile = float(stdtrit(n - 1, 0.5 + reduction.level / 2))
            half = quantile * float(values.std(ddof=1)) / math.sqrt(n)
            low, high = value - half, value + half
        return Row(
            metric=metric,
            value=value,
            low=low,
            high=high,
            interval=None if low is None else "student-t",
            n=n,
            settings=self._settings(),
            details=details,
        )
