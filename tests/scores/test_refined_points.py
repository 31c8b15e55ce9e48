"""Scores after refinement against the same chains in float64."""

from __future__ import annotations

import numpy as np
import pytest

from bench.data import load_dataset
from bench.energy import NOISE_STD, STEP_SIZE
from bench.errors import InputError, UnknownName
from bench.metrics import auroc
from bench.noise import Noise, bound
from bench.registry import SCORES
from bench.suites.ood import OODSuite
from bench.tasks.base import DataRef, Plan
from bench.tasks.detection import Detection
from bench.tasks.scoring import Scored
from bench.types import Array
from tests.scores.closed_form import (
    Counting,
    density_of,
    gradient_of,
    images,
    logits_of,
    softmax_of,
)

X = images(10)
STEPS = 4


def ends(net: Counting, noise: Noise) -> list[Array]:
    """Return the images ``(B, D)`` at the ends of five chains."""
    points = []
    for c in range(5):
        point = X.double().numpy().reshape(len(X), -1)
        for k in range(STEPS):
            draw = noise.at("chain", c).at("sgld", k).normal(16).double().numpy()
            point = point + STEP_SIZE * gradient_of(net, point) + NOISE_STD * draw
        points.append(point)
    return points


def test_as_by_hand() -> None:
    net, noise = Counting(scale=0.5), bound(2, "points", range(len(X)))
    logits = [logits_of(net, point) for point in ends(net, noise)]
    lengths = [np.linalg.norm(gradient_of(net, point), axis=1) for point in ends(net, noise)]
    by_hand = {
        "log-density": np.mean([density_of(f) for f in logits], axis=0),
        "max-softmax": np.mean([np.log(softmax_of(f).max(axis=1)) for f in logits], axis=0),
        "approx-mass": -np.mean(lengths, axis=0),
    }
    for name, expected in by_hand.items():
        values = SCORES[f"refined:{name}"](net, X, noise, steps=STEPS)
        assert values.numpy() == pytest.approx(expected, abs=2e-5), name


def test_known_higher_where_refinement_leads_uphill_to_different_heights() -> None:
    """Two plateaus that no step leaves: after refinement the higher is still the higher."""

    class Plateaus(Counting):
        def forward(self, x):  # type: ignore[no-untyped-def]
            height = (x.flatten(1).mean(dim=1, keepdim=True) > 0.5).float()
            return super().forward(0.01 * x) + 3 * height

    high, low = 0.6 + 0.4 * X, 0.4 * X
    noise = bound(0, "plateaus", range(len(X)))
    score = SCORES["refined:log-density"]
    values = [score(Plateaus(), x, noise).numpy() for x in (high, low)]
    assert auroc(*values) == 1.0
    assert auroc(*(-v for v in values)) == 0.0


@pytest.mark.parametrize("name", ["png-size", "refine-l2", "typicality", "refined:entropy"])
def test_what_has_no_meaning_there_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=f"'{name}' cannot be asked of refined images"):
        SCORES.entry(f"refined:{name}")


def test_a_misspelt_score_is_told() -> None:
    with pytest.raises(UnknownName, match="log-density"):
        SCORES.entry("refined:log-densty")


def test_the_code_of_the_score_behind_counts() -> None:
    measure = Scored(data=DataRef("digits"), score="refined:entropy")
    assert SCORES["entropy"] in measure.code()
    assert {"repeats": 5, "steps": 20}.items() <= measure.settings().items()


@pytest.mark.parametrize(("own", "steps"), [(0, 7), (3, 3)])
def test_a_row_of_a_refining_model_takes_its_steps(own: int, steps: int) -> None:
    suite = OODSuite(scores=("refined:entropy", "refine-l2", "entropy"), sets=("interp",), steps=7)
    data = DataRef("digits")
    plan = Plan(dataset=load_dataset("digits"), data=data, refine_steps=own)
    task = suite.tasks(plan)[0]
    assert isinstance(task, Detection)
    for score in ("refined:entropy", "refine-l2"):
        assert task.settings(score)["steps"] == steps
    assert "steps" not in task.settings("entropy")
