"""Measure and task: robustness curves by distance, as the JEM paper's attack draws them.

JEM (Grathwohl et al. 2019, arXiv 1912.03263), section 5.3, Figure 5 and Appendix G, and the
authors' attack script: PGD looks for the nearest image that one stochastic evaluation gets wrong,
and a curve is the share of images that are farther than eps. `docs/paper-protocol.md` lists
what is corrected here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch

from bench.attacking.inputs import plan as plan_attack
from bench.attacking.judging import SCORE, SELECT
from bench.attacking.sweeping import Sweep
from bench.attacking.verifying import distances
from bench.batching import in_parts
from bench.context import Context
from bench.errors import Unsupported
from bench.models import LoadedModel
from bench.preserving import preserved
from bench.registry import ATTACKS
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
from bench.tasks.draws import draw_classes, mean_interval
from bench.tasks.logits import probe, require_logits
from bench.tasks.outcomes import median_interval
from bench.types import Array, Norm


@dataclass(frozen=True, kw_only=True)
class Nearest:
    """The nearest image that an attack finds for each image, and its classes in fresh draws.

    The search decides by its own evaluations. What it finds is then shown to the model in draws
    that select, and in others that score.

    Attributes:
        data: The images.
        attack: Name in the registry; it must work without a budget.
        options: Of the attack.
        selection_draws: Draws that tell whether the clean image is the worse one for the model.
        scoring_draws: Draws that score.
        images_per_shard: Size of a shard.
    """

    data: DataRef
    attack: str
    options: Mapping[str, Any] = field(default_factory=dict)
    selection_draws: int = 10
    scoring_draws: int = 20
    images_per_shard: int = 50

    @property
    def name(self) -> str:
        """The noise is the attack's and the data set's."""
        return f"nearest/{self.attack}/{self.data.title}"

    @property
    def uses_model(self) -> str:
        """The model with its refinement."""
        return "full"

    def settings(self) -> Mapping[str, Any]:
        """Return attack, options and draws."""
        return {
            "attack": self.attack,
            "options": dict(self.options),
            "selection_draws": self.selection_draws,
            "scoring_draws": self.scoring_draws,
        }

    def code(self) -> Sequence[Any]:
        """Return what determines the numbers."""
        return [Nearest, ATTACKS[self.attack]]

    def __call__(self, model: LoadedModel | None, batch: Batch, context: Context) -> Arrays:
        """Return one row an image.

        ``label`` (B,), ``x_adv`` (B, 1, C, H, W), the clean image where nothing was found, ``l0 l2
        linf`` (B, 1), ``queries`` (B,), and classes in selection and scoring draws: ``selected``
        (B, 1, S), ``clean_selected`` (B, S), ``drawn`` (B, 1, R), ``clean_drawn`` (B, R).
        """
        assert model is not None
        if batch.y is None:
            raise Unsupported(f"data set '{self.data.spec}' has no labels")
        require_logits(model.module, model.name)
        probe(model.module, batch, context)
        x_adv, queries = self._search(model.module, batch, context)
        far = distances(batch.x, x_adv)
        arrays = {
            "label": batch.y.cpu().numpy(),
            "x_adv": x_adv[:, None].cpu().numpy(),
            "queries": queries.cpu().numpy(),
            **{n.value: far[n][:, None].numpy() for n in Norm},
        }
        for name, branch, draws in self.draws:
            clean, _ = draw_classes(model.module, batch.x, draws, context, branch)
            found, _ = draw_classes(model.module, x_adv, draws, context, branch)
            arrays |= {f"clean_{name}": clean, name: found[:, None]}
        return arrays

    @property
    def draws(self) -> tuple[tuple[str, str, int], ...]:
        """Name of the array, branch of the noise, and number of the draws of both kinds."""
        return ("selected", SELECT, self.selection_draws), ("drawn", SCORE, self.scoring_draws)

    def _search(
        self, module: torch.nn.Module, batch: Batch, context: Context
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the nearest images, and the passes spent on each; no image is left out."""
        work = plan_attack(self.attack, None, dict(self.options))

        def some(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            local = replace(context, noise=context.noise.select(rows))
            assert batch.y is not None
            sweep = Sweep(work, module, batch.x[rows], batch.y[rows], local)
            return sweep.at(0, torch.arange(len(rows), device=rows.device)), sweep.passes

        with preserved(module):
            parts = in_parts(len(batch.x), context.micro_batch, some, batch.x.device)
        points, passes = zip(*parts, strict=True)
        return torch.cat(points), torch.cat(passes)


@dataclass(frozen=True)
class Found:
    """Which answers count at a distance.

    Attributes:
        arrays: Of a `Nearest` measure.
        norm: Of the distance.
    """

    arrays: Arrays
    norm: Norm

    @property
    def any(self) -> Array:
        """Whether the search found an image other than the clean one, ``(N,)``."""
        return np.asarray(self.arrays["l0"][:, 0] > 0)

    @property
    def _distance(self) -> Array:
        return np.asarray(self.arrays[self.norm.value][:, 0])

    def _right(self, name: str) -> Array:
        """Return which draws are right, ``(N, R)``."""
        classes = self.arrays[name]
        classes = classes if classes.ndim == 2 else classes[:, 0]
        return np.asarray(classes == self.arrays["label"][:, None])

    def fresh(self, eps: float) -> Array:
        """Return which scoring draws are right, ``(N, R)``, of what was found within ``eps``.

        Where nothing was, or where the clean image is the worse one on the selection draws, the
        draws of the clean image count.
        """
        worse = self._right("selected").sum(axis=1) <= self._right("clean_selected").sum(axis=1)
        use = self.any & (self._distance <= eps) & worse
        return np.where(use[:, None], self._right("drawn"), self._right("clean_drawn"))

    def one_draw(self, eps: float) -> Array:
        """Return which images count as right, ``(N, 1)``, if the search is believed.

        As in the authors' script: right in one draw, and nothing found within ``eps``.
        """
        found = self.any & (self._distance <= eps)
        return self._right("clean_drawn")[:, :1] & ~found[:, None]

    def confirmed(self) -> Array:
        """Return the distance of each image, ``(N,)``: at least half of its scoring draws wrong.

        0 where the clean image is wrong as often, infinite where what was found is not.
        """
        wrong = self.any & (self._right("drawn").mean(axis=1) <= 0.5)
        distance = np.where(wrong, self._distance, np.inf)
        return np.where(self._right("clean_drawn").mean(axis=1) <= 0.5, 0.0, distance)


CURVES = {"robust_accuracy": Found.fresh, "one_draw_accuracy": Found.one_draw}


@dataclass(frozen=True)
class Curve:
    """Accuracy at every distance of a grid, and the median distance.

    Attributes:
        norm: Of the attack.
        measure: What is measured.
        grid: Distances, increasing, in units of the [0, 1] pixel range.
        note: Under the rows.
        refine_steps: N of JEM-N.
    """

    norm: Norm
    measure: Nearest
    grid: tuple[float, ...]
    note: str
    refine_steps: int = 0

    needs_model: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """E.g. ``robustness/linf``."""
        return f"robustness/{self.norm}"

    @property
    def measures(self) -> Sequence[Measure]:
        """The one."""
        return (self.measure,)

    def _settings(self, eps: float | None) -> dict[str, Any]:
        return {
            "attack": self.measure.attack,
            "norm": self.norm.value,
            **({} if eps is None else {"eps": eps}),
            **self.measure.options,
            "selection_draws": self.measure.selection_draws,
            "scoring_draws": self.measure.scoring_draws,
            "refine_steps": self.refine_steps,
        }

    def missing(self, failure: Failure) -> Iterator[Row]:
        """Yield all rows with the reason in place of the number."""
        places = [(m, eps) for eps in (0.0, *self.grid) for m in CURVES]
        for metric, eps in (*places, ("median_distance", None)):
            yield Row(
                metric=metric,
                status=failure.status,
                note=failure.reason,
                settings=self._settings(eps),
            )

    def rows(self, results: Results, reduction: Reduction) -> Iterator[Row]:
        """Yield both curves, then the median distance; eps 0 is the clean accuracy."""
        failure = first_failure(self.measures, results)
        if failure is not None:
            yield from self.missing(failure)
            return
        found = Found(arrays_of(self.measure, results), self.norm)
        cost = {
            "mean_queries": float(found.arrays["queries"].mean()),
            "found": int(found.any.sum()),
        }
        for eps in (0.0, *self.grid):
            for metric, curve in CURVES.items():
                right = curve(found, eps)
                low, high, method = mean_interval(right, reduction)
                yield Row(
                    metric=metric,
                    value=float(right.mean()),
                    low=low,
                    high=high,
                    interval=method,
                    n=len(right),
                    settings=self._settings(eps),
                    details={"draws": right.shape[1], **(cost if eps else {})},
                    note=self.note if eps else None,
                )
        yield self._median(found, reduction)

    def _median(self, found: Found, reduction: Reduction) -> Row:
        """Return the median of the distances that fresh draws confirm."""
        values = found.confirmed()
        ends = median_interval(values, reduction.level)
        median, low, high = (value if np.isfinite(value) else None for value in ends)
        unknown = "fresh draws confirm no adversarial image for half of the images"
        return Row(
            metric="median_distance",
            value=median,
            low=low,
            high=high,
            interval="order-statistics",
            n=len(values),
            settings=self._settings(None),
            details={"confirmed": int(np.isfinite(values).sum())},
            note=unknown if median is None else None,
        )
