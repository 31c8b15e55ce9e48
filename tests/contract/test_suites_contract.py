"""What every registered suite must keep to: its plan, and the records of a tiny run."""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import pickle
import re
from collections import Counter

import pytest
import torch
from torch import nn

import bench
from bench.data import load_dataset
from bench.records import Record
from bench.registry import SUITES
from bench.tasks.base import DataRef, Failure, Plan, Task, identity
from bench.types import Status

NAMES = list(SUITES)
PLANS = {
    "deterministic": Plan(dataset=load_dataset("digits"), data=DataRef("digits")),
    "stochastic": Plan(
        dataset=load_dataset("digits"), data=DataRef("digits"), stochastic=True, refine_steps=1
    ),
}


def tasks(name: str, plan: str) -> list[Task]:
    return list(SUITES[name]().tasks(PLANS[plan]))


@pytest.mark.parametrize("name", NAMES)
def test_options_have_defaults_and_are_documented(name: str) -> None:
    entry = SUITES.entry(name)
    assert isinstance(entry.facts["version"], int)
    assert isinstance(entry.target, type)
    text = inspect.getdoc(entry.target) or ""
    for option in dataclasses.fields(entry.target):
        assert re.search(rf"^\s+{option.name}: \S", text, re.M), option.name


@pytest.mark.parametrize("plan", list(PLANS))
@pytest.mark.parametrize("name", NAMES)
def test_tasks_are_well_formed(name: str, plan: str) -> None:
    made = tasks(name, plan)
    assert made
    names = Counter((task.name, task.needs_model) for task in made)
    assert set(names.values()) == {1}
    for task in made:
        for measure in task.measures:
            json.dumps(measure.settings(), allow_nan=False)
            assert identity(pickle.loads(pickle.dumps(measure))) == identity(measure)
            assert measure.images_per_shard > 0
            assert measure.uses_model in ("full", "plain", "none")
            assert task.needs_model or measure.uses_model == "none"
            assert all(inspect.isfunction(c) or inspect.isclass(c) for c in measure.code())


@pytest.mark.parametrize("plan", list(PLANS))
@pytest.mark.parametrize("name", NAMES)
def test_planning_twice_plans_the_same(name: str, plan: str) -> None:
    first, second = tasks(name, plan), tasks(name, plan)
    assert [t.name for t in first] == [t.name for t in second]
    assert [[identity(m) for m in t.measures] for t in first] == [
        [identity(m) for m in t.measures] for t in second
    ]


@pytest.mark.parametrize("name", NAMES)
def test_rows_without_a_number_carry_the_reason(name: str) -> None:
    failure = Failure(Status.NOT_APPLICABLE, "because")
    for task in tasks(name, "deterministic"):
        rows = list(task.missing(failure))
        assert rows
        assert {(row.status, row.note, row.value) for row in rows} == {
            (Status.NOT_APPLICABLE, "because", None)
        }


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Record, ...]]:
    """Every suite on twelve images, with a linear model."""
    folder = tmp_path_factory.mktemp("runs")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    return {
        name: bench.run(net, suite=name, limit=12, runs=folder, device="cpu").records
        for name in NAMES
    }


@pytest.mark.parametrize("name", NAMES)
def test_records_of_a_run(name: str, records: dict[str, tuple[Record, ...]]) -> None:
    cells = Counter(record.cell for record in records[name])
    assert set(cells.values()) == {1}, "two records are of the same thing"
    for record in records[name]:
        assert record.status is not Status.FAILED, record.note
        assert record.status is Status.OK or record.note
        if record.status is Status.OK:
            check(record)


def check(record: Record) -> None:
    assert record.value is not None
    assert math.isfinite(record.value)
    assert record.n is not None
    assert 0 < record.n <= 12
    assert (record.low is None) == (record.high is None) == (record.interval is None)
    if record.low is not None and record.high is not None:
        assert record.low <= record.value <= record.high
    json.loads(record.as_json())


@pytest.mark.parametrize("name", NAMES)
def test_rows_of_a_run_are_those_that_were_planned(
    name: str, records: dict[str, tuple[Record, ...]]
) -> None:
    failure = Failure(Status.FAILED, "x")
    planned = {
        (task.name, row.metric)
        for task in tasks(name, "deterministic")
        for row in task.missing(failure)
    }
    assert {(record.task, record.metric) for record in records[name]} == planned
