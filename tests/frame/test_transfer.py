"""Suite ``transfer``: one set of images for every N, none attacked again, none left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bench
from bench.attacking.verifying import margin
from bench.cli.requests import request_of_run
from bench.data import load_dataset, to_tensor
from bench.errors import InputError
from bench.records import Record
from bench.request import Machine
from bench.runner import Run
from bench.store import Store
from bench.tasks.base import DataRef, Reduction, identity
from bench.tasks.draws import mean_interval
from bench.tasks.transfer import Transfer, Transferred
from bench.types import Array, Norm, Status
from bench.verifying_runs import verify

LIMIT = 30
LINF, L2 = (0.05, 0.1, 0.15), (0.25, 0.5)


class Attracted(nn.Module):
    """A linear classifier whose density has its peaks at the clean test images.

    log p(x) = -2 min_i |x - x_i|^2, so one refinement step of 1/4 lands on the nearest x_i.
    """

    mean: Tensor
    peaks: Tensor

    def __init__(self) -> None:
        super().__init__()
        train = load_dataset("digits", "train")
        x, y = to_tensor(train.images).flatten(1), torch.from_numpy(train.labels)
        centred = x - x.mean(dim=0)
        solved = torch.linalg.lstsq(
            centred.T @ centred + 0.1 * torch.eye(64), centred.T @ (nn.functional.one_hot(y) - 0.1)
        )
        self.weight = nn.Parameter(20 * solved.solution)
        self.register_buffer("mean", x.mean(dim=0))
        self.register_buffer("peaks", to_tensor(load_dataset("digits").images).flatten(1))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = (x.flatten(1) - self.mean) @ self.weight
        return logits

    def log_density(self, x: Tensor) -> Tensor:
        return -2 * (x.flatten(1)[:, None] - self.peaks).square().sum(dim=2).amin(dim=1)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Run]:
    runs = tmp_path_factory.mktemp("runs")
    settings = {"transfer": {"linf": list(LINF), "l2": list(L2), "draws": 3, "steps": 20}}
    run = bench.run(
        Attracted(),
        "transfer",
        refine_steps=(0, 1),
        limit=LIMIT,
        settings=settings,
        runs=runs,
        device="cpu",
    )
    return runs, run


def values(run: Run, steps: int, norm: str) -> dict[float, Record]:
    return {
        r.settings["eps"]: r
        for r in run.records
        if r.settings["refine_steps"] == steps and r.settings["norm"] == norm
    }


def arrays(stored: tuple[Path, Run], steps: int, attack: str) -> dict[str, Array]:
    runs, run = stored
    header = json.loads((runs / run.run_id / "run.json").read_text())
    (entry,) = [
        s
        for s in header["shards"]
        if s["settings"]["attack"] == attack and s["label"].endswith("-1") == bool(steps)
    ]
    shard = Store(runs).read_shard(entry["key"])
    assert shard is not None
    return dict(shard.arrays)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_what_breaks_the_network_leaves_a_refinement_that_undoes_it(
    stored: tuple[Path, Run], norm: str
) -> None:
    plain, refined = (values(stored[1], steps, norm) for steps in (0, 1))
    clean = plain[0.0].value
    assert clean is not None
    assert clean > 0.7
    budgets = LINF if norm == "linf" else L2
    assert plain[budgets[-1]].value < 0.3  # type: ignore[operator]
    # The nearest peak is the clean image at these budgets, so nothing is lost.
    assert {r.value for r in refined.values()} == {refined[0.0].value}
    assert refined[0.0].value == pytest.approx(clean, abs=0.1)


def test_every_n_meets_the_same_images(stored: tuple[Path, Run]) -> None:
    zero, one = (arrays(stored, steps, "pgd-linf") for steps in (0, 1))
    np.testing.assert_array_equal(zero["x_adv"], one["x_adv"])
    assert zero["drawn"].shape == (LIMIT, len(LINF), 1)
    assert one["drawn"].shape == (LIMIT, len(LINF), 3)


def test_images_that_are_wrong_when_clean_are_attacked_and_counted_too(
    stored: tuple[Path, Run],
) -> None:
    one = arrays(stored, 0, "pgd-linf")
    wrong = one["clean_drawn"][:, 0] != one["label"]
    assert wrong.any()
    assert (one["linf"][wrong] > 0.9 * np.asarray(LINF)).all()
    assert {r.n for r in stored[1].records} == {LIMIT}


def test_the_images_are_those_of_an_attack_on_the_network_alone(stored: tuple[Path, Run]) -> None:
    """Run to the end at every budget: what just breaks a network transfers badly."""
    net, data = Attracted().eval(), load_dataset("digits", limit=LIMIT)
    found = torch.from_numpy(arrays(stored, 1, "pgd-l2")["x_adv"])
    assert data.labels is not None
    y = torch.from_numpy(data.labels)
    for e, eps in enumerate(L2):
        out = bench.attack(
            "pgd-l2", net, data.images, data.labels, eps=eps, steps=20, early_stop=False
        )
        right = out.clean_pred == y
        ours, theirs = (
            margin(net(x)[right], y[right]).mean().item() for x in (found[:, e], out.x_adv)
        )
        assert ours < theirs + 0.6  # other random starts


def test_a_tampered_image_and_class_are_found(stored: tuple[Path, Run]) -> None:
    runs, run = stored
    request = request_of_run(runs / run.run_id / "run.json")
    machine, store = Machine(runs=runs, device="cpu"), Store(runs)
    assert verify(run.run_id, request, machine, module=Attracted()).holds
    header = json.loads((runs / run.run_id / "run.json").read_text())
    entry = next(s for s in header["shards"] if s["label"].endswith("-1"))
    shard = store.read_shard(entry["key"])
    assert shard is not None
    changed = {n: a.copy() for n, a in shard.arrays.items()}
    changed["x_adv"][2] = 1 - changed["x_adv"][2]
    for row, name in enumerate(("drawn", "clean_drawn", "label"), start=3):
        changed[name][row] = 9 - changed[name][row]
    store.write_shard(entry["key"], changed, shard.seconds)
    found = verify(run.run_id, request, machine, module=Attracted())
    store.write_shard(entry["key"], dict(shard.arrays), shard.seconds)
    lines = [line for s in found.shards for line in s.finding.differences]
    for start in ("2: linf", "2: l2", "3: drawn[0]", "4: clean_drawn", "5: label"):
        assert any(line.startswith(f"image {start}") for line in lines), lines


class Density(nn.Module):
    def log_density(self, x: Tensor) -> Tensor:
        return -x.flatten(1).square().sum(dim=1)


class Dropping(nn.Module):
    """Random without a refinement."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.linear(nn.functional.dropout(x.flatten(1), 0.5, training=True))
        return answer


@pytest.mark.parametrize(
    ("model", "words"),
    [(Density(), "no logits"), (Dropping(), "no deterministic network behind it")],
)
def test_what_has_no_network_behind_it_says_so(
    tmp_path: Path, model: nn.Module, words: str
) -> None:
    run = bench.run(model, "transfer", limit=4, runs=tmp_path, device="cpu")
    assert {r.status for r in run.records} == {Status.NOT_APPLICABLE}
    assert all(words in (r.note or "") for r in run.records)


def test_accuracies_by_hand() -> None:
    measure = Transferred(data=DataRef("digits"), attack="pgd-linf", eps=(0.1,), draws=4)
    label = np.array([0, 1, 2, 3])
    drawn = np.array([[0, 0, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0], [3, 3, 3, 0]])[:, None]
    given = {"label": label, "clean_drawn": np.tile(label[:, None], 4), "drawn": drawn}
    rows = list(Transfer(Norm.LINF, measure, 1).rows({identity(measure): given}, Reduction()))
    assert [(r.settings["eps"], r.value) for r in rows] == [(0.0, 1.0), (0.1, 9 / 16)]
    assert [r.interval for r in rows] == ["wilson", "bootstrap-images-draws"]
    for row in rows:
        assert row.low is not None
        assert row.high is not None
        assert row.low <= row.value <= row.high  # type: ignore[operator]


def test_the_interval_over_images_and_draws_covers_the_mean() -> None:
    """400 models whose share of right draws is uniform: the mean is 1/2."""
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(400):
        shares = rng.random((60, 1))
        right = rng.random((60, 8)) < shares
        low, high, _ = mean_interval(right, Reduction(resamples=300))
        inside += low <= 0.5 <= high
    assert 0.92 <= inside / 400 <= 1.0


def test_impossible_options_are_told_before_anything_is_computed(tmp_path: Path) -> None:
    impossible: list[dict[str, dict[str, Any]]] = [
        {"transfer": {"steps": 0}},
        {"transfer": {"linf": [0]}},
        {"transfer": {"attacks": ["pgd-linf"]}, "pgd-linf": {"loss": "none"}},
    ]
    for settings in impossible:
        with pytest.raises(InputError):
            bench.run(Dropping(), "transfer", settings=settings, runs=tmp_path)
    assert not list(tmp_path.glob("shards/*.npz"))
