"""Calibration errors against values worked by hand: edges, ties and the traps of libraries."""

from __future__ import annotations

import numpy as np
import pytest

from bench import metrics
from bench.errors import InputError
from bench.metrics.bins import equal_width

CONFIDENCE_METRICS = ["ece", "mce", "rmsce", "debiased_ece", "adaptive_ece"]


def test_ece_mce_and_rmsce_by_hand() -> None:
    confidence, correct = [0.62, 0.64, 0.91, 0.93, 0.94], [1, 0, 1, 1, 0]
    gaps = abs((0.62 + 0.64) / 2 - 0.5), abs((0.91 + 0.93 + 0.94) / 3 - 2 / 3)
    assert metrics.ece(confidence, correct) == pytest.approx(0.4 * gaps[0] + 0.6 * gaps[1])
    assert metrics.mce(confidence, correct) == pytest.approx(max(gaps))
    assert metrics.rmsce(confidence, correct) == pytest.approx(
        np.sqrt(0.4 * gaps[0] ** 2 + 0.6 * gaps[1] ** 2)
    )


def test_confidence_one_is_in_the_last_bin() -> None:
    # torchmetrics opens a 21st bin: 0.515, and a maximum of 1.0.
    assert metrics.ece([0.97, 1.0], [1, 0]) == pytest.approx(0.485)
    assert metrics.mce([0.97, 1.0], [1, 0]) == pytest.approx(0.485)


def test_confidence_zero_is_in_the_first_bin() -> None:
    # Loops with `confidence > lower` drop it from the sum, not from N: 0.25.
    assert metrics.ece([0.0, 0.0, 1.0, 1.0], [1, 0, 1, 0]) == 0.5


@pytest.mark.parametrize("n_bins", [5, 10, 15, 20, 100])
def test_an_edge_belongs_to_the_bin_below(n_bins: int) -> None:
    edges = np.array([k / n_bins for k in range(n_bins + 1)])
    assert equal_width(edges, n_bins).tolist() == [0, *range(n_bins)]
    above = np.nextafter(edges[:-1], 1)
    assert equal_width(above, n_bins).tolist() == list(range(n_bins))


def test_edges_are_float64() -> None:
    assert metrics.ece([0.15, 0.12], [1, 0]) == pytest.approx(0.365)
    # The float32 next to 0.15 lies above it, in the next bin.
    assert metrics.ece(np.array([0.15, 0.12], np.float32), [1, 0]) == pytest.approx(0.485)


def test_equal_confidences_are_never_split() -> None:
    # Splitting them in order of appearance gives 0.28 here.
    correct = np.repeat([1, 0], [80, 20])
    assert metrics.adaptive_ece(np.full(100, 0.8), correct) == pytest.approx(0.0, abs=1e-12)


def test_adaptive_bins_hold_equal_counts() -> None:
    confidence = np.array([0.5, 0.6, 0.7, 0.8])
    gaps = abs(0.5 + 0.6 - 1), abs(0.7 + 0.8 - 2)
    assert metrics.adaptive_ece(confidence, [0, 1, 1, 1], n_bins=2) == pytest.approx(sum(gaps) / 4)


@pytest.mark.parametrize("name", CONFIDENCE_METRICS)
def test_the_order_of_images_does_not_matter(name: str) -> None:
    rng = np.random.default_rng(0)
    confidence = rng.integers(10, 21, 300) / 20
    correct = rng.random(300) < 0.6
    metric = getattr(metrics, name)
    shuffled = [rng.permutation(300) for _ in range(5)]
    assert [metric(confidence[p], correct[p]) for p in shuffled] == pytest.approx(
        [metric(confidence, correct)] * 5
    )


def test_no_image_is_left_out_of_the_last_bin() -> None:
    # Thirty images remain beyond a first bin of 100; only they are wrong.
    confidence = np.linspace(0.5, 0.9, 130)
    correct = np.ones(130)
    correct[100:] = 0
    whole = (1 - confidence[:65]).sum() + abs((confidence - correct)[65:].sum())
    assert metrics.adaptive_ece(confidence, correct, n_bins=2) == pytest.approx(whole / 130)
    assert metrics.adaptive_ece([0.6, 0.7, 0.8, 0.9, 1.0], [1] * 5) == pytest.approx(0.2)


def test_classwise_ece_by_hand() -> None:
    probs = np.array([[0.7, 0.3, 0.0], [0.72, 0.18, 0.1], [0.2, 0.4, 0.4]])
    labels = np.array([0, 1, 2])
    # Bins of 0.05: every probability but those of class 0 is alone in its bin.
    first = abs(0.7 - 1) + 0.72 + 0.2
    second = 0.3 + abs(0.18 - 1) + 0.4
    third = 0.0 + 0.1 + abs(0.4 - 1)
    assert metrics.classwise_ece(probs, labels) == pytest.approx((first + second + third) / 9)


def test_the_reliability_table_gives_back_the_ece() -> None:
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.5, 1, 400)
    correct = rng.random(400) < 0.7
    table = metrics.reliability_table(confidence, correct, n_bins=10)
    assert table.count.sum() == 400
    assert table.count[:5].tolist() == [0] * 5
    assert np.isnan(table.accuracy[:5]).all()
    for low, high, count, mean in zip(
        table.lower[5:], table.upper[5:], table.count[5:], table.confidence[5:], strict=True
    ):
        inside = (confidence > low) & (confidence <= high)
        assert inside.sum() == count
        assert confidence[inside].mean() == pytest.approx(mean)
    gap = np.abs(table.confidence - table.accuracy)[5:]
    ece = metrics.ece(confidence, correct, n_bins=10)
    assert (gap * table.count[5:]).sum() / 400 == pytest.approx(ece)


@pytest.mark.parametrize("name", CONFIDENCE_METRICS)
def test_what_is_no_confidence_is_an_error(name: str) -> None:
    metric = getattr(metrics, name)
    with pytest.raises(InputError, match="confidence holds 1 NaN among 2"):
        metric([0.5, np.nan], [1, 0])
    with pytest.raises(InputError, match="confidence is empty"):
        metric([], [])
    with pytest.raises(InputError, match=r"runs from 0\.5 to 97"):
        metric([0.5, 97.0], [1, 0])
    with pytest.raises(InputError, match="correct has 3 entries"):
        metric([0.5, 0.6], [1, 0, 1])
    with pytest.raises(InputError, match="other than 0 and 1"):
        metric([0.5, 0.6], [1, 7])
    with pytest.raises(InputError, match="n_bins=0"):
        metric([0.5, 0.6], [1, 0], n_bins=0)


def test_logits_are_no_probabilities() -> None:
    with pytest.raises(InputError, match="runs from -1 to 3"):
        metrics.classwise_ece([[3.0, -1.0]], [0])
    with pytest.raises(InputError, match=r"misses the sum 1 by 0\.3"):
        metrics.classwise_ece([[0.4, 0.3]], [0])


def test_rounding_of_float32_is_no_error() -> None:
    assert metrics.ece([np.nextafter(np.float32(1), np.float32(2))], [1]) == 0.0


def simulated(n: int, seed: int, excess: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    confidence = 0.3 + 0.7 * rng.beta(4, 1, n)
    return confidence, rng.random(n) < confidence - excess


def test_the_debiased_ece_is_nearer_to_the_truth() -> None:
    plain = np.mean([metrics.ece(*simulated(500, seed)) for seed in range(60)])
    debiased = np.mean([metrics.debiased_ece(*simulated(500, seed)) for seed in range(60)])
    assert plain > 0.03  # the truth is 0
    assert debiased < 0.7 * plain
    # Five points over-confident, and the truth is 0.05.
    shifted = [metrics.debiased_ece(c, y) for c, y in (simulated(500, k, 0.05) for k in range(60))]
    assert np.mean(shifted) == pytest.approx(0.05, abs=0.008)


def test_debiasing_takes_off_the_folded_normal_excess() -> None:
    # One bin, ten images, gap 0.05 and variance s^2 of their mean: against sampling.
    confidence = np.full(10, 0.65)
    correct = np.repeat([1, 0], [6, 4])
    sigma = np.sqrt(np.var(confidence - correct, ddof=1) / 10)
    draws = np.abs(0.05 + sigma * np.random.default_rng(0).standard_normal(400_000))
    expected = max(0.05 - (draws.mean() - 0.05), 0)
    assert metrics.debiased_ece(confidence, correct) == pytest.approx(expected, abs=1e-3)
    many = np.full(1000, 0.65)
    sigma = sigma * np.sqrt(9 / 999)
    draws = np.abs(0.05 + sigma * np.random.default_rng(0).standard_normal(400_000))
    expected = 0.05 - (draws.mean() - 0.05)
    assert metrics.debiased_ece(many, np.tile(correct, 100)) == pytest.approx(expected, abs=1e-4)


def test_the_expected_ece_of_calibrated_models() -> None:
    # One bin: E|mean of n centred coins| is sqrt(2 p q / (pi n)) for large n.
    confidence = np.full(2000, 0.82)
    expected = metrics.expected_calibrated_ece(confidence, n_bins=20, seed=0)
    assert expected.mean == pytest.approx(np.sqrt(2 * 0.82 * 0.18 / np.pi / 2000), rel=0.06)
    assert expected.low < 0.001 < expected.mean
    assert expected.high == pytest.approx(2.24 * np.sqrt(0.82 * 0.18 / 2000), rel=0.08)
    assert expected == metrics.expected_calibrated_ece(confidence, n_bins=20, seed=0)
    assert expected != metrics.expected_calibrated_ece(confidence, n_bins=20, seed=1)


def test_calibrated_models_fall_into_their_range() -> None:
    inside = 0
    for seed in range(40):
        confidence, correct = simulated(300, seed)
        expected = metrics.expected_calibrated_ece(confidence, seed=seed, draws=200)
        inside += expected.low <= metrics.ece(confidence, correct) <= expected.high
    assert inside >= 34
