"""`bench verify`: an untouched run holds, and every planted change is found and named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bench
from bench.cli.requests import request_of_run
from bench.comparing_records import record_differences
from bench.context import Context
from bench.data import to_tensor
from bench.errors import CheckpointError, InputError, StoreError
from bench.models import ModelRef, load
from bench.noise import Noise, bound
from bench.records import Record
from bench.request import Machine
from bench.runner import Run
from bench.store import Store
from bench.tasks.attacked import smallest_eps
from bench.tasks.base import Batch, DataRef
from bench.tasks.base import load as load_images
from bench.tasks.masking import Masking
from bench.tasks.rechecking import Stored, recheck
from bench.types import Array, Norm
from bench.verifying_runs import Verification, verify

LIMIT = 12
SETTINGS: dict[str, dict[str, Any]] = {
    "robustness": {
        "steps": 3,
        "restarts": 1,
        "eot_samples": 2,
        "selection_draws": 2,
        "scoring_draws": 3,
        "linf": [0.05, 0.15],
        "attacks": ["pgd-linf"],
        "gradients": ["static", "straight-through"],
        "checks": False,
    },
    "ood": {"sets": ["letters"], "scores": ["log-density"]},
}
Change = Callable[[dict[str, Array]], None]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Run]:
    """JEM-0 and JEM-1 on a few digits."""
    runs = tmp_path_factory.mktemp("runs")
    run = bench.run(
        "jem",
        ["accuracy", "ood", "robustness"],
        refine_steps=(0, 1),
        limit=LIMIT,
        settings=SETTINGS,
        runs=runs,
        device="cpu",
    )
    assert not run.failed
    return runs, run


@pytest.fixture
def copied(stored: tuple[Path, Run], tmp_path: Path) -> Path:
    """The same run, to be tampered with."""
    shutil.copytree(stored[0], tmp_path / "runs")
    return tmp_path / "runs"


def check(runs: Path, **options: Any) -> Verification:
    (run_id,) = Store(runs).runs()
    request = request_of_run(runs / run_id / "run.json")
    batch = options.pop("micro_batch", None)
    return verify(run_id, request, Machine(runs=runs, device="cpu", micro_batch=batch), **options)


def shard_of(runs: Path, **facts: Any) -> dict[str, Any]:
    """The entry of the one shard of these facts in run.json."""
    (path,) = runs.glob("*/run.json")
    entries = json.loads(path.read_text())["shards"]
    (entry,) = [e for e in entries if all(e[k] == v for k, v in facts.items())]
    return dict(entry)


def tamper(runs: Path, change: Change, **facts: Any) -> str:
    """Change arrays of a shard; return its key."""
    key: str = shard_of(runs, **facts)["key"]
    store = Store(runs)
    shard = store.read_shard(key)
    assert shard is not None
    arrays = {name: values.copy() for name, values in shard.arrays.items()}
    change(arrays)
    store.write_shard(key, arrays, shard.seconds)
    return key


def found_in(result: Verification) -> dict[str, list[str]]:
    return {s.key: s.finding.differences for s in result.shards if s.finding.differences}


@pytest.mark.parametrize("options", [{}, {"sample": 5}, {"micro_batch": 5}])
def test_an_untouched_run_holds(stored: tuple[Path, Run], options: dict[str, Any]) -> None:
    result = check(stored[0], **options)
    assert found_in(result) == {}
    assert result.holds
    assert result.differences == ()
    assert result.remarks == ()
    assert result.records == len(stored[1].records)
    images = options.get("sample", LIMIT)
    assert {s.finding.images for s in result.shards} == {images}
    assert len(result.shards) == stored[1].computed + stored[1].stored


def put(name: str, value: Any, *place: int) -> Change:
    def change(arrays: dict[str, Array]) -> None:
        arrays[name][place] = value

    return change


def flip(name: str, *place: int) -> Change:
    def change(arrays: dict[str, Array]) -> None:
        arrays[name][place] ^= True

    return change


def flip_verdict(arrays: dict[str, Array]) -> None:
    arrays["broken"][0, 0] ^= True


def other_image(arrays: dict[str, Array]) -> None:
    arrays["x_adv"][3, 1] = 1 - arrays["x_adv"][3, 1]


def beyond_the_budget(arrays: dict[str, Array]) -> None:
    away = np.where(arrays["x_adv"][2, 0] > 0.5, -0.2, 0.2)
    arrays["x_adv"][2, 0] += away.astype(np.float32)


def flip_class(arrays: dict[str, Array]) -> None:
    arrays["drawn"][2, 1, 1] = (arrays["drawn"][2, 1, 1] + 1) % 10


DETERMINISTIC = {"label": "jem", "measure": "Attacked"}
STOCHASTIC = {"label": "jem-1", "measure": "Attacked"}
LOGITS = {"label": "jem", "measure": "Logits"}
DRAWN = {"label": "jem-1", "measure": "Logits"}
SCORED = {"measure": "Scored", "dataset": "letters"}
OF_MODEL = SCORED | {"settings": {"score": "log-density", "input_noise": 0.0}}
TRIVIAL = SCORED | {"settings": {"score": "border-ink", "input_noise": 0.0}}
PLANTED: list[tuple[dict[str, Any], Change, str]] = [
    (DETERMINISTIC, flip_verdict, "image 0: broken[0] is stored as"),
    (DETERMINISTIC, beyond_the_budget, "image 2: linf is 0.25 and eps 0.05"),
    (DETERMINISTIC, other_image, "image 3: linf[1] is stored as"),
    (DETERMINISTIC, put("x_adv", -0.5, 4, 0), "image 4: x_adv leaves [0, 1]"),
    (DETERMINISTIC, put("x_adv", np.nan, 9, 0), "image 9: x_adv leaves [0, 1]"),
    (DETERMINISTIC, put("margin", 3.0, 5, 0), "image 5: margin[0] is stored as 3.0"),
    (DETERMINISTIC, put("l2", 1e-3, 6, 1), "image 6: l2[1] is stored as 0.001"),
    (DETERMINISTIC, put("label", 11, 7), "image 7: label is stored as 11"),
    (DETERMINISTIC, put("clean_pred", 12, 8), "image 8: clean_pred is stored as 12"),
    (STOCHASTIC, flip_class, "image 2: drawn[1][1] is stored as"),
    (STOCHASTIC, put("clean_drawn", 11, 1, 2), "image 1: clean_drawn[2] is stored as 11"),
    (STOCHASTIC, other_image, "image 3: linf[1] is stored as"),
    (STOCHASTIC, put("rank", -1.0, 10, 1), "image 10: rank[1] is stored as -1.0"),
    (DETERMINISTIC, put("smallest_eps", 9.0, 10), "image 10: smallest_eps is stored as 9.0"),
    (DETERMINISTIC, put("unfinished", True, 11), "image 11: unfinished is stored as True"),
    (STOCHASTIC, flip("found", 4, 1), "image 4: found[1] is stored as"),
    (STOCHASTIC, put("source", 8, 5, 1), "image 5: source is stored as"),
    (STOCHASTIC, put("queries", 1, 6), "image 6: queries is stored as 1"),
    (STOCHASTIC, put("spent_static", -5, 7), "image 7: queries is stored as"),
    (STOCHASTIC, put("margin", 9.0, 8, 0), "image 8: margin[0] is stored as 9.0"),
    (STOCHASTIC, put("clean_pred", 12, 9), "image 9: clean_pred is stored as 12"),
    (STOCHASTIC, put("unfinished", True, 11), "image 11: unfinished is stored as True"),
    (LOGITS, put("logits", 0.5, 9, 0, 4), "image 9: logits[0, 4] is stored as 0.5"),
    (DRAWN, put("logits", 0.5, 9, 3, 2), "image 9: logits[3, 2] is stored as 0.5"),
    (OF_MODEL, put("score", 5.0, 1), "image 1: score is stored as 5.0"),
    (TRIVIAL, put("score", 0.3125, 1), "image 1: score is stored as 0.3125"),
]


@pytest.fixture(scope="module")
def tampered(
    stored: tuple[Path, Run], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Verification]:
    """A copy of the run with all planted changes in it, and what becomes of it."""
    runs = tmp_path_factory.mktemp("tampered") / "runs"
    shutil.copytree(stored[0], runs)
    for facts, change, _ in PLANTED:
        tamper(runs, change, **facts)
    return runs, check(runs)


@pytest.mark.parametrize(("facts", "change", "words"), PLANTED)
def test_a_planted_change_is_found(
    tampered: tuple[Path, Verification], facts: dict[str, Any], change: Change, words: str
) -> None:
    runs, result = tampered
    lines = found_in(result)[shard_of(runs, **facts)["key"]]
    assert any(line.startswith(words) for line in lines), lines
    assert not result.holds


def test_nothing_else_is_found(tampered: tuple[Path, Verification]) -> None:
    runs, result = tampered
    named: dict[str, set[str]] = {}
    for facts, _, words in PLANTED:
        named.setdefault(shard_of(runs, **facts)["key"], set()).add(words.partition(":")[0])
    found = {
        key: {line.partition(":")[0] for line in lines} for key, lines in found_in(result).items()
    }
    assert found == named


def test_an_image_beyond_the_sample_is_not_looked_at(copied: Path) -> None:
    tamper(copied, put("label", 11, 7), **DETERMINISTIC)
    assert not check(copied).holds
    kept = [s.finding for s in check(copied, sample=2).shards]
    assert not any(f.differences for f in kept)


def test_a_verdict_within_the_tolerance_is_a_tie(stored: tuple[Path, Run], copied: Path) -> None:
    shard = Store(stored[0]).read_shard(shard_of(copied, **DETERMINISTIC)["key"])
    assert shard is not None
    margins = np.abs(shard.arrays["margin"][:, 0])
    data = bench.load_dataset("digits", limit=LIMIT)
    with torch.no_grad():
        logits = bench.load_model("jem")(torch.from_numpy(data.images).float() / data.images.max())
    top = logits.topk(2).values
    usual = float((top[:, 0] - top[:, 1]).median())
    row, margin = int(margins.argmin()), float(margins.min()) / usual
    assert margin < 0.8

    def turn(arrays: dict[str, Array]) -> None:
        arrays["broken"][row, 0] ^= True
        wrong = arrays["clean_pred"] != arrays["label"]
        arrays["smallest_eps"] = smallest_eps(arrays["broken"], (0.05, 0.15), wrong)

    key = tamper(copied, turn, **DETERMINISTIC)
    for tolerance, ties in ((0.9 * margin, 0), (1.1 * margin, 1)):
        result = check(copied, tolerance=tolerance)
        (found,) = [s.finding for s in result.shards if s.key == key]
        assert found.ties == ties
        assert len(found.differences) == 1 - ties


Records = list[dict[str, Any]]


def rewrite(runs: Path, change: Callable[[Records], Records | None]) -> None:
    """Change the records of the run."""
    (path,) = runs.glob("*/records.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines = change(lines) or lines
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def of_jem(records: Records, metric: str = "robust_accuracy", eps: float = 0.15) -> dict[str, Any]:
    (record,) = [
        r
        for r in records
        if (r["label"], r["metric"], r["settings"].get("eps")) == ("jem", metric, eps)
    ]
    return record


def put_in(name: str, value: Any) -> Callable[[Records], None]:
    def change(records: Records) -> None:
        of_jem(records)[name] = value

    return change


def say_na(records: Records) -> None:
    of_jem(records).update(value=None, low=None, high=None, status="n/a", note="not applicable")


def another_mean(records: Records) -> None:
    of_jem(records)["details"]["mean_queries"] = 1e6


def another_option(records: Records) -> None:
    of_jem(records)["settings"]["non_default"]["robustness"]["steps"] = 100


def twice(records: Records) -> Records:
    return [*records, of_jem(records)]


ROW = "record of jem, robustness/linf, robust_accuracy at eps 0.15: "
FORGED: list[tuple[Callable[[Records], Records | None], list[str]]] = [
    (put_in("value", 0.9375), ["value is stored as 0.9375"]),
    (put_in("note", "all is well"), ["note is stored as all is well, the shards give None"]),
    (put_in("level", 0.5), ["level is stored as 0.5"]),
    (put_in("seed", 7), ["seed is stored as 7"]),
    (another_mean, ["details.mean_queries is stored as 1000000.0"]),
    (another_option, ["settings.non_default.robustness.steps is stored as 100"]),
    (say_na, ["high is", "low is", "note is", "status is stored as n/a", "value is"]),
    (
        lambda records: [r for r in records if r is not of_jem(records)],
        ["is not among the records"],
    ),
    (lambda records: of_jem(records)["settings"].update(steps=100), ["is not among", "no shard"]),
    (twice, ["no shard gives it"]),
]


@pytest.mark.parametrize(("change", "words"), FORGED)
def test_records_that_are_not_what_the_shards_give_are_named(
    stored: tuple[Path, Run], copied: Path, change: Any, words: list[str]
) -> None:
    rewrite(copied, change)
    (path,) = copied.glob("*/records.jsonl")
    again = records_of_run(stored[0])
    found = sorted(record_differences(Store(copied).read_records(path.parent.name), again))
    assert len(found) == len(words)
    for line, word in zip(found, words, strict=True):
        assert line.startswith(ROW + word)


def records_of_run(runs: Path) -> list[Record]:
    (run_id,) = Store(runs).runs()
    return Store(runs).read_records(run_id)


def test_a_run_whose_records_are_forged_does_not_hold(copied: Path) -> None:
    rewrite(copied, another_mean)
    result = check(copied, sample=1)
    assert found_in(result) == {}
    (line,) = result.differences
    assert line.startswith(ROW + "details.mean_queries")
    assert not result.holds
    (path,) = copied.glob("*/records.jsonl")
    path.unlink()
    assert len(check(copied, sample=1).differences) > 10


def test_rounding_and_folders_are_no_difference(stored: tuple[Path, Run]) -> None:
    (record, *_) = records_of_run(stored[0])
    settings = {**record.settings, "non_default": {"ood": {"sets": ["npz:a.npz", "folder:b?x=1"]}}}
    typed = replace(record, settings=settings, note="'a.npz' is absent, for eps 8/255")
    moved = {**settings, "non_default": {"ood": {"sets": ["npz:/r/a.npz", "folder:/r/s/b?x=1"]}}}
    known = replace(
        typed, settings=moved, note="'/r/a.npz' is absent, for eps 8/255", seconds=9.0, versions={}
    )
    assert record.value is not None
    assert list(record_differences([typed], [known])) == []
    assert list(record_differences([typed], [replace(known, value=record.value + 1e-12)])) == []
    other = replace(known, note="'/r/a.npz' is absent, for eps 4/255")
    assert len(list(record_differences([typed], [other]))) == 1


class Density(nn.Module):
    """It has no classes, and so no accuracy."""

    def log_density(self, x: Tensor) -> Tensor:
        return -x.flatten(1).square().sum(dim=1)


def test_rows_without_a_number_are_compared_and_said(tmp_path: Path) -> None:
    net = Density()
    run = bench.run(net, suite="accuracy", limit=8, runs=tmp_path, device="cpu")
    assert {r.status for r in run.records} == {"n/a"}
    request = request_of_run(tmp_path / run.run_id / "run.json")
    machine = Machine(runs=tmp_path, device="cpu")
    result = verify(run.run_id, request, machine, module=net)
    assert result.holds
    (remark,) = result.remarks
    assert "images 0 to 7: n/a: " in remark
    assert "density without classes" in remark
    rewrite(tmp_path, lambda records: records[0].update(note="it was too good"))
    assert not verify(run.run_id, request, machine, module=net).holds


def test_a_missing_and_a_damaged_shard_are_named(copied: Path) -> None:
    gone, damaged = (
        copied / "shards" / f"{shard_of(copied, **facts)['key']}.npz"
        for facts in (DETERMINISTIC, STOCHASTIC)
    )
    gone.unlink()
    damaged.write_bytes(damaged.read_bytes()[:100])
    result = check(copied)
    assert set(found_in(result)) == {gone.stem, damaged.stem}
    assert all("missing or damaged" in lines[0] for lines in found_in(result).values())


def test_a_row_too_few_is_found(copied: Path) -> None:
    def drop(arrays: dict[str, Array]) -> None:
        arrays["queries"] = arrays["queries"][:-1]

    key = tamper(copied, drop, **DETERMINISTIC)
    assert "one row for each" in found_in(check(copied))[key][0]


def test_other_weights_and_other_images_are_refused(copied: Path) -> None:
    (path,) = copied.glob("*/run.json")
    header = json.loads(path.read_text())
    path.write_text(json.dumps({**header, "dataset_sha256": "0" * 64}))
    with pytest.raises(CheckpointError, match="put its images back"):
        check(copied)
    header["models"][0]["weights_sha256"] = "0" * 64
    path.write_text(json.dumps(header))
    with pytest.raises(CheckpointError, match=r"'jem' has weights .*put its weights back"):
        check(copied)


def test_shards_that_nothing_plans_any_more_are_refused(copied: Path) -> None:
    (path,) = copied.glob("*/run.json")
    header = json.loads(path.read_text())
    header["shards"][0]["measure"] = "Forgotten"
    path.write_text(json.dumps(header))
    with pytest.raises(StoreError, match="1 shards of the run are not what this version"):
        check(copied)


def test_code_that_changed_is_said_and_the_run_checked_all_the_same(copied: Path) -> None:
    store = Store(copied)
    (path,) = copied.glob("*/run.json")
    header = json.loads(path.read_text())
    for entry in header["shards"]:
        shard = store.read_shard(entry["key"])
        assert shard is not None
        entry["key"] = entry["key"][::-1]
        store.write_shard(entry["key"], shard.arrays, shard.seconds)
    path.write_text(json.dumps(header))
    result = check(copied)
    assert result.holds
    assert result.remarks == (
        f"the code has changed since {len(result.shards)} shards were stored",
    )


def test_an_array_that_is_gone_is_named(copied: Path) -> None:
    for facts, name in ((DETERMINISTIC, "broken"), (STOCHASTIC, "rank"), (LOGITS, "labels")):
        key = tamper(copied, lambda arrays, name=name: arrays.pop(name), **facts)  # type: ignore[misc]
        result = check(copied)
        assert any(name in line for line in found_in(result)[key])
        assert result.differences == ("cannot be compared: a shard does not hold what they need",)


class Tiny(nn.Module):
    """The shipped classifier, its logits far below any fixed tolerance."""

    def __init__(self) -> None:
        super().__init__()
        self.model = bench.load_model("baseline")

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = 1e-7 * self.model(x)
        return logits


class TinyDrawn(Tiny):
    stochastic = True

    def sample_logits(self, x: Tensor, noise: Noise) -> Tensor:
        return self.forward(x) + 1e-8 * noise.normal(10)


def all_right(arrays: dict[str, Array]) -> None:
    if "logits" in arrays:
        arrays["logits"][..., :] = 0
        np.put_along_axis(arrays["logits"], arrays["labels"][:, None, None], 1e-6, axis=2)
    elif "drawn" in arrays:
        arrays["drawn"][:] = arrays["label"][:, None, None]
    else:
        arrays["broken"][:] = (arrays["clean_pred"] != arrays["label"])[:, None]


@pytest.mark.parametrize("kind", [Tiny, TinyDrawn])
@pytest.mark.parametrize("measure", ["Attacked", "Logits"])
def test_small_logits_make_no_ties(tmp_path: Path, kind: type[nn.Module], measure: str) -> None:
    net, small = kind(), {"gradients": ["straight-through"]}
    settings = {"robustness": SETTINGS["robustness"] | small}
    suites = ["accuracy", "robustness"]
    run = bench.run(net, suites, limit=LIMIT, settings=settings, runs=tmp_path, device="cpu")
    assert not run.failed
    request = request_of_run(tmp_path / run.run_id / "run.json")
    machine = Machine(runs=tmp_path, device="cpu", micro_batch=5)
    assert verify(run.run_id, request, machine, module=net).holds
    key = tamper(tmp_path, all_right, measure=measure)
    result = verify(run.run_id, request, machine, module=net)
    assert len(found_in(result)[key]) > 2


class Rounding(nn.Module):
    """The shipped classifier behind 8 bits: it has no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.model = bench.load_model("baseline")

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model((x * 255).round() / 255)
        return logits


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, nn.Module]:
    """A run whose checks find masked gradients."""
    runs, net = tmp_path_factory.mktemp("masked"), Rounding()
    settings = {"robustness": SETTINGS["robustness"] | {"checks": True, "linf": [0.05]}}
    run = bench.run(net, "robustness", limit=8, settings=settings, runs=runs, device="cpu")
    (record,) = [r for r in run.records if r.metric == "masking_checks"]
    assert "8 zero gradient" in str(record.note)
    return runs, net


def whitewash(arrays: dict[str, Array]) -> None:
    arrays["flat_ce"][:] = arrays["flat_margin"][:] = False
    arrays["huge_right"][:], arrays["black_right"][:], arrays["noise_right"][:] = 0, 1, 1
    arrays["steps_margin"] -= np.array([20, 40, 60, 80.0])


def fill(name: str, value: Any) -> Change:
    return lambda arrays: arrays[name].fill(value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (whitewash, "image 0: flat_ce is stored as False"),
        (fill("flat_margin", False), "image 0: flat_margin is stored as False"),
        (fill("clean_right", 0.4), "image 0: clean_right is stored as 0.4"),
        (fill("differs", True), "image 0: differs is stored as True"),
        (fill("declared", True), "image 0: declared is stored as True"),
        (fill("unkeyed", True), "image 0: unkeyed is stored as True"),
        (fill("probabilities", True), "image 0: probabilities is stored as True"),
        (fill("unfinished", True), "image 0: unfinished is stored as True"),
        (lambda arrays: arrays.pop("black_right"), "holds no black_right"),
        (lambda arrays: arrays.pop("flat_ce"), "holds no flat_ce"),
    ],
)
def test_evidence_is_asked_of_the_model_again(
    masked: tuple[Path, nn.Module], tmp_path: Path, change: Change, words: str
) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(masked[0], runs)
    key = tamper(runs, change, measure="Masking")
    (run_id,) = Store(runs).runs()
    request = request_of_run(runs / run_id / "run.json")
    result = verify(run_id, request, Machine(runs=runs, device="cpu"), module=masked[1])
    assert any(line.startswith(words) for line in found_in(result)[key])


def test_what_only_a_search_could_tell_is_named(masked: tuple[Path, nn.Module]) -> None:
    runs, net = masked
    (run_id,) = Store(runs).runs()
    request = request_of_run(runs / run_id / "run.json")
    result = verify(run_id, request, Machine(runs=runs, device="cpu"), module=net)
    assert result.holds
    unchecked = {s.what: set(s.finding.unchecked) for s in result.shards}
    assert unchecked["pgd-linf"] == {"queries", "changed"}
    assert {"black_right", "steps_margin", "grid_right"} < unchecked["masking/linf/digits"]
    assert not {"flat_ce", "clean_right", "differs"} & unchecked["masking/linf/digits"]


@pytest.mark.slow
def test_the_suites_with_their_own_options(tmp_path: Path) -> None:
    """With masking checks, other attacks, and the nearest adversarial image."""
    robustness = SETTINGS["robustness"] | {
        "attacks": ["pgd-linf", "square-linf", "ddn-l2"],
        "l2": [0.5],
        "checks": True,
    }
    run = bench.run(
        "jem",
        ["robustness", "transfer", "distal", "calibration"],
        refine_steps=(0, 1),
        limit=4,
        settings={"robustness": robustness, "square-linf": {"queries": 20}},
        runs=tmp_path,
        device="cpu",
    )
    assert not run.failed, [r.note for r in run.records if r.status == "failed"]
    result = check(tmp_path)
    assert found_in(result) == {}
    assert result.holds


def test_a_model_in_memory_is_verified_where_it_is(tmp_path: Path) -> None:
    linear = nn.Linear(64, 10)
    net = nn.Sequential(nn.Flatten(), linear)
    run = bench.run(net, suite="accuracy", limit=8, runs=tmp_path, device="cpu")
    request = request_of_run(tmp_path / run.run_id / "run.json")
    machine = Machine(runs=tmp_path, device="cpu")
    with pytest.raises(InputError, match="in memory"):
        verify(run.run_id, request, machine)
    assert verify(run.run_id, request, machine, module=net).holds
    with torch.no_grad():
        linear.weight[0] += 0.1
    with pytest.raises(CheckpointError, match="put its weights back"):
        verify(run.run_id, request, machine, module=net)


class Dropping(nn.Module):
    """Random without saying so."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.linear(nn.functional.dropout(x.flatten(1), 0.5, training=True))
        return logits


def test_draws_that_belong_to_the_batch_are_drawn_for_all_of_it(tmp_path: Path) -> None:
    net = Dropping()
    run = bench.run(net, suite="accuracy", limit=8, runs=tmp_path, device="cpu")
    request = request_of_run(tmp_path / run.run_id / "run.json")
    machine = Machine(runs=tmp_path, device="cpu")
    result = verify(run.run_id, request, machine, module=net, sample=3)
    assert result.holds
    assert [s.finding.images for s in result.shards] == [8]


def test_evidence_of_a_model_that_is_random_unasked_is_found_again() -> None:
    ref = ModelRef(spec=Dropping(), dataset="digits", title="a model")
    data = DataRef(spec="digits", limit=4)
    images = load_images(data)
    assert images.labels is not None
    few = {"grid_steps": 1, "queries": 3, "noise_draws": 3, "eot_samples": 1}
    measure = Masking(data=data, norm=Norm.LINF, eps=(0.05,), **few)
    model = load(ref, images)
    batch = Batch(to_tensor(images.images, torch.device("cpu")), torch.tensor(images.labels), 10)
    context = Context(noise=bound(0, measure.name, range(4)))
    arrays = measure(model, batch, context)
    assert arrays["differs"].all()
    finding = recheck(measure, model, batch, context, Stored(arrays, np.arange(4)))
    assert finding.differences == []
    assert "white_right" in finding.unchecked


def test_a_sample_must_be_of_images(stored: tuple[Path, Run]) -> None:
    with pytest.raises(InputError, match="at least one image"):
        check(stored[0], sample=0)


def test_the_command_prints_a_table_and_fails_where_something_differs(
    cli: Callable[..., tuple[int, str, str]], copied: Path
) -> None:
    status, out, _ = cli("verify", "--runs", copied, "--device", "cpu", "--sample", "3")
    assert status == 0, out
    assert "records: all as stored, but for what is not rechecked" in out
    assert "jem, pgd-linf: not rechecked: changed, queries" in out
    key = tamper(copied, flip_class, **STOCHASTIC)
    status, out, _ = cli("verify", "--runs", copied, "--device", "cpu")
    assert status == 1
    assert f"{key}.npz" in out
    assert "image 2: drawn[1]" in out
    assert "NOT as stored" in out


def test_what_is_verified_was_computed_by_another_process(
    spawn: Callable[..., Any], cli: Callable[..., tuple[int, str, str]], model_file: Path
) -> None:
    """Also under a factory of the user's: weights and code are read from the file again."""
    run = ["--model", "py:model.py:make", "--suite", "accuracy", "--limit", "8", "--device", "cpu"]
    assert spawn("run", *run).wait() == 0
    assert cli("verify", "--device", "cpu")[0] == 0
    text = model_file.read_text()
    model_file.write_text(text.replace("/ self.temperature", "/ (1.01 * self.temperature)"))
    status, out, _ = cli("verify", "--device", "cpu")
    assert status == 1
    assert "logits" in out
    assert "note: the code has changed since 1 shards were stored" in out
