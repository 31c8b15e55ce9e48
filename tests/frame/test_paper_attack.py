"""The JEM paper's attack with its script's faults corrected: each correction, and the grids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bench
from bench.cli.requests import request_of_run
from bench.context import Context
from bench.errors import InputError
from bench.models import ModelRef, load
from bench.noise import Noise, bound
from bench.registry import ATTACKS
from bench.request import Machine
from bench.suites.paper_attack import GRIDS, IMAGES
from bench.suites.robustness import RobustnessSuite
from bench.tasks.base import Batch, DataRef, Failure, Plan, Reduction, Row, identity
from bench.tasks.base import load as load_images
from bench.tasks.curves import Curve, Found, Nearest
from bench.types import Array, Dataset, Norm, Status
from bench.verifying_runs import verify

GRID = (0.05, 0.1, 0.2)
MEASURE = Nearest(data=DataRef("digits"), attack="pgd-linf", scoring_draws=4, selection_draws=2)


def outcomes(**changes: Any) -> dict[str, Array]:
    """Six images of class 0, by hand; R = 4 and S = 2.

    0: found at 0.1, wrong in every fresh draw.       1: found at 0.2, wrong in half of them.
    2: found at 0.1 by a lucky draw: right in all.    3: nothing found.
    4: wrong in every draw when clean; unchanged.     5: found at 0.1, but worse when clean.
    """
    distance = np.array([0.1, 0.2, 0.1, 0.0, 0.0, 0.1])
    found = np.array([[1, 1, 1, 1], [1, 1, 0, 0], [0] * 4, [0] * 4, [1] * 4, [0, 0, 0, 1]])
    clean = np.array([[0] * 4, [0] * 4, [0] * 4, [0] * 4, [1] * 4, [1, 0, 1, 0]])
    return {
        "label": np.zeros(6, dtype=np.int64),
        "linf": distance[:, None],
        "l0": (distance > 0).astype(float)[:, None],
        "queries": np.full(6, 100),
        "drawn": found[:, None],
        "clean_drawn": clean,
        "selected": found[:, None, :2],
        "clean_selected": clean[:, :2],
        **changes,
    }


def rows(given: dict[str, Array]) -> list[Row]:
    curve = Curve(Norm.LINF, MEASURE, GRID, "note", 1)
    return list(curve.rows({identity(MEASURE): given}, Reduction()))


def curve(given: dict[str, Array], metric: str) -> dict[float, float | None]:
    return {r.settings["eps"]: r.value for r in rows(given) if r.metric == metric}


def test_fresh_draws_by_hand() -> None:
    """Clean: 4 right, one wrong, one half right. Found: what selection prefers, where in reach."""
    clean = (4 + 0 + 0.5) / 6
    near = (0 + 1 + 1 + 1 + 0 + 0.5) / 6
    far = (0 + 0.5 + 1 + 1 + 0 + 0.5) / 6
    expected = {0.0: clean, 0.05: clean, 0.1: near, 0.2: far}
    assert curve(outcomes(), "robust_accuracy") == pytest.approx(expected)


def test_one_draw_by_hand() -> None:
    """As the script: right in the first clean draw, and nothing found so near."""
    expected = {0.0: 4 / 6, 0.05: 4 / 6, 0.1: 2 / 6, 0.2: 1 / 6}
    assert curve(outcomes(), "one_draw_accuracy") == pytest.approx(expected)


def test_no_image_is_dropped() -> None:
    made = rows(outcomes())
    assert {row.n for row in made} == {6}
    assert {row.details["found"] for row in made if row.settings.get("eps")} == {4}


def test_distances_that_fresh_draws_do_not_confirm_are_infinite() -> None:
    np.testing.assert_array_equal(
        Found(outcomes(), Norm.LINF).confirmed(), [0.1, 0.2, np.inf, np.inf, 0.0, 0.0]
    )
    (median,) = [r for r in rows(outcomes()) if r.metric == "median_distance"]
    assert median.value == pytest.approx(0.15)
    assert median.details == {"confirmed": 4}
    assert "eps" not in median.settings
    nothing = outcomes(drawn=np.zeros((6, 1, 4), dtype=int))
    (median,) = [r for r in rows(nothing) if r.metric == "median_distance"]
    assert median.value is None
    assert "no adversarial image for half" in (median.note or "")


def test_all_rows_have_a_reason_where_there_is_none_to_show() -> None:
    curve = Curve(Norm.LINF, MEASURE, GRID, "note")
    shown = [(r.metric, r.settings.get("eps")) for r in rows(outcomes())]
    failure = Failure(Status.FAILED, "because")
    missing = list(curve.rows({identity(MEASURE): failure}, Reduction()))
    assert [(r.metric, r.settings.get("eps")) for r in missing] == shown
    assert {r.note for r in missing} == {"because"}


def plan_of(dataset: Dataset | None = None, limit: int | None = None) -> Plan:
    data = DataRef("digits", limit=limit)
    return Plan(
        dataset=dataset or load_images(data),
        data=data,
        stochastic=True,
        input_noise=0.015,
        protocol="paper",
    )


def curves(plan: Plan, **options: Any) -> dict[Norm, Curve]:
    tasks = RobustnessSuite(**options).tasks(plan)
    assert all(isinstance(task, Curve) for task in tasks)
    return {task.norm: task for task in tasks if isinstance(task, Curve)}


def test_the_attack_is_the_papers() -> None:
    made = curves(plan_of())
    assert set(made) == {Norm.LINF, Norm.L2}
    for norm, task in made.items():
        attack = task.measure
        assert attack.attack == f"pgd-{norm}"
        assert attack.options["steps"] == 40
        assert attack.options["restarts"] == 20
        assert attack.options["gradient"] == "straight-through"
        assert attack.options["eot_samples"] == 1
        assert attack.data.limit == IMAGES == 300
    assert curves(plan_of(limit=7))[Norm.L2].measure.data.limit == 7


def test_the_grid_is_the_papers_on_images_of_its_shape() -> None:
    images = np.zeros((2, 3, 32, 32), dtype=np.uint8)
    made = curves(plan_of(Dataset("cifar-like", "test", images)))
    levels = {norm: [round(255 * eps, 9) for eps in task.grid] for norm, task in made.items()}
    assert levels[Norm.LINF][-1] == 20
    assert {12, 18} <= set(levels[Norm.LINF])  # where the paper's curves cross
    assert levels[Norm.L2][-1] == 525
    assert 280 in levels[Norm.L2]
    assert not any("scaled" in task.note for task in made.values())


def test_the_grid_of_other_images_ends_at_their_largest_budget_and_says_so() -> None:
    made = curves(plan_of())
    digits = load_images(DataRef("digits"))
    for norm, task in made.items():
        assert task.grid[-1] == pytest.approx(max(digits.eps[norm.value]))
        np.testing.assert_allclose(
            np.array(task.grid) / task.grid[-1],
            np.array(GRIDS[norm]) / GRIDS[norm][-1],
        )
        assert "scaled" in task.note
    own = curves(plan_of(), linf=(0.3, 0.1))
    assert own[Norm.LINF].grid == (0.1, 0.3)
    assert "scaled" not in own[Norm.LINF].note


def test_samples_behind_a_gradient_are_an_option() -> None:
    """The paper's ablation: 5 or 10 samples."""
    for samples in (5, 10):
        assert curves(plan_of(), eot_samples=samples)[Norm.L2].measure.options["eot_samples"] == (
            samples
        )
    own = curves(plan_of(), settings={"pgd-l2": {"eot_samples": 7, "restarts": 2}})
    assert own[Norm.L2].measure.options["eot_samples"] == 7
    assert own[Norm.L2].measure.options["restarts"] == 2
    assert own[Norm.LINF].measure.options["eot_samples"] == 1


@pytest.mark.parametrize(
    "options",
    [
        {"attacks": ("pgd-linf",)},
        {"gradients": ("static",)},
        {"minutes": 1.0},
        {"by_gradient": {"static": {"steps": 3}}},
        {"l0": (3.0,)},
    ],
)
def test_what_does_not_apply_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"does not apply to '--protocol paper'"):
        RobustnessSuite(**options).tasks(plan_of())
    RobustnessSuite(**options).tasks(
        plan_of().__class__(load_images(DataRef("digits")), DataRef("digits"))
    )


class Lottery(nn.Module):
    """A linear model that answers wrong with probability 0.2, whatever it is shown."""

    stochastic = True

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))

    def sample_logits(self, x: Tensor, noise: Noise) -> Tensor:
        wrong = noise.at("lottery").uniform(1)[:, 0] < 0.2
        sign = torch.where(wrong, -1.0, 1.0)
        value = self.scale * (5 + 0.02 * x.flatten(1).sum(dim=1)) * sign
        return torch.stack([value, -value], dim=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.sample_logits(x, bound(0, "lottery", range(len(x))))


def found_by(model: nn.Module, attack: str, **options: Any) -> dict[str, Array]:
    x = 0.5 * bound(0, "images", range(40)).uniform(1, 8, 8) + 0.25
    batch = Batch(x, torch.zeros(40, dtype=torch.int64), 2)
    context = Context(noise=bound(0, "nearest", range(40)), micro_batch=16)
    loaded = load(ModelRef(model, "digits", title="toy"), load_images(DataRef("digits")))
    measure = Nearest(data=DataRef("digits"), attack=attack, options=options)
    return dict(measure(loaded, batch, context))


def test_a_lucky_draw_is_believed_by_one_curve_only() -> None:
    """The one-draw number says that nothing is robust; the truth is 80 %."""
    arrays = found_by(Lottery(), "pgd-linf", steps=10, restarts=5, eot_samples=1)
    found = Found(arrays, Norm.LINF)
    assert found.one_draw(1.0).mean() < 0.3
    assert found.fresh(1.0).mean() == pytest.approx(0.8, abs=0.06)


class Halves(nn.Module):
    """Two classes, split by a hyperplane; the draw shifts it by a little."""

    stochastic = True

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 64))

    def sample_logits(self, x: Tensor, noise: Noise) -> Tensor:
        shift = 0.02 * noise.at("shift").normal(1)[:, 0]
        value = (x.flatten(1) - 0.5) @ self.weight + 1.0 + shift
        return torch.stack([value, -value], dim=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.sample_logits(x, bound(0, "halves", range(len(x))))


@pytest.mark.parametrize("attack", ["pgd-linf", "pgd-l2"])
def test_distances_are_those_of_geometry(attack: str) -> None:
    arrays = found_by(Halves(), attack, steps=10, restarts=1, eot_samples=1)
    x = 0.5 * bound(0, "images", range(40)).uniform(1, 8, 8) + 0.25
    weight = Halves().weight.detach()
    value = ((x.flatten(1) - 0.5) @ weight + 1.0).numpy()
    norm = float(weight.abs().sum() if attack == "pgd-linf" else weight.norm())
    distance = arrays[Norm(ATTACKS.entry(attack).facts["norm"]).value][:, 0]
    right = value > 0.1
    assert right.sum() > 30
    # The nearest of many searches has luck with the shift: some of its deviations of 0.02.
    short = (value - distance * norm)[right]
    assert short.min() > -0.02
    assert short.max() < 0.12


def test_a_run_under_the_papers_protocol(tmp_path: Path) -> None:
    few = {"steps": 3, "restarts": 1}
    settings = {
        "robustness": {"scoring_draws": 4, "selection_draws": 3},
        "pgd-linf": few,
        "pgd-l2": few,
    }
    run = bench.run(
        "jem",
        "robustness",
        refine_steps=(0, 1),
        protocol="paper",
        limit=4,
        settings=settings,
        runs=tmp_path,
        device="cpu",
    )
    assert not run.failed, [r.note for r in run.records if r.status == "failed"]
    for label in ("jem", "jem-1"):
        own = [r for r in run.records if r.label == label and r.metric == "one_draw_accuracy"]
        values = [r.value or 0.0 for r in own if r.settings["norm"] == "l2"]
        assert len(values) == 1 + len(GRIDS[Norm.L2])
        assert values == sorted(values, reverse=True)
    assert all("corrected" in (r.note or "") for r in run.records if r.settings.get("eps"))
    request = request_of_run(tmp_path / run.run_id / "run.json")
    assert verify(run.run_id, request, Machine(runs=tmp_path, device="cpu")).holds
    assert "one_draw_accuracy" in run.table()
