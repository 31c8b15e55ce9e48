"""The training loop: same seed same bits, resuming, divergence; on a toy of a few seconds."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.data import load_dataset, take
from bench.errors import Diverged, InputError
from bench.registry import MODELS, TRAINERS
from bench.training import Event, TrainContext, Trained
from bench.types import Dataset
from bench.weights import read_weights, weights_sha256

SMALL: dict[str, Any] = {"epochs": 2, "batch_size": 32, "warmup_steps": 1}
SHORT_CHAINS = {"sgld_steps": 2, "buffer_size": 64}
QUICK_OPTIONS: dict[str, dict[str, Any]] = {
    "baseline": {},
    "jem": SHORT_CHAINS,
    "hdge": {"n_negatives": 100},
    "hdge-masked": {"n_negatives": 100},
    "hdge-eq13": {},
    "hdge-jem": SHORT_CHAINS,
}


def data() -> tuple[Dataset, Dataset]:
    return take(load_dataset("digits", "train"), 128), take(
        load_dataset("digits", "validation"), 64
    )


def train(
    folder: Path, name: str = "jem", seed: int = 0, events: Any = None, **options: Any
) -> Trained:
    """Train on a few images, on one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        train_set, validation = data()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = MODELS[name](train_set, "resnet-tiny")
        folder.mkdir(exist_ok=True)
        context = TrainContext(
            model=model,
            seed=seed,
            device=torch.device("cpu"),
            out=folder,
            events=events or (lambda event: None),
        )
        trainer = TRAINERS[name](**(SMALL | QUICK_OPTIONS[name] | options))
        trained = trainer(train_set, validation, context)
        assert isinstance(trained, Trained)
        return trained
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("name", sorted(QUICK_OPTIONS))
def test_the_same_seed_gives_the_same_bits_whatever_the_global_state(
    tmp_path: Path, name: str
) -> None:
    first = train(tmp_path / "a", name)
    torch.rand(3)
    state = torch.get_rng_state()
    second = train(tmp_path / "b", name)
    assert torch.equal(torch.get_rng_state(), state)
    other = train(tmp_path / "c", name, seed=1)
    digests = [weights_sha256(t.model) for t in (first, second, other)]
    assert digests[0] == digests[1] != digests[2]


class Killed(BaseException):
    """Stands for a signal: nothing in the package catches it."""


@pytest.mark.parametrize("name", ["jem", "hdge-masked"])
def test_a_killed_training_goes_on_to_the_same_bits(tmp_path: Path, name: str) -> None:
    whole = train(tmp_path / "whole", name, epochs=3)

    def kill(event: Event) -> None:
        if event.kind == "epoch" and event.epoch == 2:  # in the middle: before epoch 2 is saved
            raise Killed

    with pytest.raises(Killed):
        train(tmp_path / "killed", name, epochs=3, events=kill)
    seen: list[Event] = []
    resumed = train(tmp_path / "killed", name, epochs=3, events=seen.append)
    assert [(e.kind, e.epoch) for e in seen] == [("resume", 1), ("epoch", 2), ("epoch", 3)]
    assert weights_sha256(resumed.model) == weights_sha256(whole.model)
    assert resumed.best_epoch == whole.best_epoch


def test_a_divergence_is_told_and_gives_up_with_the_last_good_weights(tmp_path: Path) -> None:
    seen: list[Event] = []
    with pytest.raises(Diverged, match="after 2 restarts") as caught:
        train(tmp_path, sgld_step_size=1e12, max_restarts=2, events=seen.append)
    assert [e.kind for e in seen] == ["restart", "restart"]
    assert "diverged in epoch 1" in seen[0].message
    assert "steps times 0.25 (restart 2 of 2)" in seen[1].message
    saved = tmp_path / "last-good.safetensors"
    assert str(saved) in str(caught.value)
    state, metadata = read_weights(saved)
    assert metadata == {"epoch": 0}
    assert all(bool(value.isfinite().all()) for value in state.values())


def test_a_training_comes_back_from_a_divergence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault is planted in epoch 3: NaN weights, once."""
    loop = importlib.import_module("bench.baselines.training_loop").Loop
    honest, faults = loop._validate, list[str]()

    def faulty(self: Any, losses: dict[str, float]) -> None:
        if self.progress.epoch == 2 and not faults:
            faults.append(weights_sha256(self.model))
            self.model.network.head.bias.data.fill_(float("nan"))
        honest(self, losses)

    monkeypatch.setattr(loop, "_validate", faulty)
    seen: list[Event] = []
    trained = train(tmp_path, epochs=4, events=seen.append)
    assert [(e.kind, e.epoch) for e in seen] == [
        ("epoch", 1),
        ("epoch", 2),
        ("restart", 1),
        ("epoch", 2),
        ("epoch", 3),
        ("epoch", 4),
    ]
    assert trained.restarts == (
        {"epoch": 3, "reason": "a weight is not finite", "from_epoch": 1, "factor": 0.5},
    )
    assert all(bool(w.isfinite().all()) for w in trained.model.state_dict().values())


def test_accuracy_far_below_the_best_is_a_divergence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = importlib.import_module("bench.baselines.training_loop").Loop
    accuracies = iter([0.9, 0.75, 0.65, 0.8, 0.8])
    monkeypatch.setattr(loop, "_evaluate", lambda self: (next(accuracies), 1.0))
    trained = train(tmp_path, "baseline", epochs=3, max_accuracy_drop=0.2, max_restarts=1)
    assert [r["reason"] for r in trained.restarts] == [
        "validation accuracy fell to 0.650 from 0.900"
    ]


def test_the_best_weights_are_kept_and_ties_go_to_the_lower_likelihood_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = importlib.import_module("bench.baselines.training_loop").Loop
    measured = iter([(0.7, 0.9), (0.8, 0.9), (0.8, 0.5), (0.8, 0.6), (0.75, 0.1)])
    digests = []

    def evaluate(self: Any) -> tuple[float, float]:
        digests.append(weights_sha256(self.model))
        return next(measured)

    monkeypatch.setattr(loop, "_evaluate", evaluate)
    trained = train(tmp_path, "baseline", epochs=5)
    assert trained.best_epoch == 3
    assert weights_sha256(trained.model) == digests[2]


def test_the_learning_rate_warms_up_and_decays_as_jems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = importlib.import_module("bench.baselines.training_loop").Loop
    honest, rates = loop._set_learning_rate, []

    def watch(self: Any, step: int) -> None:
        honest(self, step)
        rates.append(self.optimizer.param_groups[0]["lr"])

    monkeypatch.setattr(loop, "_set_learning_rate", watch)
    train(tmp_path, "baseline", epochs=10, batch_size=128, warmup_steps=4, learning_rate=1e-3)
    expected = [0.25, 0.5, 0.75, 1, 1, 1, 1, 1, 0.3, 0.09]
    assert [1e3 * rate for rate in rates] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"epochs": 0}, "epochs=0"),
        ({"sgld_step_size": -1.0}, "sgld_step_size=-1.0"),
        ({"learning_rate": float("nan")}, "learning_rate=nan"),
    ],
)
def test_senseless_options_are_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        TRAINERS["jem"](**options)
    TRAINERS["jem"](sgld_noise=0.0, shift=0, warmup_steps=0)


def test_images_without_labels_are_refused(tmp_path: Path) -> None:
    train_set, validation = data()
    bare = Dataset("bare", "train", train_set.images, classes=train_set.classes)
    context = TrainContext(
        model=MODELS["jem"](train_set, "resnet-tiny"),
        seed=0,
        device=torch.device("cpu"),
        out=tmp_path,
    )
    with pytest.raises(InputError, match="'bare' has no labels"):
        TRAINERS["jem"]()(bare, validation, context)
