"""Suite ``distal``: noise climbs to certainty, and the density is asked what it thinks of it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bench
from bench.cli.requests import request_of_run
from bench.context import Context
from bench.data import load_dataset, to_tensor
from bench.errors import InputError
from bench.models import ModelRef, load
from bench.noise import bound
from bench.request import Machine
from bench.store import Store
from bench.tasks.base import Batch, DataRef, Failure, Reduction, identity
from bench.tasks.distal import Distal, DistalTask
from bench.tasks.scoring import Scored
from bench.types import Array, Status
from bench.verifying_runs import verify

NOISE = DataRef("uniform", like="digits", n=10)


class Slope(nn.Module):
    """Two classes, logits (s, -s) with s = w.x; pixels of weight 0 do nothing."""

    def __init__(self) -> None:
        super().__init__()
        weight = torch.linspace(-1, 1, 64)
        weight[20:30] = 0
        self.weight = nn.Parameter(weight)

    def forward(self, x: Tensor) -> Tensor:
        value = x.flatten(1) @ self.weight
        return torch.stack([value, -value], dim=1)


class Shaking(Slope):
    """The same with a weight that shakes, from keyed noise."""

    stochastic = True

    def sample_logits(self, x: Tensor, noise: Any) -> Tensor:
        logits: Tensor = self(x) * (1 + noise.normal(1))
        return logits


def measured(model: nn.Module, micro_batch: int = 128, **options: Any) -> dict[str, Array]:
    images = load_dataset("uniform", like="digits", n=10)
    batch = Batch(to_tensor(images.images), None, 2)
    context = Context(noise=bound(0, "distal", range(10)), micro_batch=micro_batch)
    loaded = load(ModelRef(model, "digits", title="slope"), load_dataset("digits"))
    return dict(Distal(data=NOISE, **options)(loaded, batch, context))


def test_on_a_linear_model_the_end_is_a_corner_of_the_box() -> None:
    found = measured(Slope(), steps=150)
    weight = Slope().weight.detach()
    start = to_tensor(load_dataset("uniform", like="digits", n=10).images).flatten(1)
    for i in range(10):
        sign = weight if i % 2 == 0 else -weight
        corner = torch.where(weight == 0, start[i], (sign > 0).float())
        torch.testing.assert_close(torch.from_numpy(found["x_distal"][i]).flatten(), corner)
        s = float(corner.double() @ weight.double())
        probability = 1 / (1 + math.exp(-2 * abs(s)))
        assert found["target"][i] == i % 2
        assert found["probability"][i] == pytest.approx(probability, abs=1e-6)
        assert found["confidence"][i] == pytest.approx(probability, abs=1e-6)
        assert found["log_density"][i] == pytest.approx(np.logaddexp(s, -s), rel=1e-6)


def test_few_steps_do_not_get_there() -> None:
    found = measured(Slope(), steps=2, step_size=0.01)
    start = load_dataset("uniform", like="digits", n=10).images
    far = np.abs(found["x_distal"] - to_tensor(start).numpy())
    assert far.max() <= 0.02 + 1e-6


@pytest.mark.parametrize("model", [Slope(), Shaking()])
def test_an_image_does_not_depend_on_its_batch(model: nn.Module) -> None:
    whole = measured(model, steps=5, draws=3)
    for micro_batch in (3, 12):
        for name, values in measured(model, micro_batch, steps=5, draws=3).items():
            np.testing.assert_allclose(values, whole[name], rtol=1e-5, atol=1e-6, err_msg=name)


def test_the_density_is_asked_of_the_noisy_image_under_the_papers_protocol() -> None:
    quiet, noisy = (measured(Slope(), steps=5, input_noise=s) for s in (0.0, 0.015))
    np.testing.assert_array_equal(quiet["x_distal"], noisy["x_distal"])
    assert 0 < np.abs(quiet["log_density"] - noisy["log_density"]).max() < 1


def test_rows_by_hand() -> None:
    measure, real = Distal(data=NOISE), Scored(data=DataRef("digits"), score="log-density")
    task = DistalTask(measure, real)
    distal = {
        "probability": np.array([0.95, 0.5, 0.9, 0.2]),
        "confidence": np.array([0.95, 0.5, 0.9, 0.65]),
        "log_density": np.array([1.0, 2.0, 3.0, 4.0]),
    }
    results = {identity(measure): distal, identity(real): {"score": np.array([3.5, 4.5, 5.0])}}
    rows = {r.metric: r for r in task.rows(results, Reduction())}
    assert rows["distal_confidence"].value == pytest.approx(0.75)
    assert rows["distal_confidence"].details == {"confident": 0.5}
    assert rows["distal_log_density"].value == 2.5
    # t(0.975, 3) = 3.18245; the standard deviation of 1, 2, 3, 4 is 1.29099.
    assert rows["distal_log_density"].high == pytest.approx(2.5 + 3.18245 * 1.29099 / 2, rel=1e-5)
    assert rows["real_log_density"].value == pytest.approx(13 / 3)
    assert rows["auroc"].value == pytest.approx(11 / 12)
    assert (rows["auroc"].n, rows["auroc"].n_ood) == (3, 4)
    reason = Failure(Status.FAILED, "because")
    assert [r.metric for r in task.missing(reason)] == list(rows)
    assert {r.note for r in task.rows({**results, identity(real): reason}, Reduction())} == {
        "because"
    }


class Density(nn.Module):
    def log_density(self, x: Tensor) -> Tensor:
        return -x.flatten(1).square().sum(dim=1)


def test_a_density_without_classes_says_so(tmp_path: Path) -> None:
    run = bench.run(Density(), "distal", limit=4, runs=tmp_path, device="cpu")
    assert {r.status for r in run.records} == {Status.NOT_APPLICABLE}
    assert all("no logits" in (r.note or "") for r in run.records)


def test_the_images_are_stored_and_verified(tmp_path: Path) -> None:
    few = {"distal": {"steps": 60, "step_size": 0.02}}
    run = bench.run("jem", "distal", limit=20, settings=few, runs=tmp_path, device="cpu")
    by_metric = {r.metric: r for r in run.records}
    assert by_metric["distal_confidence"].value > 0.9  # type: ignore[operator]
    request = request_of_run(tmp_path / run.run_id / "run.json")
    machine, store = Machine(runs=tmp_path, device="cpu"), Store(tmp_path)
    assert verify(run.run_id, request, machine).holds
    header = json.loads((tmp_path / run.run_id / "run.json").read_text())
    (key,) = [s["key"] for s in header["shards"] if s["measure"] == "Distal"]
    shard = store.read_shard(key)
    assert shard is not None
    assert shard.arrays["x_distal"].shape == (20, 1, 8, 8)
    np.testing.assert_array_equal(shard.arrays["target"], np.arange(20) % 10)
    for name, words in (("x_distal", "image 3: confidence"), ("confidence", "image 3: confidence")):
        changed = {n: a.copy() for n, a in shard.arrays.items()}
        changed[name][3] = 0.5
        store.write_shard(key, changed, shard.seconds)
        found = verify(run.run_id, request, machine)
        (lines,) = [s.finding.differences for s in found.shards if s.key == key]
        assert any(line.startswith(words) for line in lines)


def test_impossible_options_are_told(tmp_path: Path) -> None:
    for options in ({"n": 0}, {"steps": 0}, {"step_size": 0.0}):
        with pytest.raises(InputError, match="distal"):
            bench.run(Slope(), "distal", settings={"distal": options}, runs=tmp_path)
