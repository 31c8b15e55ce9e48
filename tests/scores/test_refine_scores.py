"""Scores of refinement against the same chain in float64, and what repeats make of a row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from bench.context import Context
from bench.energy import NOISE_STD, STEP_SIZE
from bench.errors import InputError
from bench.metrics import interval
from bench.models import LoadedModel
from bench.noise import bound
from bench.registry import SCORES
from bench.tasks.base import Batch, DataRef, Reduction, identity
from bench.tasks.detection import Detection, Headline, OODSet
from bench.tasks.scoring import Scored
from bench.types import Array
from tests.scores.closed_form import Counting, density_of, gradient_of, images, logits_of

NAMES = ("refine-delta", "refine-grad", "refine-l2")
STEPS = 6
X = images(10)
NOISE = bound(3, "refine", range(10))


def chain(net: Counting, x: Tensor) -> Array:
    """Return the images after the steps, float64 ``(B, D)``."""
    point = x.double().numpy().reshape(len(x), -1)
    for k in range(STEPS):
        draw = NOISE.at("sgld", k).normal(16).double().numpy()
        point = point + STEP_SIZE * gradient_of(net, point) + NOISE_STD * draw
    return point


@pytest.mark.parametrize("name", NAMES)
def test_as_by_hand(name: str) -> None:
    net = Counting(scale=0.5)
    start, end = X.double().numpy().reshape(10, -1), chain(net, X)
    lengths = [np.linalg.norm(gradient_of(net, point), axis=1) for point in (start, end)]
    densities = [density_of(logits_of(net, point)) for point in (start, end)]
    by_hand = {
        "refine-delta": densities[0] - densities[1],
        "refine-grad": lengths[1] - lengths[0],
        "refine-l2": -np.linalg.norm(start - end, axis=1),
    }
    values = SCORES[name](net, X, NOISE, steps=STEPS)
    assert values.dtype == torch.float64
    assert values.numpy() == pytest.approx(by_hand[name], abs=2e-5)
    assert np.abs(by_hand[name]).min() > 1e-3


def test_no_steps_are_refused() -> None:
    with pytest.raises(InputError, match="0 steps"):
        SCORES["refine-l2"](Counting(), X, NOISE, steps=0)


def measured(
    net: Counting, names: tuple[str, ...], micro_batch: int, **options: Any
) -> list[Array]:
    measures = [Scored(data=DataRef("digits"), score=name, **options) for name in names]
    batch = Batch(X, None, 4, measures)
    context = Context(noise=bound(0, measures[0].name, range(10)), micro_batch=micro_batch)
    model = LoadedModel(net, "net", "net", {}, None, "", "", "")
    return [np.asarray(measure(model, batch, context)["score"]) for measure in measures]


def test_one_chain_a_draw_feeds_all_three() -> None:
    net = Counting()
    measured(net, NAMES, 10, repeats=2, steps=STEPS)
    # The pass over the images, then in each draw the other steps and the pass at the end.
    assert net.backwards == 1 + 2 * (STEPS - 1 + 1)


def test_draws_differ_and_depend_on_the_image_alone() -> None:
    whole = measured(Counting(), NAMES, 10, repeats=3, steps=STEPS)
    parts = measured(Counting(), NAMES, 4, repeats=3, steps=STEPS)
    few = measured(Counting(), NAMES[:1], 10, repeats=2, steps=STEPS)
    for one, other in zip(whole, parts, strict=True):
        assert one.shape == (10, 3)
        assert one == pytest.approx(other, abs=1e-5)
        assert (np.ptp(one, axis=1) > 1e-5).all()
    np.testing.assert_array_equal(few[0], whole[0][:, :2])


def test_a_measure_says_what_its_draws_were() -> None:
    random = Scored(data=DataRef("digits"), score="refine-l2", repeats=2, steps=3)
    assert {"repeats": 2, "steps": 3}.items() <= random.settings().items()
    assert Scored(data=DataRef("digits"), score="refine-l2").settings()["steps"] == 20
    plain = Scored(data=DataRef("digits"), score="log-density", repeats=2, steps=3)
    assert plain.settings() == {"score": "log-density", "input_noise": 0.0}


INSIDE, OUTSIDE = (np.random.default_rng(s).normal(1 - s, 1, (60, 4)) for s in (0, 1))


def reduced(task_of: Any) -> Any:
    part = Detection(
        inside=DataRef("digits"),
        outside=OODSet(DataRef("letters", like="digits"), "near"),
        scores=("refine-l2",),
        trivial=(),
        metric_names=("auroc", "fpr95_ood"),
        repeats=4,
    )
    sides = zip(part.measures, (INSIDE, OUTSIDE), strict=True)
    results = {identity(measure): {"score": values} for measure, values in sides}
    rows = task_of(part).rows(results, Reduction(resamples=200))
    return {row.metric: row for row in rows}


@pytest.mark.parametrize("task_of", [lambda part: part, lambda part: Headline((part,))])
def test_a_row_is_the_mean_over_draws_with_its_own_error(task_of: Any) -> None:
    truth = np.repeat([1, 0], 60)
    draws = [
        roc_auc_score(truth, np.concatenate(both)) for both in zip(INSIDE.T, OUTSIDE.T, strict=True)
    ]
    row = reduced(task_of)["auroc"]
    assert row.value == pytest.approx(np.mean(draws), abs=1e-12)
    assert row.details["mc_error"] == pytest.approx(np.std(draws, ddof=1) / 2, abs=1e-12)
    assert row.low < row.value < row.high
    assert (row.n, row.n_ood) == (60, 60)
    assert (row.settings["repeats"], row.settings["steps"]) == (4, 20)


def test_its_interval_is_as_wide_as_those_of_single_draws() -> None:
    """Four draws are not four times the images."""
    row = reduced(lambda part: part)["auroc"]
    single = [np.ptp(interval("auroc", *draw)) for draw in zip(INSIDE.T, OUTSIDE.T, strict=True)]
    assert min(single) <= row.high - row.low <= max(single)
