"""Intervals: closed forms against brute force, the ends of the scale, and coverage."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest

from bench import metrics
from bench.errors import InputError, UnknownName
from bench.registry import METRICS
from bench.types import Array

RANKING = ("auroc", "fpr95_ood", "fpr95_id", "aupr_in", "aupr_out")
CONFIDENCE = ("ece", "mce", "rmsce", "debiased_ece", "adaptive_ece", "aurc", "e_aurc")


def sides(m: int, n: int, shift: float = 1.0, seed: int = 0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    return rng.normal(shift, 1, m), rng.normal(0, 1, n)


def test_wilson_is_that_of_scipy() -> None:
    for successes, trials in ((0, 10), (3, 10), (10, 10), (480, 500), (1, 1)):
        for level in (0.9, 0.95, 0.99):
            exact = binomtest(successes, trials).proportion_ci(level, method="wilson")
            found = metrics.wilson(successes, trials, level)
            assert found == pytest.approx((exact.low, exact.high), abs=1e-12)
    assert metrics.wilson(0, 10)[0] == 0.0
    assert metrics.wilson(10, 10)[1] == 1.0
    with pytest.raises(InputError, match="11 successes of 10 trials"):
        metrics.wilson(11, 10)


def test_the_interval_of_an_accuracy_is_wilsons() -> None:
    logits = np.eye(2)[[0] * 8 + [1] * 2]
    expected = binomtest(8, 10).proportion_ci(method="wilson")
    found = metrics.interval("accuracy", logits, np.zeros(10, int))
    assert found == pytest.approx((expected.low, expected.high))


def test_delong_is_the_variance_of_the_placements() -> None:
    rng = np.random.default_rng(0)
    for m, n in ((7, 5), (30, 40), (2, 2)):
        inside, outside = rng.integers(0, 9, m) / 2.0, rng.integers(0, 7, n) / 2.0
        wins = (inside[:, None] > outside) + (inside[:, None] == outside) / 2
        expected = wins.mean(1).var(ddof=1) / m + wins.mean(0).var(ddof=1) / n
        assert metrics.delong_variance(inside, outside) == pytest.approx(expected, abs=1e-15)


def test_the_logit_interval_by_hand() -> None:
    inside, outside = sides(60, 50)
    area = metrics.auroc(inside, outside)
    half = 1.959963984540054 * math.sqrt(metrics.delong_variance(inside, outside))
    half /= area * (1 - area)
    low, high = metrics.interval("auroc", inside, outside)
    assert math.log(low / (1 - low)) == pytest.approx(math.log(area / (1 - area)) - half)
    assert math.log(high / (1 - high)) == pytest.approx(math.log(area / (1 - area)) + half)


def test_perfect_separation_has_a_one_sided_bound() -> None:
    low, high = metrics.interval("auroc", np.arange(300) + 1000.0, np.arange(200))
    assert high == 1.0
    assert low == pytest.approx(0.05 ** (1 / 200))  # 200 disjoint pairs in order; 1 - 3 / 200
    low, high = metrics.interval("auroc", np.arange(200), np.arange(300) + 1000.0)
    assert low == 0.0
    assert high == pytest.approx(1 - 0.05 ** (1 / 200))
    low, high = metrics.interval("auroc", np.ones(200), np.ones(300))
    assert (low, high) == pytest.approx((0.5 * 0.05 ** (1 / 200), 1 - 0.5 * 0.05 ** (1 / 200)))


def test_one_image_shows_no_spread() -> None:
    assert metrics.interval("auroc", [1.0], [0.0, 0.5, 2.0]) == (0.0, 1.0)
    assert metrics.interval("auroc", [3.0], [0.0]) == pytest.approx((0.05, 1.0))


@pytest.mark.parametrize("name", RANKING[1:])
def test_a_statistic_that_never_varies_is_not_certain(name: str) -> None:
    inside, outside = np.arange(300) + 1000.0, np.arange(200)
    low, high = metrics.interval(name, inside, outside, resamples=100)
    width = 1 - 0.05 ** (1 / 200)
    assert high - low == pytest.approx(width)
    assert low <= METRICS[name](inside, outside) <= high


def test_a_faultless_classifier_is_not_certain() -> None:
    logits, labels = np.tile([100.0, -np.inf], (50, 1)), np.zeros(50, int)
    assert metrics.interval("nll", logits, labels, resamples=100) == (0.0, math.inf)
    found = metrics.interval("brier", np.tile([1.0, 0.0], (50, 1)), labels, resamples=100)
    assert found == pytest.approx((0.0, 2 * (1 - 0.05 ** (1 / 50))))
    assert metrics.interval("aurc", np.ones(50), np.ones(50), resamples=100)[1] < 0.06
    assert metrics.interval("ece", np.ones(50), np.ones(50), resamples=100)[1] < 0.06


def test_intervals_hold_the_estimate_within_the_bounds() -> None:
    rng = np.random.default_rng(0)
    for n in (1, 2, 3, 10, 50):
        pair = rng.integers(0, 9, n) / 1.0, rng.integers(0, 7, 2 * n) / 1.0
        confidence, correct = rng.uniform(0.5, 1, n), rng.random(n) < 0.7
        probs, labels = rng.dirichlet(np.ones(3), n), rng.integers(0, 3, n)
        for names, arrays in (
            (RANKING, pair),
            (CONFIDENCE, (confidence, correct)),
            (("brier", "classwise_ece"), (probs, labels)),
            (("nll", "accuracy"), (np.log(probs), labels)),
        ):
            for name, (low, high) in metrics.joint_intervals(names, *arrays, resamples=60).items():
                lowest, highest = METRICS.entry(name).facts["bounds"]
                estimate = METRICS[name](*arrays)
                assert lowest <= low <= estimate <= high <= highest, (name, n)


def test_bootstrap_percentiles_are_those_of_resampling_by_hand() -> None:
    inside, outside = sides(40, 60)
    pairs = zip(
        np.concatenate(list(metrics.bootstrap_counts(40, 199, 7))),
        np.concatenate(list(metrics.bootstrap_counts(60, 199, 7, stream="ood"))),
        strict=True,
    )
    values = sorted(
        metrics.fpr95_ood(np.repeat(inside, a.astype(int)), np.repeat(outside, b.astype(int)))
        for a, b in pairs
    )
    found = metrics.interval("fpr95_ood", inside, outside, seed=7, resamples=199)
    assert found == (values[4], values[-5])  # 2.5 % of 200


def test_joint_intervals_are_the_single_ones() -> None:
    pair = sides(80, 60)
    together = metrics.joint_intervals(RANKING, *pair, seed=3, resamples=100)
    for name in RANKING:
        assert together[name] == metrics.interval(name, *pair, seed=3, resamples=100)
    assert together != metrics.joint_intervals(RANKING, *pair, seed=4, resamples=100)


def test_a_higher_level_is_wider() -> None:
    pair = sides(80, 60)
    for name in ("auroc", "aupr_in"):
        narrow = metrics.interval(name, *pair, level=0.8)
        wide = metrics.interval(name, *pair, level=0.99)
        assert wide[0] < narrow[0] < narrow[1] < wide[1]


def test_clusters_widen_the_interval_and_name_it() -> None:
    # Ten sources of twenty equal images are worth ten images.
    rng = np.random.default_rng(0)
    inside, centres = rng.normal(1, 1, 500), rng.normal(0, 1, 10)
    outside, source = np.repeat(centres, 20), np.repeat(np.arange(10), 20)
    for name in RANKING:
        apart = metrics.interval(name, inside, outside, resamples=200)
        whole = metrics.interval(name, inside, outside, clusters=(None, source), resamples=200)
        assert whole[1] - whole[0] > 1.5 * (apart[1] - apart[0]), name
        assert metrics.interval_method(name, (None, source)) == "cluster-bootstrap"
    assert metrics.interval_method("auroc", (None, None)) == "delong-logit"
    assert metrics.interval_method("auroc") == "delong-logit"
    assert metrics.interval_method("ece") == "reflected-bootstrap"
    assert metrics.interval_method("accuracy", source) == "cluster-bootstrap"


def test_one_cluster_says_nearly_nothing() -> None:
    inside, outside = sides(30, 40)
    area = metrics.auroc(inside, outside)
    found = metrics.interval("auroc", inside, outside, clusters=(np.zeros(30, int), None))
    assert found == pytest.approx((area * 0.05, area + (1 - area) * 0.95))
    logits, labels = np.eye(2)[[0] * 8 + [1] * 2], np.zeros(10, int)
    found = metrics.interval("accuracy", logits, labels, clusters=np.zeros(10, int))
    assert found == pytest.approx((0.8 * 0.05, 0.8 + 0.2 * 0.95))


@pytest.fixture
def plugged() -> Iterator[Callable[..., None]]:
    """Register metrics as a plug-in does, and forget them afterwards."""
    names = []

    def add(name: str, metric: Callable[..., Any], **facts: Any) -> None:
        METRICS.register(name, **facts)(metric)
        names.append(name)

    yield add
    for name in names:
        del METRICS._entries[name]


def test_a_plugged_in_metric_gets_a_bootstrap(plugged: Callable[..., None]) -> None:
    def mean_gap(id_scores: Array, ood_scores: Array) -> float:
        return float(np.mean(id_scores) - np.mean(ood_scores))

    plugged("mean-gap", mean_gap, better="higher")
    pair = sides(200, 300)
    low, high = metrics.interval("mean-gap", *pair)
    error = math.sqrt(pair[0].var() / 200 + pair[1].var() / 300)
    assert metrics.interval_method("mean-gap") == "bootstrap"
    assert high - low == pytest.approx(2 * 1.96 * error, rel=0.1)


def test_a_faulty_plug_in_is_told_so(plugged: Callable[..., None]) -> None:
    def no_harness(scores: Array) -> float:
        return float(scores.mean())

    def at_times_nan(confidence: Array, correct: Array) -> float:
        return 0.5 if len(np.unique(confidence)) == len(confidence) else math.nan

    plugged("no-harness", no_harness)
    plugged("at-times-nan", at_times_nan)
    plugged("jackknifed", at_times_nan, interval="jackknife")
    with pytest.raises(InputError, match=r"'no-harness' takes \(scores\); expected"):
        metrics.interval("no-harness", [1.0])
    with pytest.raises(InputError, match="NaN on 60 of 60 resamples"):
        metrics.interval("at-times-nan", np.linspace(0, 1, 50), np.ones(50), resamples=60)
    with pytest.raises(InputError, match="states the interval 'jackknife'"):
        metrics.interval_method("jackknifed")


def test_what_has_no_interval_is_an_error() -> None:
    pair = sides(10, 10)
    with pytest.raises(UnknownName, match="auroc"):
        metrics.interval("aurocc", *pair)
    with pytest.raises(InputError, match="takes 2 arrays"):
        metrics.interval("auroc", pair[0])
    with pytest.raises(InputError, match=r"have \[2, 3\] entries"):
        metrics.interval("ece", [0.5, 0.5], [1, 0, 1])
    with pytest.raises(InputError, match="level=95"):
        metrics.interval("auroc", *pair, level=95)
    with pytest.raises(InputError, match=r"resamples=20 .* at least 40"):
        metrics.interval("aupr_in", *pair, resamples=20)
    with pytest.raises(InputError, match="expected a pair"):
        metrics.interval("auroc", *pair, clusters=np.zeros(10, int))


def covered(name: str, truth: float, draw: Callable[[int], tuple[Array, Array]], n: int) -> float:
    found = [metrics.interval(name, *draw(seed), seed=seed, resamples=200) for seed in range(n)]
    return float(np.mean([low <= truth <= high for low, high in found]))


def test_the_auroc_interval_covers() -> None:
    truth = 0.5 * math.erfc(-2.0 / 2.0)  # P(N(2, 1) > N(0, 1))
    assert covered("auroc", truth, lambda seed: sides(80, 80, 2.0, seed), 300) >= 0.92


def test_the_fpr_interval_covers() -> None:
    truth = 0.5 * math.erfc(-(1.6448536 - 1.0) / math.sqrt(2))  # Phi(z_95 - 1)
    assert covered("fpr95_ood", truth, lambda seed: sides(200, 200, 1.0, seed), 100) >= 0.89


def predictions(n: int, seed: int, right: Callable[[Array], Array]) -> tuple[Array, Array]:
    rng = np.random.default_rng([n, seed])
    confidence = 0.3 + 0.7 * rng.beta(4, 1, n)  # crowded near 1, as classifiers are
    return confidence, rng.random(n) < right(confidence)


def test_the_ece_interval_covers_a_calibrated_model() -> None:
    assert covered("ece", 0.0, lambda seed: predictions(200, seed, lambda c: c), 60) >= 0.85


def true_ece(right: Callable[[Array], Array]) -> float:
    confidence, _ = predictions(2_000_000, 0, right)
    gap = np.bincount((confidence * 20).astype(int).clip(0, 19), confidence - right(confidence))
    return float(np.abs(gap).sum() / len(confidence))


@pytest.mark.slow
@pytest.mark.parametrize("n", [500, 2000])
@pytest.mark.parametrize(
    ("right", "at_least"),
    [
        pytest.param(lambda c: c, 0.91, id="calibrated"),
        pytest.param(lambda c: c - 0.2 * c * (1 - c), 0.84, id="two-points"),
        pytest.param(lambda c: c - 0.05, 0.84, id="five-points"),
        pytest.param(lambda c: c - 0.1, 0.88, id="ten-points"),
        pytest.param(lambda c: np.clip(c + 0.08 * np.sin(19 * c), 0, 1), 0.84, id="wavy"),
    ],
)
def test_the_ece_interval_covers_as_documented(
    n: int, right: Callable[[Array], Array], at_least: float
) -> None:
    coverage = covered("ece", true_ece(right), lambda seed: predictions(n, seed, right), 400)
    print(f"{n} images: {coverage:.3f}")  # pytest -rP shows it
    assert coverage >= at_least
