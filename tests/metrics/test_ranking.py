"""Ranking metrics against scikit-learn, brute force and values worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.metrics import average_precision_score, roc_auc_score

from bench import metrics
from bench.errors import InputError
from bench.types import Array

Pair = tuple[Array, Array]


def tied_pairs(count: int) -> list[Pair]:
    """Small pairs of sides on a coarse grid, so that most scores are tied."""
    rng = np.random.default_rng(0)
    pairs = []
    for _ in range(count):
        m, n = rng.integers(1, 80, 2)
        grid = rng.integers(2, 40)
        pairs.append((rng.integers(0, grid, m) / 7 + 0.3, rng.integers(0, grid, n) / 7))
    return pairs


def brute_fpr(positives: Array, negatives: Array, tpr: float) -> float:
    """Higher = more positive: the first threshold that takes ``tpr`` of the positives."""
    for threshold in sorted(set(positives) | set(negatives), reverse=True):
        if np.mean(positives >= threshold) >= tpr - 1e-12:
            return float(np.mean(negatives >= threshold))
    raise AssertionError("the lowest threshold takes all")


def test_auroc_and_average_precision_are_those_of_scikit_learn() -> None:
    for inside, outside in tied_pairs(200):
        is_id = np.r_[np.ones(len(inside)), np.zeros(len(outside))]
        score = np.r_[inside, outside]
        assert metrics.auroc(inside, outside) == pytest.approx(
            roc_auc_score(is_id, score), abs=1e-12
        )
        assert metrics.average_precision(inside, outside, "id") == pytest.approx(
            average_precision_score(is_id, score), abs=1e-12
        )
        assert metrics.average_precision(inside, outside, "ood") == pytest.approx(
            average_precision_score(1 - is_id, -score), abs=1e-12
        )


@pytest.mark.parametrize("tpr", [0.5, 0.8, 0.95, 1.0])
def test_fpr_is_that_of_trying_every_threshold(tpr: float) -> None:
    for inside, outside in tied_pairs(60):
        assert metrics.fpr_at_tpr(inside, outside, tpr, "ood") == brute_fpr(-outside, -inside, tpr)
        assert metrics.fpr_at_tpr(inside, outside, tpr, "id") == brute_fpr(inside, outside, tpr)


def test_both_conventions_differ_and_are_labelled() -> None:
    # Twenty a side. 19 of 20 OOD need the threshold 18: ID scores 10..18 are flagged.
    inside, outside = np.arange(10, 30), np.arange(20)
    assert metrics.fpr95_ood(inside, outside) == 9 / 20
    # 19 of 20 ID need the threshold 11: OOD scores 11..19 are kept.
    assert metrics.fpr95_id(inside, outside) == 9 / 20
    # With two outliers, 21 of 22 ID need the threshold -1: all OOD are kept.
    inside = np.r_[inside, -1, -2]
    assert metrics.fpr95_ood(inside, outside) == 11 / 22
    assert metrics.fpr95_id(inside, outside) == 1.0


def test_scores_that_differ_by_an_offset_keep_their_order() -> None:
    # torchmetrics squashes these by a sigmoid and answers 0.5.
    inside = np.float32(98) + np.array([0.1, 0.5], np.float32)
    outside = np.float32(97) + np.array([0.2, 0.4], np.float32)
    assert metrics.auroc(inside, outside) == 1.0
    rng = np.random.default_rng(0)
    a, b = rng.normal(1, 1, 400), rng.normal(0, 1, 300)
    for offset in (0.0, 20.0, 150.0, -5000.0):
        assert metrics.auroc(a + offset, b + offset) == metrics.auroc(a, b)


def test_the_false_positive_rate_sees_collinear_points() -> None:
    # scikit-learn's roc_curve drops them, and its first TPR >= 0.95 is 1.00.
    scores = np.repeat(np.arange(100), 10)
    assert metrics.fpr95_ood(scores, scores) == 0.95
    assert metrics.fpr95_id(scores, scores) == 0.95


def test_average_precision_moves_with_the_base_rate_and_auroc_does_not() -> None:
    inside, outside = np.array([1.0, 3.0, 4.0]), np.array([0.0, 2.0])
    tiled = np.tile(outside, 10)
    assert metrics.auroc(inside, outside) == metrics.auroc(inside, tiled) == 5 / 6
    assert metrics.aupr_in(inside, outside) == pytest.approx((1 + 1 + 3 / 4) / 3)
    assert metrics.aupr_in(inside, tiled) == pytest.approx((1 + 1 + 3 / 13) / 3)


def test_constant_scores_know_nothing() -> None:
    inside, outside = np.ones(5), np.ones(7)
    assert metrics.auroc(inside, outside) == 0.5
    assert metrics.fpr95_ood(inside, outside) == metrics.fpr95_id(inside, outside) == 1.0
    assert metrics.aupr_in(inside, outside) == 5 / 12


def test_perfect_separation() -> None:
    inside, outside = np.array([2.0, 3.0]), np.array([0.0, 1.0, 1.0])
    assert metrics.auroc(inside, outside) == metrics.aupr_in(inside, outside) == 1.0
    assert metrics.aupr_out(inside, outside) == 1.0
    assert metrics.fpr95_ood(inside, outside) == metrics.fpr95_id(inside, outside) == 0.0


def test_infinities_are_ordered() -> None:
    inf = np.inf
    assert metrics.auroc([inf, 0.0], [-inf, 0.0]) == (1 + 1 + 1 + 0.5) / 4
    assert metrics.auroc([inf], [inf]) == 0.5
    assert metrics.fpr95_ood([inf, 1.0], [-inf, 0.0]) == 0.0


def test_zero_and_minus_zero_are_equal() -> None:
    assert metrics.auroc([0.0], [-0.0]) == metrics.auroc([-0.0], [0.0]) == 0.5


@pytest.mark.parametrize("name", ["auroc", "fpr95_ood", "fpr95_id", "aupr_in", "aupr_out"])
def test_nan_and_nothing_are_errors(name: str) -> None:
    metric = getattr(metrics, name)
    with pytest.raises(InputError, match=r"id_scores holds 2 NaN among 3"):
        metric([np.nan, 1.0, np.nan], [0.0])
    with pytest.raises(InputError, match=r"ood_scores is empty"):
        metric([1.0], [])
    with pytest.raises(InputError, match=r"id_scores has shape \(2, 1\)"):
        metric([[1.0], [2.0]], [0.0])
    with pytest.raises(InputError, match="dtype"):
        metric(["a"], [0.0])


def test_options_out_of_range_are_errors() -> None:
    with pytest.raises(InputError, match="tpr=0"):
        metrics.fpr_at_tpr([1.0], [0.0], tpr=0)
    with pytest.raises(InputError, match="'both' names no side"):
        metrics.average_precision([1.0], [0.0], positive="both")  # type: ignore[arg-type]


def test_tensors_count_as_arrays() -> None:
    inside = torch.tensor([0.5, 2.0, 1.0], dtype=torch.bfloat16, requires_grad=True)
    outside = torch.tensor([1, 0])
    assert metrics.auroc(inside, outside) == (1 + 2 + 1.5) / 6


def test_large_sides_stay_integers() -> None:
    n = 300_001
    inside, outside = np.arange(n) * 2.0, np.arange(n) * 2.0
    inside[0] = 1.0  # loses its tie with the one at 0 to a win: half a pair in n * n
    assert metrics.auroc(inside, outside) == (n * n + 1) / (2 * n * n)


values = hnp.arrays(
    np.float64, st.integers(1, 30), elements=st.integers(-6, 6).map(lambda k: k / 2)
)


@settings(max_examples=60, deadline=None)
@given(values, values)
def test_turning_a_score_round_turns_the_auroc_round(inside: Array, outside: Array) -> None:
    total = metrics.auroc(inside, outside) + metrics.auroc(-inside, -outside)
    assert total == pytest.approx(1.0, abs=1e-15)
    assert metrics.fpr95_ood(inside, outside) == metrics.fpr95_id(-outside, -inside)
    assert metrics.aupr_in(inside, outside) == pytest.approx(metrics.aupr_out(-outside, -inside))


@settings(max_examples=60, deadline=None)
@given(values, values, st.integers(-1000, 1000))
def test_only_order_matters(inside: Array, outside: Array, shift: int) -> None:
    for name in ("auroc", "fpr95_ood", "fpr95_id", "aupr_in", "aupr_out"):
        metric = getattr(metrics, name)
        assert metric(inside, outside) == metric(inside + shift, outside + shift)
        assert metric(inside, outside) == metric(np.exp(inside), np.exp(outside))
