"""Resamples as counts: keyed, shared, whole clusters, and worth the images they stand for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bench import metrics
from bench.errors import InputError
from bench.metrics.resampled import evaluator
from bench.metrics.resampling import chunk_rows, drawn
from bench.registry import METRICS


def counts(*args: Any, **options: Any) -> np.ndarray:
    return np.concatenate(list(metrics.bootstrap_counts(*args, **options)))


def test_counts_belong_to_seed_stream_and_size_and_to_no_chunk() -> None:
    whole = counts(30, 20, 5)
    assert (counts(30, 20, 5, rows=3) == whole).all()
    assert (counts(30, 7, 5) == whole[:7]).all()
    assert (counts(30, 20, 6) != whole).any()
    assert (counts(30, 20, 5, stream="ood") != whole).any()
    assert (whole.sum(axis=1) == 30).all()


def test_counts_are_those_of_drawing_with_replacement() -> None:
    drawn_often = counts(40, 4000, 0)
    assert drawn_often.mean(axis=0) == pytest.approx(np.ones(40), abs=0.08)
    # Multinomial: variance 1 - 1/n, covariance -1/n.
    covariance = np.cov(drawn_often.T)
    assert np.diag(covariance).mean() == pytest.approx(1 - 1 / 40, abs=0.02)
    assert covariance[0, 1:].mean() == pytest.approx(-1 / 40, abs=0.01)
    assert abs(np.corrcoef(drawn_often[:-1, 0], drawn_often[1:, 0])[0, 1]) < 0.06


def test_clusters_are_drawn_whole() -> None:
    clusters = np.array([7, 7, 7, -2, -2, 40])
    rows = counts(6, 200, 0, clusters)
    assert (rows[:, :3] == rows[:, :1]).all()
    assert (rows[:, 3] == rows[:, 4]).all()
    assert (rows[:, 0] + rows[:, 3] + rows[:, 5] == 3).all()
    assert len(np.unique(rows.sum(axis=1))) > 3


def test_memory_stays_bounded() -> None:
    for n in (10, 10_000, 10_000_000):
        assert chunk_rows(n) == 1 or chunk_rows(n) * n * 8 <= 4 * 2**20
    assert len(next(iter(metrics.bootstrap_counts(200_000, 1000, 0)))) == 2


def test_what_cannot_be_drawn_is_an_error() -> None:
    with pytest.raises(InputError, match="10 resamples of 0 images"):
        metrics.bootstrap_counts(0, 10, 0)
    with pytest.raises(InputError, match=r"clusters are int64 of shape \(2,\)"):
        metrics.bootstrap_counts(3, 10, 0, [1, 2])
    with pytest.raises(InputError, match="clusters are float64"):
        metrics.bootstrap_counts(2, 10, 0, [0.5, 1.0])


def confidence_arrays(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    return rng.integers(8, 41, 90) / 40, rng.random(90) < 0.7


def probability_arrays(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    return rng.dirichlet(np.ones(3), 90), rng.integers(0, 3, 90)


def logit_arrays(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    return rng.normal(0, 1, (90, 4)), rng.integers(0, 4, 90)


IMAGE_METRICS: list[tuple[str, Callable[[np.random.Generator], tuple[np.ndarray, ...]]]] = [
    *((name, confidence_arrays) for name in ("ece", "mce", "rmsce", "debiased_ece")),
    *((name, confidence_arrays) for name in ("aurc", "e_aurc", "adaptive_ece")),
    *((name, probability_arrays) for name in ("classwise_ece", "brier")),
    *((name, logit_arrays) for name in ("accuracy", "nll")),
]


@pytest.mark.parametrize(("name", "arrays_of"), IMAGE_METRICS)
@pytest.mark.parametrize("clustered", [False, True])
def test_values_from_counts_are_those_of_the_drawn_images(
    name: str, arrays_of: Callable[[np.random.Generator], tuple[np.ndarray, ...]], clustered: bool
) -> None:
    rng = np.random.default_rng(0)
    arrays = arrays_of(rng)
    rows = counts(90, 25, 3, rng.integers(0, 9, 90) if clustered else None)
    metric = METRICS[name]
    expected = [metric(*(a[drawn(row)] for a in arrays)) for row in rows]
    assert evaluator({name: metric}, *arrays)(rows)[name] == pytest.approx(expected, abs=1e-12)


def test_ranking_from_counts_is_that_of_the_drawn_images() -> None:
    rng = np.random.default_rng(0)
    sides = rng.integers(3, 15, 70) / 3, rng.integers(0, 12, 110) / 3
    rows = counts(70, 25, 3), counts(110, 25, 3, rng.integers(0, 9, 110), stream="ood")
    names = ("auroc", "fpr95_ood", "fpr95_id", "aupr_in", "aupr_out")
    values = evaluator({name: METRICS[name] for name in names}, *sides)(*rows)
    for name in names:
        expected = [
            METRICS[name](sides[0][drawn(a)], sides[1][drawn(b)])
            for a, b in zip(*rows, strict=True)
        ]
        assert values[name] == pytest.approx(expected, abs=1e-12)


def test_an_infinite_loss_counts_where_it_is_drawn() -> None:
    logits = np.array([[0.0, 1.0], [0.0, 1.0], [-np.inf, 1.0]])
    rows = np.array([[1.0, 2.0, 0.0], [1.0, 1.0, 1.0]])
    found = evaluator({"nll": metrics.nll}, logits, np.array([0, 1, 0]))(rows)["nll"]
    assert np.isfinite(found[0])
    assert found[1] == np.inf
