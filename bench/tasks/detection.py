"""Task: how well scores tell an out-of-distribution set from the in-distribution test images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bench import metrics
from bench.errors import InputError
from bench.metrics.proportion import unvaried
from bench.metrics.resampled import evaluator
from bench.metrics.resampling import chunk_rows
from bench.registry import METRICS
from bench.tasks.base import (
    DataRef,
    Failure,
    Measure,
    Reduction,
    Results,
    Row,
    arrays_of,
    first_failure,
)
from bench.tasks.scoring import Scored
from bench.types import Array

SEPARATED = 0.95  # an AUROC from which a trivial score counts as separating a set


@dataclass(frozen=True)
class OODSet:
    """An out-of-distribution set, and what a reader must know of it."""

    data: DataRef
    group: str
    note: str = ""
    clusters: Array | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Detection:
    """Some scores on one out-of-distribution set.

    Attributes:
        inside: The in-distribution images.
        outside: The set.
        scores: Names of scores: all of them trivial, or none.
        trivial: Names of all trivial scores: every row says which of them separate the set.
        metric_names: Names of metrics of (id_scores, ood_scores).
        input_noise: The protocol's, x units.
        repeats: Draws of each random score. Its metrics are the means over them.
        steps: Of scores that have steps as an option; ``None``: their own defaults.
        train: The training images, for scores that are fitted.
    """

    inside: DataRef
    outside: OODSet
    scores: tuple[str, ...]
    trivial: tuple[str, ...]
    metric_names: tuple[str, ...]
    input_noise: float = 0.0
    repeats: int = 5
    steps: int | None = None
    train: DataRef | None = None

    @property
    def needs_model(self) -> bool:
        """Trivial scores do not."""
        return not set(self.scores) <= set(self.trivial)

    @property
    def name(self) -> str:
        """E.g. ``ood/interp``."""
        return f"ood/{self.outside.data.title}"

    @property
    def measures(self) -> Sequence[Measure]:
        """Each score on both sides."""
        scores = dict.fromkeys([*self.scores, *self.trivial])
        return [self._scored(s, d) for s in scores for d in (self.inside, self.outside.data)]

    def _scored(self, score: str, data: DataRef) -> Scored:
        return Scored(
            data=data,
            score=score,
            input_noise=self.input_noise,
            repeats=self.repeats,
            steps=self.steps,
            train=self.train,
        )

    def settings(self, score: str) -> dict[str, Any]:
        """Return what a row of this score says of itself."""
        settings: dict[str, Any] = {
            "ood_dataset": self.outside.data.title,
            "ood_group": self.outside.group,
            **self._scored(score, self.inside).settings(),
        }
        if score in self.trivial:
            settings["trivial"] = True
        if not self.input_noise:
            del settings["input_noise"]
        return settings

    def missing(self, failure: Failure) -> Iterator[Row]:
        """Yield a row for each score and metric, with the reason in place of the number."""
        for score in self.scores:
            yield from self._missing(score, failure)

    def _missing(self, score: str, failure: Failure) -> Iterator[Row]:
        for name in self.metric_names:
            yield Row(
                metric=name,
                status=failure.status,
                note=failure.reason,
                settings=self.settings(score),
            )

    def rows(self, results: Results, reduction: Reduction) -> Iterator[Row]:
        """Yield a row for each score and metric."""
        separation = self._separation(results)
        for score in self.scores:
            sides = self.sides(score, results)
            if isinstance(sides, Failure):
                yield from self._missing(score, sides)
                continue
            details = {**separation, "tied": tied_share(*sides)}
            yield from self._rows(score, sides, details, reduction)

    def _rows(
        self,
        score: str,
        sides: tuple[Array, Array],
        details: Mapping[str, Any],
        reduction: Reduction,
    ) -> Iterator[Row]:
        groups = self.outside.clusters
        clusters = None if groups is None else (None, groups)
        draws = repeats_of(*sides)
        intervals = [
            metrics.joint_intervals(
                self.metric_names,
                *draw,
                level=reduction.level,
                seed=reduction.seed,
                clusters=clusters,
                resamples=reduction.resamples,
            )
            for draw in draws
        ]
        for name in self.metric_names:
            values = [float(METRICS[name](*draw)) for draw in draws]
            # The interval of one draw, on average: that of the mean is no wider.
            low, high = np.mean([interval[name] for interval in intervals], axis=0).tolist()
            yield Row(
                metric=name,
                value=float(np.mean(values)),
                low=low,
                high=high,
                interval=metrics.interval_method(name, clusters),
                n=len(sides[0]),
                n_ood=len(sides[1]),
                settings=self.settings(score),
                details={**details, **monte_carlo_error(values)},
                note=self.outside.note or None,
            )

    def sides(self, score: str, results: Results) -> tuple[Array, Array] | Failure:
        """Return the values of a score on both sides, or why there are none."""
        pair = [self._scored(score, d) for d in (self.inside, self.outside.data)]
        failure = first_failure(pair, results)
        if failure is not None:
            return failure
        inside, outside = (arrays_of(measure, results)["score"] for measure in pair)
        return inside, outside

    def _separation(self, results: Results) -> dict[str, Any]:
        """Return the AUROC of each trivial score that tells this set apart.

        Either direction counts: a score below 0.05 separates as well as one above 0.95.
        """
        found = {}
        for score in self.trivial:
            sides = self.sides(score, results)
            if not isinstance(sides, Failure):
                value = float(metrics.auroc(*sides))
                if max(value, 1.0 - value) >= SEPARATED:
                    found[score] = value
        return {"separated_by": found} if found else {}


def repeats_of(inside: Array, outside: Array) -> list[tuple[Array, Array]]:
    """Return both sides in each draw of a random score; of any other score, once."""
    if inside.ndim == 1:
        return [(inside, outside)]
    return list(zip(inside.T, outside.T, strict=True))


def monte_carlo_error(values: Sequence[float]) -> dict[str, float]:
    """Return the standard error of the mean over draws, where there is more than one."""
    count = len(values)
    return {"mc_error": float(np.std(values, ddof=1) / np.sqrt(count))} if count > 1 else {}


def tied_share(inside: Array, outside: Array) -> float:
    """Return the share of values that occur more than once in a draw, the mean over the draws."""
    shares = []
    for draw in repeats_of(inside, outside):
        values = np.concatenate(draw)
        _, counts = np.unique(values, return_counts=True)
        shares.append(counts[counts > 1].sum() / len(values))
    return float(np.mean(shares))


@dataclass(frozen=True)
class Headline:
    """Mean AUROC of each score over the near sets: the only average of an OOD table.

    The other groups hold sets that statistics of the pixels separate; averaging them in would
    reward a model for seeing what needs no model (DESIGN: trivial scores).
    """

    parts: tuple[Detection, ...]
    group: str = "near"

    def __post_init__(self) -> None:
        if not self.parts:
            raise InputError("a headline needs at least one out-of-distribution set")

    @property
    def name(self) -> str:
        """E.g. ``ood/near``."""
        return f"ood/{self.group}"

    @property
    def needs_model(self) -> bool:
        """As the parts."""
        return self.parts[0].needs_model

    @property
    def measures(self) -> Sequence[Measure]:
        """Those of the parts."""
        return [measure for part in self.parts for measure in part.measures]

    def settings(self, score: str) -> dict[str, Any]:
        """Return what a row of this score says of itself."""
        names = [part.outside.data.title for part in self.parts]
        own = {"ood_dataset": "+".join(names), "ood_group": self.group, "mean_of": names}
        return {**self.parts[0].settings(score), **own}

    def missing(self, failure: Failure) -> Iterator[Row]:
        """Yield a row for each score, with the reason in place of the number."""
        for score in self.parts[0].scores:
            yield self._missing(score, failure)

    def _missing(self, score: str, failure: Failure) -> Row:
        return Row(
            metric="auroc",
            status=failure.status,
            note=failure.reason,
            settings=self.settings(score),
        )

    def rows(self, results: Results, reduction: Reduction) -> Iterator[Row]:
        """Yield the mean AUROC of each score, with a bootstrap that resamples all sides."""
        for score in self.parts[0].scores:
            pairs = [part.sides(score, results) for part in self.parts]
            failures = [pair for pair in pairs if isinstance(pair, Failure)]
            if failures:
                yield self._missing(score, failures[0])
            else:
                known = [pair for pair in pairs if not isinstance(pair, Failure)]
                yield self._row(score, known, reduction)

    def _row(self, score: str, pairs: Sequence[tuple[Array, Array]], reduction: Reduction) -> Row:
        # The in-distribution images are the same in every part and in every draw of a random
        # score, and so are their resamples: equal seed and size give equal counts.
        drawn = [repeats_of(*pair) for pair in pairs]
        draws = np.mean(
            [
                _resampled_auroc(*draw, part.outside.clusters, part.outside.data.title, reduction)
                for part, draws_of_part in zip(self.parts, drawn, strict=True)
                for draw in draws_of_part
            ],
            axis=0,
        )
        values = np.mean([[metrics.auroc(*draw) for draw in part] for part in drawn], axis=0)
        value = float(values.mean())
        tail = (1.0 - reduction.level) / 2.0
        low, high = (float(q) for q in np.quantile(draws, [tail, 1.0 - tail]))
        if low == high:  # no resample moves it: what the number of images allows
            fewest = min(len(side) for pair in pairs for side in pair)
            low, high = unvaried(value, fewest, (0.0, 1.0), reduction.level)
        clustered = any(part.outside.clusters is not None for part in self.parts)
        return Row(
            metric="auroc",
            value=value,
            low=min(low, value),
            high=max(high, value),
            interval="cluster-bootstrap" if clustered else "bootstrap",
            n=len(pairs[0][0]),
            n_ood=sum(len(outside) for _, outside in pairs),
            settings=self.settings(score),
            details=monte_carlo_error(values.tolist()),
        )


def _resampled_auroc(
    inside: Array, outside: Array, clusters: Array | None, stream: str, reduction: Reduction
) -> Array:
    """Return the AUROC on each resample ``(R,)``; the stream names the outer side's resamples."""
    evaluate = evaluator({"auroc": METRICS["auroc"]}, inside, outside)
    rows = chunk_rows(len(inside) + len(outside))
    of_inside = metrics.bootstrap_counts(
        len(inside), reduction.resamples, reduction.seed, rows=rows
    )
    of_outside = metrics.bootstrap_counts(
        len(outside), reduction.resamples, reduction.seed, clusters, stream=stream, rows=rows
    )
    chunks = zip(of_inside, of_outside, strict=True)
    return np.concatenate([evaluate(*counts)["auroc"] for counts in chunks])
