"""What every registered metric must keep to."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import softmax

from bench import metrics
from bench.errors import InputError
from bench.registry import METRICS
from bench.report.table import LOWER_IS_BETTER, PERCENT, column_of
from bench.types import Array

NAMES = list(METRICS)


def arrays(name: str, sharpness: float = 1.0) -> list[Array]:
    """Return what a metric takes: 300 random predictions; the sharper, the better."""
    rng = np.random.default_rng(7)
    labels = rng.integers(0, 4, 300)
    logits = rng.normal(size=(300, 4))
    logits[np.arange(300), labels] += sharpness
    confidence, correct = metrics.confidence_and_correct(logits, labels)
    made = {
        "logits": logits,
        "labels": labels,
        "probs": softmax(logits, axis=1),
        "confidence": confidence,
        "correct": correct,
        "id_scores": rng.normal(size=300) + sharpness,
        "ood_scores": rng.normal(size=300),
    }
    return [made[key] for key in metrics.metric_inputs(name)]


def is_pair(name: str) -> bool:
    return metrics.metric_inputs(name) == ("id_scores", "ood_scores")


@pytest.mark.parametrize("name", NAMES)
def test_order_of_the_images_does_not_matter(name: str) -> None:
    given = arrays(name)
    rng = np.random.default_rng(0)
    one = rng.permutation(300)
    orders = [one, rng.permutation(300) if is_pair(name) else one]
    shuffled = [a[orders[min(i, 1)]] for i, a in enumerate(given)]
    value = METRICS[name](*given)
    assert type(value) is float
    assert METRICS[name](*shuffled) == pytest.approx(value, rel=0, abs=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_interval_holds_the_value_and_stays_within_the_bounds(name: str) -> None:
    given = arrays(name)
    value = METRICS[name](*given)
    least, most = METRICS.entry(name).facts["bounds"]
    low, high = metrics.interval(name, *given, resamples=200)
    assert least <= low <= value <= high <= most
    assert high > low


@pytest.mark.parametrize("name", NAMES)
def test_interval_narrows_with_the_images(name: str) -> None:
    given = arrays(name)
    more = [np.concatenate([a] * 16) for a in given]
    few, many = (metrics.interval(name, *a, resamples=200) for a in (given, more))
    assert many[1] - many[0] < 0.5 * (few[1] - few[0])


@pytest.mark.parametrize("name", NAMES)
def test_better_is_the_direction_of_a_perfect_prediction(name: str) -> None:
    entry = METRICS.entry(name)
    blurred, perfect = METRICS[name](*arrays(name, 0.5)), METRICS[name](*arrays(name, 40.0))
    assert entry.facts["better"] in ("higher", "lower")
    # AUPR with OOD images positive included: higher ID scores serve both sides.
    best = entry.facts["bounds"][1 if entry.facts["better"] == "higher" else 0]
    assert perfect == pytest.approx(best, abs=1e-9)
    assert abs(blurred - best) > 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_table_shows_the_direction_and_unit_of_the_registration(name: str) -> None:
    facts = METRICS.entry(name).facts
    assert column_of(name).lower_is_better is (facts["better"] == "lower")
    assert (name in LOWER_IS_BETTER) == (facts["better"] == "lower")
    if name in PERCENT:
        assert facts["bounds"] == (0.0, 1.0)


@pytest.mark.parametrize("name", NAMES)
def test_nan_is_refused(name: str) -> None:
    first, *rest = arrays(name)
    with pytest.raises(InputError, match="NaN"):
        METRICS[name](np.full_like(first, math.nan), *rest)
