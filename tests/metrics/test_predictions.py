"""Accuracy, NLL, Brier score and selective risk, against hand values and scikit-learn."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy.special import log_softmax
from sklearn.metrics import log_loss, mean_squared_error

from bench import metrics
from bench.errors import InputError


def predictions(n: int = 300, k: int = 5) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(0, 2, (n, k)), rng.integers(0, k, n)


def test_nll_and_brier_are_those_of_scikit_learn() -> None:
    logits, labels = predictions()
    probs = np.exp(log_softmax(logits, axis=1))
    assert metrics.nll(logits, labels) == pytest.approx(log_loss(labels, probs), abs=1e-12)
    brier = 5 * mean_squared_error(np.eye(5)[labels], probs)
    assert metrics.brier(probs, labels) == pytest.approx(brier, abs=1e-12)


def test_nll_is_not_clipped() -> None:
    assert metrics.nll([[0.0, 100.0]], [0]) == 100.0
    assert metrics.nll([[0.0, 1e4]], [0]) == 1e4
    assert metrics.nll([[-np.inf, 0.0]], [0]) == np.inf
    sure = metrics.nll([[-np.inf, 0.0]], [1])
    assert sure == 0.0
    assert not np.signbit(sure)


def test_float32_logits_are_counted_in_float64() -> None:
    # In float32 this confidence is exactly 1.
    confidence, _ = metrics.confidence_and_correct(torch.tensor([[20.0, 0.0]]), torch.tensor([0]))
    assert confidence.dtype == np.float64
    assert 1 - confidence[0] == pytest.approx(np.exp(-20), rel=1e-6)


def test_brier_runs_from_0_to_2_over_all_classes() -> None:
    assert metrics.brier([[1.0, 0.0]], [0]) == 0.0
    assert metrics.brier([[1.0, 0.0]], [1]) == 2.0
    assert metrics.brier([[0.7, 0.3]], [0]) == pytest.approx(0.18)  # the binary score is 0.09


def test_accuracy_confidence_and_correctness_agree() -> None:
    logits, labels = predictions()
    confidence, correct = metrics.confidence_and_correct(logits, labels)
    assert metrics.accuracy(logits, labels) == correct.mean() == (logits.argmax(1) == labels).mean()
    assert confidence == pytest.approx(np.exp(log_softmax(logits, axis=1)).max(1), abs=1e-14)


def test_of_equal_logits_the_first_class_counts() -> None:
    assert metrics.accuracy([[1.0, 1.0], [1.0, 1.0]], [0, 1]) == 0.5


def test_ties_are_counted_below_the_threshold() -> None:
    logits = [[3.0, 3.0, 0.0], [3.0, 2.99995, 0.0], [3.0, 2.9, -np.inf], [0.0, -np.inf, -np.inf]]
    assert metrics.ties(logits) == 2
    assert metrics.ties(logits, threshold=0.2) == 3
    with pytest.raises(InputError, match="threshold=-1"):
        metrics.ties(logits, threshold=-1)


def test_what_are_no_logits_or_labels_is_an_error() -> None:
    with pytest.raises(InputError, match="logits holds 1 NaN among 2"):
        metrics.nll([[np.nan, 0.0]], [0])
    with pytest.raises(InputError, match=r"logits has 1 rows with \+inf"):
        metrics.accuracy([[np.inf, 0.0]], [0])
    with pytest.raises(InputError, match="1 rows"):
        metrics.nll([[-np.inf, -np.inf]], [0])
    with pytest.raises(InputError, match=r"logits has shape \(2,\)"):
        metrics.nll([0.0, 1.0], [0])
    with pytest.raises(InputError, match="one class"):
        metrics.nll([[0.0]], [0])
    with pytest.raises(InputError, match="labels runs from 0 to 2; expected class numbers 0 to 1"):
        metrics.nll([[0.0, 1.0]] * 2, [0, 2])
    with pytest.raises(InputError, match="labels is float64"):
        metrics.brier([[0.5, 0.5]], [0.0])
    with pytest.raises(InputError, match=r"expected integers of shape \(1,\)"):
        metrics.accuracy([[0.5, 0.5]], [0, 1])


def test_aurc_by_hand() -> None:
    # Risks 0, 1/2, 1/3, 2/4.
    assert metrics.aurc([0.9, 0.8, 0.7, 0.6], [1, 0, 1, 0]) == pytest.approx(
        (1 / 2 + 1 / 3 + 1 / 2) / 4
    )
    assert metrics.aurc([0.9, 0.8], [1, 1]) == 0.0
    assert metrics.aurc([0.9, 0.8], [0, 0]) == 1.0


def test_tied_confidences_count_with_the_mean_over_their_orders() -> None:
    confidence, correct = np.array([0.9, 0.5, 0.5, 0.5, 0.5, 0.1]), np.array([1, 0, 1, 1, 0, 0])
    orders = list(itertools.permutations(range(1, 5)))
    each = [
        metrics.aurc(np.arange(6, 0, -1), correct[np.r_[0, order, 5]])
        for order in map(list, orders)
    ]
    assert max(each) - min(each) > 0.1
    assert metrics.aurc(confidence, correct) == pytest.approx(np.mean(each), abs=1e-14)
    for order in map(list, orders):
        turned = np.r_[0, order, 5]
        assert metrics.aurc(confidence[turned], correct[turned]) == pytest.approx(np.mean(each))


def test_the_excess_aurc_is_0_for_the_best_order_only() -> None:
    correct = np.repeat([1, 0], [7, 3])
    confidence = np.arange(10, 0, -1)
    assert metrics.e_aurc(confidence, correct) == pytest.approx(0.0, abs=1e-15)
    worst = metrics.e_aurc(-confidence, correct)
    oracle = sum((k - 7) / k for k in (8, 9, 10)) / 10
    assert worst == pytest.approx(metrics.aurc(-confidence, correct) - oracle)
    assert worst > 0.4


def test_confidence_of_any_scale_has_an_aurc() -> None:
    correct = [1, 0, 1, 0]
    assert metrics.aurc([5.0, 1.0, -np.inf, 3.0], correct) == metrics.aurc(
        [0.9, 0.3, 0, 0.6], correct
    )
    with pytest.raises(InputError, match="confidence holds 1 NaN"):
        metrics.aurc([np.nan, 0.5], [1, 0])


def test_aurc_keeps_its_digits_on_large_sets() -> None:
    rng = np.random.default_rng(0)
    correct = rng.random(200_000) < 0.9
    risks = np.cumsum(~correct) / np.arange(1, 200_001)
    assert metrics.aurc(-np.arange(200_000), correct) == pytest.approx(risks.mean(), rel=1e-11)
