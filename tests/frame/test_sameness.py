"""Equal numbers from one process or two, and from any micro-batch."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bench
from bench.planning import plan_run
from bench.request import Request
from bench.runner import Run
from bench.store import Store
from bench.types import Array

SETTINGS: dict[str, dict[str, Any]] = {
    "ood": {"sets": ["interp"], "n": 40, "repeats": 2}
    | {"scores": ["log-density", "max-softmax", "approx-mass", "typicality", "refine-delta"]},
    "robustness": {"steps": 3, "restarts": 1, "linf": 0.1, "l2": 0.5, "checks": False}
    | {"attacks": ["pgd-linf", "pgd-l2"], "gradients": ["static", "straight-through"]}
    | {"eot_samples": 2, "selection_draws": 3, "scoring_draws": 5},
    "accuracy": {"draws": 3},
}
TIE = 1e-4  # DESIGN, section 7: a margin below which another batch size may turn a verdict


def run(runs: str, steps: int = 0, limit: int = 40, **options: Any) -> Run:
    made = bench.run(
        "py:model.py:make",
        ["accuracy", "ood", "robustness"],
        refine_steps=steps,
        limit=limit,
        settings=SETTINGS,
        runs=runs,
        **options,
    )
    assert not made.failed
    return made


def contents(runs: str) -> dict[str, dict[str, bytes]]:
    """Name of each shard and of each array in it, to its bytes; seconds are the machine's."""
    found = {}
    for path in sorted((Path(runs) / "shards").iterdir()):
        with zipfile.ZipFile(path) as archive:
            names = [n for n in archive.namelist() if n != "__meta__.npy"]
            found[path.name] = {name: archive.read(name) for name in names}
    return found


def rows(made: Run) -> list[dict[str, Any]]:
    return [{**json.loads(r.as_json()), "seconds": None} for r in made.records]


@pytest.mark.parametrize("steps", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_two_processes_give_the_bytes_of_one(model_file: Path, steps: int) -> None:
    here = run("here", steps, limit=8)
    there = run("there", steps, limit=8, executor="local:2")
    assert here.computed == there.computed > 8
    assert contents("here") == contents("there")
    assert rows(here) == rows(there)


def arrays(runs: str, steps: int, limit: int) -> dict[str, Array]:
    """Everything stored, by measure and array."""
    request = Request(
        models=("py:model.py:make",),
        suites=("accuracy", "ood", "robustness"),
        limit=limit,
        refine_steps=(steps,),
        settings=SETTINGS,
    )
    store, found = Store(Path(runs)), {}
    for task in plan_run(request, []).models[0].tasks:
        for identity, shards in task.shards.items():
            for shard in shards:
                stored = store.read_shard(shard.key)
                assert stored is not None
                for name, array in stored.arrays.items():
                    found[f"{identity}/{shard.start}/{name}"] = array
    return found


def near(one: dict[str, Array], other: dict[str, Array]) -> None:
    """Check that values agree to 1e-6 of the largest logit, or of the largest of their own."""
    assert one.keys() == other.keys()
    (largest,) = (np.abs(v).max() for k, v in one.items() if k.endswith("/logits"))
    compared = 0
    for key, expected in one.items():
        if key.endswith(("/score", "/logits")):
            scale = max(1.0, largest, np.abs(expected).max())  # refinement leads far from logits
            assert np.abs(other[key] - expected).max() < 1e-6 * scale, key
            compared += 1
    assert compared > 8


def ties(one: dict[str, Array], other: dict[str, Array]) -> tuple[int, int]:
    """Return how many verdicts differ, all of them near ties, of how many."""
    different = total = 0
    for key in (k for k in one if k.endswith("/broken")):
        tied = np.abs(one[key.removesuffix("broken") + "margin"]) < TIE
        changed = one[key] != other[key]
        assert not (changed & ~tied).any()
        different, total = different + int(changed.sum()), total + changed.size
    return different, total


@pytest.mark.parametrize("size", [1, 7])
def test_any_micro_batch_gives_the_numbers_of_another(model_file: Path, size: int) -> None:
    """Deterministic: values to 1e-6, and equal verdicts outside counted ties."""
    made = [run(f"batch{n}", batch_size=n) for n in (256, size)]
    whole, parts = (arrays(f"batch{n}", 0, 40) for n in (256, size))
    near(whole, parts)
    different, total = ties(whole, parts)
    print(f"micro-batch {size}: {different} of {total} verdicts differ, all of them ties")
    assert total == 80
    assert different <= 1
    for one, other in zip(rows(made[0]), rows(made[1]), strict=True):
        if different == 0 or one["metric"] != "robust_accuracy":
            assert one["value"] == pytest.approx(other["value"], abs=1e-6)


@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.slow), 7])
def test_any_micro_batch_gives_a_refined_model_its_draws(model_file: Path, size: int) -> None:
    """Stochastic: draws belong to images, so the answers agree draw by draw."""
    for n in (256, size):
        run(f"batch{n}", 2, limit=8, batch_size=n)
    whole, parts = (arrays(f"batch{n}", 2, 8) for n in (256, size))
    near(whole, parts)
    different = total = 0
    for key in (k for k in whole if k.endswith(("/drawn", "/clean_drawn"))):
        different += int((whole[key] != parts[key]).sum())
        total += whole[key].size
    print(f"micro-batch {size}: {different} of {total} classes of draws differ")
    assert total == 2 * 2 * 8 * 5
    assert different <= 2  # a class changes near a tie only


def test_a_seed_changes_draws_and_only_draws(model_file: Path) -> None:
    """Were the seed not used, the tests above would pass for nothing."""

    def loss(steps: int, seed: int) -> float:
        made = bench.run("py:model.py:make", "accuracy", limit=40, refine_steps=steps, seed=seed)
        value = made.records[1].value
        assert value is not None
        return value

    assert loss(0, 0) == loss(0, 1)
    assert loss(2, 0) != loss(2, 1)
    assert loss(2, 0) == pytest.approx(loss(2, 1), rel=0.1)
