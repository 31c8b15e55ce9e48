"""Rows of the robustness task from hand-made arrays: worst cases, winners, distances, notes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest
from scipy.stats import quantile_test

from bench.attacking.sources import SOURCES
from bench.errors import InputError
from bench.registry import ATTACKS, Entry
from bench.suites.robustness import RobustnessSuite
from bench.tasks.attacked import Attacked
from bench.tasks.base import Arrays, DataRef, Failure, Plan, Reduction, Row, identity, load
from bench.tasks.masking import Masking
from bench.tasks.outcomes import median_interval
from bench.tasks.robustness import Robustness
from bench.types import Array, Norm, Status

DATA = DataRef(spec="digits", limit=10)
EPS = (0.1, 0.2)
N = 10


def measure(attack: str = "pgd-linf", **options: Any) -> Attacked:
    return Attacked(data=DATA, attack=attack, eps=EPS, options=options)


def broken(*columns: Any, **more: Any) -> dict[str, Array]:
    """What a deterministic model's shard holds; image 9 is wrong when clean."""
    label = np.zeros(N, dtype=np.int64)
    return {
        "label": label,
        "clean_pred": (np.arange(N) == 9).astype(np.int64),
        "broken": np.stack([np.isin(np.arange(N), [*c, 9]) for c in columns], axis=1),
        "margin": np.ones((N, len(columns))),
        "queries": np.full(N, 20),
        "unfinished": np.zeros(N, dtype=bool),
        "changed": np.zeros(N, dtype=np.int64),
        **more,
    }


def rows(task: Robustness, *arrays: Arrays | Failure) -> list[Row]:
    results = dict(zip(map(identity, task.measures), arrays, strict=True))
    return list(task.rows(results, Reduction()))


def values(found: list[Row], metric: str = "robust_accuracy") -> list[float | None]:
    return [row.value for row in found if row.metric == metric]


def test_the_worst_attack_counts_image_by_image() -> None:
    """One attack breaks images 0-4 and another 5-8: nothing is left, rather than half of it."""
    task = Robustness(Norm.LINF, (measure(), measure("square-linf")))
    found = rows(task, broken([], range(5)), broken([1], range(5, 9), queries=np.full(N, 100)))
    assert values(found) == [0.9, 0.8, 0.0]
    last = found[-1]
    assert last.details["broken_by_one_only"] == {"pgd-linf": 5, "square-linf": 4}
    assert last.details["mean_queries"] == 120
    assert "mean_queries" not in found[0].details
    assert last.settings["attack"] == "pgd-linf+square-linf"


def test_settings_name_what_attacks_share_and_what_they_do_not() -> None:
    one = Robustness(Norm.LINF, (measure(steps=7, restarts=3),))
    own = rows(one, broken([], []))[1].settings
    assert {k: own[k] for k in ("steps", "restarts", "loss")} == {
        "steps": 7,
        "restarts": 3,
        "loss": "both",
    }
    assert own["eps"] == 0.1
    two = Robustness(Norm.LINF, (measure(steps=7), measure(steps=7, loss="margin")))
    settings = rows(two, broken([], []), broken([], []))[1].settings
    assert settings["steps"] == 7
    assert settings["options"]["pgd-linf"]["loss"] == "margin"
    mixed = Robustness(Norm.LINF, (measure(steps=7), measure("square-linf")))
    settings = rows(mixed, broken([], []), broken([], []))[1].settings
    assert "steps" not in settings
    assert settings["options"]["pgd-linf"]["steps"] == 7
    assert settings["options"]["square-linf"]["queries"] == 5000


def drawn(right: Array, rank: Array, source: str = "full", **more: Any) -> dict[str, Array]:
    """What a stochastic model's shard holds: ``right`` (N, E, R) of class 0."""
    classes = np.where(right, 0, 1).astype(np.int16)
    n = len(right)
    return {
        "label": np.zeros(n, dtype=np.int64),
        "clean_pred": np.zeros(n, dtype=np.int64),
        "clean_drawn": np.zeros((n, right.shape[2]), dtype=np.int16),
        "drawn": classes,
        "rank": rank,
        "found": rank <= 5,
        "source": np.full(rank.shape, SOURCES.index(source), dtype=np.int8),
        "queries": np.full(n, 50),
        "spent_static": np.full(n, 20),
        "spent_full": np.full(n, 30),
        "unfinished": np.zeros(n, dtype=bool),
        "changed": np.zeros(n, dtype=np.int64),
        **more,
    }


def test_the_winner_of_each_image_has_the_lowest_rank_and_only_it_is_scored() -> None:
    task = Robustness(Norm.LINF, (measure(), measure("square-linf")))
    never, always = np.zeros((N, 2, 4), dtype=bool), np.ones((N, 2, 4), dtype=bool)
    half = np.tile((np.arange(N) < 5)[:, None], (1, 2)).astype(float)
    # PGD ranks better at images 5 to 9, where it breaks all draws.
    found = rows(task, drawn(never, half), drawn(always, 0.5 + 0 * half, source="draws"))
    assert values(found) == [1.0, 0.5, 0.5]
    assert values(found, "vote_accuracy") == values(found, "worst_of_draws") == [1.0, 0.5, 0.5]
    row = next(r for r in found if r.settings["eps"] == 0.1)
    assert row.details["won"] == {"pgd-linf: full": 0.5, "square-linf: draws": 0.5}
    assert row.details["passes"] == {"static": 40.0, "full": 60.0}
    assert row.details["draws"] == 4


def test_many_attacks_do_not_make_a_model_look_weaker_than_it_is() -> None:
    """A model that is right with probability 0.8 whatever the input is 80 % accurate."""
    rng = np.random.default_rng(0)
    many, n, draws = 6, 600, 20
    names = [*["pgd-linf", "square-linf", "noise-linf"] * 2][:many]
    attacks = tuple(measure(name, **{"eot_samples": i + 1}) for i, name in enumerate(names))
    shards = []
    for _ in range(many):
        right = rng.random((n, 2, draws)) < 0.8
        selected = rng.binomial(10, 0.8, size=(n, 2)).astype(float)
        clean = (rng.random((n, draws)) >= 0.8).astype(np.int16)
        shards.append(drawn(right, selected, clean_drawn=clean))
    found = rows(Robustness(Norm.LINF, attacks), *shards)
    for row in (r for r in found if r.metric == "robust_accuracy"):
        assert row.value == pytest.approx(0.8, abs=4 * np.sqrt(0.16 / (n * draws)))
        assert row.low is not None
        assert row.high is not None
        assert row.low < 0.8 < row.high
    worst = np.min([(s["drawn"][:, 0] == 0).mean(axis=1) for s in shards], axis=0).mean()
    assert worst < 0.72  # what the worst of the scores would have said


def test_fixed_noise_is_a_row_of_its_own_and_of_no_part_in_the_rest() -> None:
    always, rank = np.ones((N, 2, 4), dtype=bool), np.ones((N, 2))
    known = np.tile((np.arange(N) < 3)[:, None], (1, 2))
    found = rows(Robustness(Norm.LINF, (measure(),)), drawn(always, rank, fixed_noise=known))
    assert values(found) == [1.0, 1.0, 1.0]
    assert values(found, "fixed_noise_accuracy") == [0.3, 0.3]
    (note,) = {r.note for r in found if r.metric == "fixed_noise_accuracy"}
    assert note is not None
    assert "knows the noise" in note


@dataclass(frozen=True, kw_only=True)
class Nearest:
    """An attack that looks for the nearest adversarial image."""

    minimum_norm: ClassVar[bool] = True
    title: ClassVar[str] = "nearest-but-one-linf"
    keyed: ClassVar[bool] = False
    eps: float | None = None
    norm: Norm = field(default=Norm.LINF, init=False)


def known(patch: pytest.MonkeyPatch, name: str, kind: Any, norm: Norm) -> None:
    """Register an attack for the time of a test."""
    patch.setitem(ATTACKS._entries, name, Entry(name, kind, __name__, {"norm": norm}))


@pytest.fixture
def nearest(monkeypatch: pytest.MonkeyPatch) -> Attacked:
    known(monkeypatch, "nearest-linf", Nearest, Norm.LINF)
    return measure("nearest-linf")


def test_nearest_images_give_a_median_distance_and_what_it_costs(nearest: Attacked) -> None:
    distance = np.array([0.05, 0.15, 0.15, 0.3, 0.3, 0.3, 0.4, 0.5, 0.0, 0.0])
    found_one = np.arange(N) != 8  # nothing was found for image 8
    columns = [np.flatnonzero(found_one & (distance <= e)) for e in (*EPS, np.inf)]
    moved = np.stack([np.where(found_one & (distance <= e), distance, 0) for e in (*EPS, np.inf)])
    arrays = broken(*columns, linf=moved.T)
    found = rows(Robustness(Norm.LINF, (nearest,)), arrays)
    assert values(found) == [0.9, 0.8, 0.6]
    (row,) = (r for r in found if r.metric == "median_distance")
    assert row.value == pytest.approx(0.3)  # 0 0.05 0.15 0.15 0.3 0.3 0.3 0.4 0.5 inf
    assert (row.low, row.high) == (0.05, 0.5)
    assert row.details["found"] == 9
    assert values(found, "mean_queries") == [20.0]
    assert "eps" not in row.settings
    # Its own name for itself stands in the row, and what was asked for beside it.
    assert row.settings["attack"] == "nearest-but-one-linf"
    assert row.settings["asked"] == "nearest-linf"


def test_a_median_that_was_not_reached_has_no_number(nearest: Attacked) -> None:
    arrays = broken([], [], [0, 1], linf=np.full((N, 3), 0.5))
    (row,) = (
        r for r in rows(Robustness(Norm.LINF, (nearest,)), arrays) if r.metric == "median_distance"
    )
    assert row.value is None
    assert row.low == 0.5  # three found of ten, but the true median may lie below
    assert row.high is None
    assert row.note is not None
    assert "half of the images" in row.note


def test_a_stochastic_model_is_broken_where_the_selection_draws_say_so(nearest: Attacked) -> None:
    right = np.zeros((N, 3, 4), dtype=bool)
    rank = np.full((N, 3), 2.0)
    rank[:7, 2] = 8.0  # nothing was found for seven of ten, whatever the scoring draws say
    shard = drawn(right, rank, linf=np.full((N, 3), 0.5))
    found = rows(Robustness(Norm.LINF, (nearest,)), shard)
    (row,) = (r for r in found if r.metric == "median_distance")
    assert (row.value, row.details["found"]) == (None, 3)


@pytest.mark.parametrize("n", [6, 7, 20, 101, 500])
def test_the_median_has_the_interval_of_order_statistics(n: int) -> None:
    x = np.random.default_rng(n).exponential(size=n)
    median, low, high = median_interval(x, 0.95)
    assert median == np.median(x)
    # SciPy's is one order statistic narrower or equal on either side: ours is symmetric.
    other = quantile_test(x, p=0.5).confidence_interval(0.95)
    assert low <= other.low
    assert high >= other.high
    inside = [np.sort(x)[np.searchsorted(np.sort(x), v)] for v in (low, high)]
    assert inside == [low, high]


@pytest.mark.parametrize("n", [10, 41])
def test_that_interval_covers_as_often_as_it_says(n: int) -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(400):
        _, low, high = median_interval(rng.exponential(size=n), 0.95)
        hits += low <= np.log(2) <= high
    assert hits / 400 >= 0.93


def test_images_that_time_did_not_reach_are_told() -> None:
    late = broken([1], [2], unfinished=np.arange(N) >= 6)
    found = rows(Robustness(Norm.LINF, (measure(),)), late)
    assert found[0].note is None  # clean accuracy needs no attack
    assert {r.note for r in found[1:]} == {"time ran out: 6 of 10 images attacked in full"}


def test_draws_that_belong_to_the_batch_are_told(nearest: Attacked) -> None:
    right = np.ones((N, 3, 4), dtype=bool)
    shard = drawn(right, np.ones((N, 3)), linf=np.zeros((N, 3)))
    found = rows(Robustness(Norm.LINF, (nearest,)), shard)
    assert found[-3].note is not None
    assert "draws under nearest-but-one-linf belong to the micro-batch" in found[-3].note
    assert rows(Robustness(Norm.LINF, (measure(),)), broken([], []))[1].note is None


def evidence(**changes: Any) -> dict[str, Array]:
    """What a norm without a white-box attack has: enough for checks 8 to 11."""
    flags = ("flat_ce", "flat_margin", "differs", "declared", "unkeyed", "probabilities")
    found: dict[str, Array] = {flag: np.zeros(N, dtype=bool) for flag in (*flags, "unfinished")}
    found |= {"clean_right": np.ones(N), "changed": np.zeros(N, dtype=np.int64)}
    return found | changes


CHECKS = Masking(data=DATA, norm=Norm.LINF, eps=EPS)


def test_failed_checks_stand_at_every_row_and_in_a_record_of_their_own() -> None:
    task = Robustness(Norm.LINF, (measure(),), checks=CHECKS)
    *accuracy, record = rows(task, broken([], []), evidence(flat_ce=np.ones(N, dtype=bool)))
    assert all(r.details["checks"]["failed"] == ["8 zero gradient"] for r in accuracy)
    for row in accuracy[1:]:
        assert row.note is not None
        assert "masking checks failed: 8 zero gradient (the loss is saturated)" in row.note
    assert (record.metric, record.value, record.n) == ("masking_checks", 1.0, N)
    assert [c["name"] for c in record.details["checks"] if c["verdict"] == "fail"] == [
        "8 zero gradient"
    ]
    assert record.settings["attack"] == "pgd-linf"


def test_checks_that_time_did_not_allow_are_told_from_those_that_do_not_apply() -> None:
    task = Robustness(Norm.LINF, (measure(),), checks=CHECKS)
    late = evidence(unfinished=np.ones(N, dtype=bool))
    checks = rows(task, broken([], []), late)[1].details["checks"]
    assert [name.split()[0] for name in checks["unfinished"]] == ["1", "2", "3", "4", "5", "7"]
    assert checks["n/a"] == ["6 transfer", "8 gradient signal"]
    assert [name.split()[0] for name in checks["passed"]] == ["8", "9", "10", "11"]


def test_passed_checks_leave_no_note() -> None:
    task = Robustness(Norm.LINF, (measure(),), checks=CHECKS)
    *accuracy, record = rows(task, broken([], []), evidence())
    assert record.value == 0
    assert {r.note for r in (*accuracy, record)} == {None}
    assert "9 randomness" in accuracy[1].details["checks"]["passed"]
    assert "4 FGSM" in accuracy[1].details["checks"]["n/a"]


def test_a_model_changed_by_an_attack_fails_the_last_check() -> None:
    task = Robustness(Norm.LINF, (measure(),), checks=CHECKS)
    record = rows(task, broken([], [], changed=np.full(N, 3)), evidence())[-1]
    assert record.note is not None
    assert record.note.startswith("11 model unchanged")


def test_checks_and_attacks_fail_each_for_themselves() -> None:
    task = Robustness(Norm.LINF, (measure(),), checks=CHECKS)
    failure = Failure(Status.FAILED, "the reason")
    *accuracy, record = rows(task, broken([], []), failure)
    assert values(accuracy) == [0.9, 0.9, 0.9]
    assert (record.status, record.note) == (Status.FAILED, "the reason")
    *accuracy, record = rows(task, failure, evidence())
    assert {r.status for r in accuracy} == {Status.FAILED}
    assert record.value == 0
    assert [r.metric for r in task.missing(failure)] == ["robust_accuracy"] * 3 + ["masking_checks"]


def plan(**changes: Any) -> Plan:
    return Plan(dataset=load(DATA), data=DATA, **changes)


@pytest.mark.parametrize("limit", [10, 200, None])
@pytest.mark.parametrize("stochastic", [False, True])
@pytest.mark.parametrize("checks", [False, True])
def test_the_suite_shares_its_time_among_attacks_checks_and_images(
    limit: int | None, stochastic: bool, checks: bool
) -> None:
    data = DataRef(spec="digits", limit=limit)
    wanted = Plan(dataset=load(data), data=data, stochastic=stochastic)
    tasks = RobustnessSuite(minutes=5, checks=checks).tasks(wanted)
    spent: dict[type, float] = {}
    for measure in (m for task in tasks for m in task.measures):
        assert isinstance(measure, Attacked | Masking)
        assert measure.seconds_per_image is not None
        assert measure.settings()["seconds_per_image"] == measure.seconds_per_image
        seconds = measure.seconds_per_image * len(load(measure.data))
        spent[type(measure)] = spent.get(type(measure), 0) + seconds
    assert sum(spent.values()) == pytest.approx(5 * 60)
    assert (Masking in spent) is checks
    assert spent[Attacked] > 0.49 * 5 * 60
    free = RobustnessSuite().tasks(plan())[0].measures
    assert not any("seconds_per_image" in measure.settings() for measure in free)


def test_attacks_of_one_share_are_two_measures() -> None:
    suite = RobustnessSuite(attacks=("pgd-linf", "pgd-l2"), minutes=5, checks=False)
    first, second = (task.measures[0] for task in suite.tasks(plan()))
    assert first.settings()["seconds_per_image"] == 5 * 60 / (10 * 2)
    assert identity(first) != identity(second)


def test_the_suite_asks_for_checks_on_the_first_images_unless_told_not_to() -> None:
    (linf, _) = RobustnessSuite().tasks(plan())
    assert isinstance(linf.measures[-1], Masking)
    assert linf.measures[-1].data.limit == 10
    (linf, _) = RobustnessSuite(checks=False).tasks(plan())
    assert all(isinstance(m, Attacked) for m in linf.measures)


def test_a_norm_without_budgets_takes_only_what_needs_none(
    nearest: Attacked, monkeypatch: pytest.MonkeyPatch
) -> None:
    known(monkeypatch, "some-l0", ATTACKS["pgd-linf"], Norm.L0)
    with pytest.raises(InputError, match="names no budgets for l0"):
        RobustnessSuite(attacks=("some-l0",)).tasks(plan())
    bare = Attacked(data=DATA, attack="nearest-linf", eps=())
    assert bare.nearest
    arrays = broken(range(6), linf=np.full((N, 1), 0.2))
    found = rows(Robustness(Norm.LINF, (bare,)), arrays)
    assert [r.metric for r in found] == ["robust_accuracy", "median_distance", "mean_queries"]
    assert found[1].value == 0.2


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"gradients": ("static", "sideways")}, "robustness.gradients"),
        ({"gradients": ("fixed-noise",)}, "beside one of them"),
        ({"minutes": -1.0}, "robustness.minutes=-1.0"),
        ({"steps": 0}, "robustness.steps=0"),
        ({"restarts": "two"}, "robustness.restarts=two"),
    ],
)
def test_impossible_options_of_the_suite_are_refused(options: dict[str, Any], word: str) -> None:
    with pytest.raises(InputError, match=word):
        RobustnessSuite(**options)
