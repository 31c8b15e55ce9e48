"""Suite robustness from the command line: several attacks, a time limit, checks, distances."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Cli = Callable[..., tuple[int, str, str]]

FEW = (
    *("run", "--model", "py:model.py:make", "--suite", "robustness", "--limit", 24, "--json"),
    *("--set", "robustness.steps=3", "--set", "robustness.linf=[0.1, 0.2]"),
)
NO_CHECKS = ("--set", "robustness.checks=false")


def records(out: str, metric: str = "robust_accuracy") -> list[dict[str, Any]]:
    return [r for r in json.loads(out) if r["metric"] == metric]


def attacks(*names: str) -> tuple[str, str]:
    return "--set", f"robustness.attacks={json.dumps(names)}"


def test_several_attacks_of_a_norm_give_the_worst_case(cli: Cli) -> None:
    both = ("pgd-linf", "square-linf")
    few = ("--set", "square-linf.queries=20", *NO_CHECKS)
    alone = []
    for name in both:
        own = few if name == "square-linf" else NO_CHECKS
        code, out, _ = cli(*FEW, *attacks(name), *own)
        assert code == 0
        alone.append([r["value"] for r in records(out)])
    code, out, _ = cli(*FEW, *attacks(*both), *few)
    assert code == 0
    found = records(out)
    values = [r["value"] for r in found]
    assert values[0] == alone[0][0] == alone[1][0]
    assert all(v <= min(pair) for v, pair in zip(values, zip(*alone, strict=True), strict=True))
    only = found[-1]["details"]["broken_by_one_only"]
    n = found[-1]["n"]
    assert values[-1] == pytest.approx(alone[0][-1] - only["square-linf"] / n)
    assert values[-1] == pytest.approx(alone[1][-1] - only["pgd-linf"] / n)
    assert found[-1]["settings"]["attack"] == "pgd-linf+square-linf"


def test_a_time_limit_marks_the_row_and_is_not_taken_for_the_whole(cli: Cli) -> None:
    one = (*attacks("square-linf"), "--set", "square-linf.queries=300", *NO_CHECKS)
    code, out, _ = cli(*FEW, *one, "--set", "robustness.minutes=0.000001")
    assert code == 0
    hasty = records(out)
    assert {r["note"] for r in hasty[1:]} == {"time ran out: 0 of 24 images attacked in full"}
    assert hasty[0]["note"] is None
    code, out, _ = cli(*FEW, *one)
    assert code == 0
    whole = records(out)
    assert {r["note"] for r in whole} == {None}
    assert whole[-1]["value"] < hasty[-1]["value"] <= hasty[0]["value"]  # what a query found counts
    # Enough time gives what no limit gives, in a row that says that there was one.
    code, out, _ = cli(*FEW, *one, "--set", "robustness.minutes=60")
    ample = records(out)
    assert [r["value"] for r in ample] == [r["value"] for r in whole]
    assert ample[0]["settings"]["non_default"]["robustness"]["minutes"] == 60


def test_checks_are_stored_printed_and_found_again(cli: Cli) -> None:
    small = (*attacks("pgd-linf"), "--set", "robustness.eot_samples=1")
    code, out, _ = cli(*FEW, *small)
    assert code == 0
    (record,) = records(out, "masking_checks")
    assert record["n"] == 24
    assert len(record["details"]["checks"]) == 12
    verdicts = records(out)[-1]["details"]["checks"]
    assert sum(map(len, verdicts.values())) == 12
    assert record["value"] == len(verdicts["failed"])
    table = [argument for argument in FEW if argument != "--json"]
    code, out, _ = cli(*table, *small)
    assert code == 0
    assert "masking checks, L∞" in out
    assert "8 zero gradient" in out
    assert "The first 24 images" in out


def test_a_stochastic_model_says_which_source_won_and_what_it_cost(cli: Cli) -> None:
    few = ("--set", "robustness.eot_samples=1", "--set", "robustness.selection_draws=3")
    code, out, _ = cli(
        *(a if a != 24 else 4 for a in FEW),
        *("--refine-steps", 1, *few, *attacks("pgd-linf", "noise-linf"), *NO_CHECKS),
        *("--set", "noise-linf.draws=3", "--set", "robustness.scoring_draws=4"),
        *("--set", 'robustness.gradients=["static", "full", "fixed-noise"]'),
    )
    assert code == 0
    found = records(out)
    assert [r["settings"]["eps"] for r in found] == [0.0, 0.1, 0.2]
    won = found[-1]["details"]["won"]
    assert sum(won.values()) == pytest.approx(1)
    assert found[-1]["settings"]["gradient"] == "static+full+fixed-noise"
    assert {"static", "full", "draws"} <= found[-1]["details"]["passes"].keys()
    known = records(out, "fixed_noise_accuracy")
    assert [r["settings"]["eps"] for r in known] == [0.1, 0.2]
    assert all("diagnostic" in r["note"] for r in known)
    assert found[0]["note"] is None  # not provisional any more


def test_shards_hold_what_the_rows_are_made_of(cli: Cli) -> None:
    code, _, _ = cli(*FEW, *attacks("pgd-linf"), *NO_CHECKS, "--runs", "r")
    assert code == 0
    (path,) = Path("r/shards").glob("*.npz")
    with np.load(path) as shard:
        names = {"label", "clean_pred", "x_adv", "margin", "queries", "broken", "smallest_eps"}
        assert names | {"unfinished", "changed", "l0", "l2", "linf"} == set(shard) - {"__meta__"}
        assert shard["x_adv"].shape == (24, 2, 1, 8, 8)
        assert not shard["changed"].any()
