"""A run: computed once, reduced from what is stored, and never from another model's results."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss, roc_auc_score
from torch import Tensor, nn

import bench
from bench.errors import BenchError, InputError, ModelError
from bench.executors import Lost, local, make_executor
from bench.planning import ShardPlan, plan_run
from bench.records import Record
from bench.report import render
from bench.request import Request
from bench.runner import Run
from bench.store import Store
from bench.tasks.base import identity
from bench.tasks.detection import Detection
from bench.types import Array

OOD = {"ood": {"sets": ["interp", "uniform"]}}


def run(model: Any = "py:model.py:make", suite: Any = "accuracy", **options: Any) -> Run:
    settings = {"settings": OOD} if suite == "ood" else {}
    return bench.run(model, suite, **{"runs": "runs", "limit": 30, **settings, **options})


def shards(measure: str) -> list[dict[str, Any]]:
    """The stored arrays that have this name among them."""
    found = []
    for path in sorted(Path("runs/shards").iterdir()):
        with np.load(path) as file:
            if measure in file.files:
                found.append({name: file[name] for name in file.files})
    return found


def without_seconds(records: tuple[Record, ...]) -> list[dict[str, Any]]:
    return [{**r.as_dict(), "seconds": None} for r in records]


def test_a_second_run_computes_nothing(model_file: Path) -> None:
    first = run(suite="ood")
    assert first.computed > 0
    assert not first.failed
    second = run(suite="ood")
    assert (second.computed, second.stored) == (0, first.computed)
    assert second.records == first.records


def test_auroc_is_that_of_the_stored_scores(model_file: Path) -> None:
    """Scores on disk, joined by the plan's keys, reduced again by scikit-learn."""
    records = run(suite="ood", limit=300).records
    request = Request(models=("py:model.py:make",), suites=("ood",), limit=300, settings=OOD)
    store = Store(Path("runs"))
    expected = {}
    for task in plan_run(request, []).models[0].tasks:
        if isinstance(task.task, Detection):
            for score in task.task.scores:
                inside, outside = (
                    joined(store, task.shards[identity(m)])
                    for m in task.task.measures
                    if m.settings()["score"] == score
                )
                truth = np.r_[np.ones(len(inside)), np.zeros(len(outside))]
                value = roc_auc_score(truth, np.r_[inside, outside])
                expected[task.task.name, score] = value, len(inside), len(outside)
    assert len(expected) == 2 * 7
    for record in records:
        if record.metric == "auroc" and "mean_of" not in record.settings:
            value, n, n_ood = expected.pop((record.task, record.settings["score"]))
            assert record.value == pytest.approx(value, abs=1e-12)
            assert (record.n, record.n_ood) == (n, n_ood)
    assert not expected


def joined(store: Store, shards: tuple[ShardPlan, ...]) -> Array:
    found = [store.read_shard(shard.key) for shard in shards]
    return np.concatenate([shard.arrays["score"] for shard in found if shard is not None])


def test_accuracy_and_nll_are_those_of_the_stored_logits(model_file: Path) -> None:
    records = {r.metric: r for r in run(suite="accuracy", limit=300).records}
    parts = sorted(shards("logits"), key=lambda part: -len(part["labels"]))
    logits = np.concatenate([part["logits"][:, 0] for part in parts]).astype(np.float64)
    labels = np.concatenate([part["labels"] for part in parts])
    accuracy = float((logits.argmax(axis=1) == labels).mean())
    assert 0.7 < accuracy < 1  # or the tests built on this model would show little
    assert records["accuracy"].value == accuracy
    probs = torch.from_numpy(logits).softmax(dim=1).numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # sums that are 1 to rounding
        expected = log_loss(labels, probs, labels=range(10))
    assert records["nll"].value == pytest.approx(expected, abs=1e-12)


def test_an_edited_file_runs_again_though_its_weights_are_equal(model_file: Path) -> None:
    first = run()
    text = model_file.read_text()
    line = "return (self.features(x) @ self.weight.T + self.bias) / self.temperature"
    assert line in text
    model_file.write_text(text.replace(line, line + " / 2"))
    second = run()
    assert second.computed == 1
    assert second.records[0].weights_sha256 == first.records[0].weights_sha256
    assert [r.metric for r in first.records] == ["accuracy", "nll", "brier"]
    assert second.records[0].value == first.records[0].value
    assert second.records[1].value != first.records[1].value
    model_file.write_text(text)
    third = run()
    assert third.computed == 0
    assert third.records == first.records


def test_a_changed_attribute_of_a_module_in_memory_runs_again(model_file: Path) -> None:
    """Two calls in one process: the worker must not answer with the model of the first."""
    net = bench.load_model("py:model.py:make")
    first = run(net)
    net.temperature = 10.0  # type: ignore[assignment]
    second = run(net)
    assert second.computed == 1
    cold, warm = ({r.metric: r.value for r in made.records} for made in (first, second))
    assert warm["accuracy"] == cold["accuracy"]
    assert cold["nll"] is not None
    assert warm["nll"] is not None
    assert abs(warm["nll"] - cold["nll"]) > 0.1


def test_retrained_weights_in_the_same_file_run_again(model_file: Path) -> None:
    """As in a notebook: train, run, train, run."""
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        net = bench.NETWORKS["resnet-tiny"]((1, 8, 8), 10)
        torch.save(net.state_dict(), "w.pt")
        found.append(run("ckpt:resnet-tiny@w.pt"))
        module = bench.load_model("ckpt:resnet-tiny@w.pt")
        data = bench.load_dataset("digits", limit=30)
        with torch.no_grad():
            predicted = module(torch.from_numpy(data.images)).argmax(dim=1).numpy()
        assert found[-1].records[0].value == float((predicted == data.labels).mean())
    assert [f.computed for f in found] == [1, 1]
    assert found[0].records[1].value != found[1].records[1].value


def test_images_that_changed_in_their_file_are_read_again(model_file: Path) -> None:
    data = bench.load_dataset("digits", limit=20)
    assert data.labels is not None
    values = []
    for labels in (data.labels, (data.labels + 1) % 10):
        np.savez("d.npz", x=data.images, y=labels)
        made = run("py:model.py:make", dataset="npz:d.npz", limit=None)
        values.append(made.records[0].value)
    assert values[0] is not None
    assert values[0] > 0.7
    assert values[1] is not None
    assert values[1] < 0.2


def test_a_factory_that_builds_another_model_each_time_is_refused(model_file: Path) -> None:
    with pytest.raises(ModelError, match=r"unseeded weights.*seed the factory or load weights"):
        run("py:model.py:unseeded")
    assert not list(Path("runs/shards").iterdir())


def test_rows_of_a_limited_run_are_set_apart(model_file: Path) -> None:
    limited, full = run(limit=30), run(limit=None)
    assert {r.settings["limit"] for r in limited.records} == {30}
    assert all("limit" not in r.settings for r in full.records)
    assert limited.run_id != full.run_id
    assert [r.n for r in limited.records] == [30] * 3
    assert [r.n for r in full.records] == [500] * 3
    text = render([*full.records, *limited.records], "markdown")
    assert "### accuracy on digits — set apart: limit 30" in text
    assert "### accuracy on digits\n" in text


def test_slices_are_shared_between_limits(model_file: Path) -> None:
    """A larger run begins with what a smaller one stored, where the slices agree."""
    run(limit=250)
    grown = run(limit=None)
    assert (grown.computed, grown.stored) == (1, 1)


def test_suites_share_what_they_need_alike(model_file: Path) -> None:
    both = run(suite=["accuracy", "calibration"])
    assert both.computed == 1


def test_the_callers_module_and_random_state_stay_as_they_were(model_file: Path) -> None:
    net = bench.load_model("py:model.py:make").train()
    for parameter in net.parameters():
        parameter.grad = torch.ones_like(parameter)
    torch.manual_seed(5)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    few = {
        "robustness": {"steps": 2, "linf": 0.1, "l2": 0.5, "checks": False},
        "ood": {"sets": ["constant"], "n": 40},
    }
    run(net, suite=["accuracy", "ood", "robustness"], limit=8, threads=2, settings=few)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads
    assert net.training
    for parameter in net.parameters():
        assert parameter.requires_grad
        assert parameter.grad is not None
        assert bool(parameter.grad.eq(1).all())


def test_a_failure_of_one_model_leaves_the_others(model_file: Path) -> None:
    made = run(
        ["py:model.py:broken?how=some-nan", "py:model.py:make"], suite=["accuracy", "calibration"]
    )
    states = {(r.label, str(r.status)) for r in made.records}
    assert len(states) == 2
    assert {state for _, state in states} == {"ok", "failed"}
    reason = next(r.note for r in made.records if r.status == "failed")
    assert reason is not None
    assert "NaN or infinity for" in reason
    header = json.loads(Path(f"runs/{made.run_id}/run.json").read_text())
    assert header["complete"] is False
    assert any("ModelError" in trace for trace in header["traces"])


class Coin(nn.Module):
    """Random without saying so, like a net whose dropout stays on."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(64, 10))

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.weight + torch.randn(len(x), 10)


def test_a_random_model_is_found_out_and_repeats(model_file: Path) -> None:
    first = run(Coin(), suite="accuracy")
    assert first.records[0].settings["draws"] == 8
    Path("runs").rename("other")
    second = run(Coin(), suite="accuracy")
    assert second.computed == 1
    assert without_seconds(second.records) == without_seconds(first.records)


def test_a_module_in_memory_stays_in_this_process(model_file: Path) -> None:
    with pytest.raises(InputError, match="cannot take a model in memory to its workers"):
        run(bench.load_model("py:model.py:make"), executor="local:2")


def test_records_have_every_field_of_the_design(model_file: Path) -> None:
    record = json.loads(run(suite="ood").records[0].as_json())
    names = "schema run model label variant network weights_sha256 dataset suite suite_version"
    names += " protocol task metric value low high level interval n n_ood settings seed versions"
    names += " seconds status note"
    assert set(names.split()) <= set(record)
    assert record["schema"] == 1
    assert record["level"] == 0.95
    assert record["low"] <= record["value"] <= record["high"]
    assert set(record["settings"]) >= {"ood_dataset", "ood_group", "score"}
    assert {"bench", "torch"} <= set(record["versions"])


@pytest.mark.parametrize("name", ["loca", "ray", "local:0", "local:x", "local:-1"])
def test_executors_by_another_name_are_refused(name: str) -> None:
    with pytest.raises(BenchError, match=r"executor"):
        make_executor(name, 1, 0)


class FakePool:
    """A pool whose every worker dies of job 3, as a kernel kills what takes too much memory."""

    rounds: list[list[int]]

    def __init__(self, **options: Any) -> None:
        self.given: list[int] = []
        FakePool.rounds.append(self.given)
        self._processes: dict[int, Any] = {}

    def submit(self, function: Callable[[Any], Any], job: int) -> Any:
        self.given.append(job)
        future: Future[Any] = Future()
        if 3 in self.given:
            future.set_exception(BrokenProcessPool("killed"))
        else:
            future.set_result(function(job))
        return future

    def shutdown(self, **options: Any) -> None:
        self.given.append(-1)


def test_only_the_deadly_job_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    FakePool.rounds = []
    monkeypatch.setattr(local, "ProcessPoolExecutor", FakePool)
    executor = local.Spawned(2, threads=1, retries=2)
    results = dict(executor.run(str, list(range(8))))
    lost = {number for number, result in results.items() if isinstance(result, Lost)}
    assert lost == {3}
    assert results == {n: results[n] if n == 3 else str(n) for n in range(8)}
    tries = sum(job == 3 for given in FakePool.rounds for job in given)
    assert tries == 3
    assert "died 3 times" in results[3].reason
