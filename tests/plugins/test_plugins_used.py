"""One of each thing, added from outside the repository and used by real commands.

The files are those of the documentation (examples/). They are installed as a distribution that
declares the entry-point group ``bench.plugins``, and every number is computed again here with
NumPy, SciPy and scikit-learn.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from scipy.special import log_softmax, softmax
from sklearn.metrics import roc_auc_score, top_k_accuracy_score

from bench.data import load_dataset
from bench.types import Array, Dataset

EXAMPLES = Path(__file__).parents[2] / "examples"
PLUGINS = ("logit_gap", "top2_error", "noise_suite", "bars", "half_tone", "fgsm", "logistic")
OWN_MODEL = """
from bench.registry import MODELS
from nearest_mean import make

MODELS.register("nearest-mean")(make)
"""
BENCH = "import sys; from bench.cli import main; sys.argv[0] = 'bench'; main()"


def install(site: Path, name: str, modules: dict[str, str]) -> None:
    """Put modules and the metadata of a distribution that registers them into a folder."""
    info = site / f"{name}-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    points = "".join(f"{module} = {module}\n" for module in modules)
    (info / "entry_points.txt").write_text(f"[bench.plugins]\n{points}")
    for module, text in modules.items():
        (site / f"{module}.py").write_text(text)


def bench(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(folder / "site"), str(folder)])
    return subprocess.run(
        [sys.executable, "-c", BENCH, *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )


def records(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    assert {row["status"] for row in rows} == {"ok"}, rows
    return rows


def only(rows: list[dict[str, Any]], **wanted: Any) -> dict[str, Any]:
    """Return the one row with these fields; ``eps`` and ``score`` are looked up in settings."""
    chosen = [
        row
        for row in rows
        if all(
            (row["settings"] if k in ("eps", "score") else row).get(k) == v
            for k, v in wanted.items()
        )
    ]
    assert len(chosen) == 1, (wanted, rows)
    return chosen[0]


class Own:
    """The nearest-mean model in NumPy."""

    def __init__(self, train: Dataset, test: Dataset) -> None:
        assert train.labels is not None
        assert test.labels is not None
        x = pixels(train.images)
        self.means = np.stack([x[train.labels == k].mean(axis=0) for k in np.unique(train.labels)])
        self.x, self.y = pixels(test.images), test.labels

    def logits(self, x: Array, variance: float = 1.0) -> Array:
        return np.asarray(-((x[:, None] - self.means) ** 2).sum(axis=2) / (2 * variance))

    def accuracy(self, x: Array) -> float:
        return float((self.logits(x).argmax(axis=1) == self.y).mean())

    def nll(self, variance: float = 1.0) -> float:
        chosen = log_softmax(self.logits(self.x, variance), axis=1)[np.arange(len(self.y)), self.y]
        return float(-chosen.mean())


def pixels(images: Array) -> Array:
    scale = 255.0 if images.dtype == np.uint8 else 1.0
    return np.asarray(images.reshape(len(images), -1).astype(np.float64) / scale)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plugins")
    modules = {name: (EXAMPLES / f"{name}.py").read_text() for name in PLUGINS}
    install(folder / "site", "everything", modules | {"own_model": OWN_MODEL})
    (folder / "package").mkdir()
    (folder / "package" / "__init__.py").touch()
    for place in (folder, folder / "package"):
        shutil.copy(EXAMPLES / "nearest_mean.py", place)
    return folder


@pytest.fixture(scope="module")
def rows(folder: Path) -> list[dict[str, Any]]:
    """All the kinds at once, after a training that leaves weights for one of the models."""
    trained = bench(folder, "train", "--model", "logistic", "--set", "logistic.epochs=40")
    assert trained.returncode == 0, trained.stderr
    done = bench(
        folder,
        *("run", "--json", "--model", "nearest-mean,logistic"),
        *("--suite", "accuracy,ood,robustness,noise"),
        *("--set", 'accuracy.metrics=["accuracy", "top2_error"]'),
        *("--set", 'ood.scores=["logit-gap"]', "--set", 'ood.sets=["half-tone"]'),
        *("--set", 'ood.metrics=["auroc"]', "--set", "ood.n=300"),
        *("--set", 'robustness.attacks=["fgsm-linf"]', "--set", "robustness.linf=[0.05, 0.2]"),
        *("--set", "robustness.checks=false"),
        *("--set", "noise.levels=[0.3]"),
    )
    return records(done)


@pytest.fixture(scope="module")
def own() -> Own:
    return Own(load_dataset("digits", "train"), load_dataset("digits"))


def test_model_and_metric(rows: list[dict[str, Any]], own: Own) -> None:
    row = only(rows, model="nearest-mean", suite="accuracy", metric="accuracy")
    assert row["value"] == own.accuracy(own.x)
    row = only(rows, model="nearest-mean", metric="top2_error")
    error = 1.0 - top_k_accuracy_score(own.y, own.logits(own.x), k=2)
    assert row["value"] == pytest.approx(error, abs=1e-12)
    assert row["low"] < error < row["high"]
    assert row["interval"] == "bootstrap"


def test_score_on_an_out_of_distribution_set(rows: list[dict[str, Any]], own: Own) -> None:
    rng = np.random.Generator(np.random.PCG64([0, 4021]))
    dots = (rng.random((300, 1, 8, 8)) < 0.5).reshape(300, -1).astype(np.float64)
    ranked = [np.sort(own.logits(x), axis=1) for x in (own.x, dots)]
    gaps = np.concatenate([r[:, -1] - r[:, -2] for r in ranked])
    expected = roc_auc_score(np.repeat([1, 0], [len(own.x), 300]), gaps)
    row = only(rows, model="nearest-mean", suite="ood", score="logit-gap")
    assert row["value"] == pytest.approx(expected, abs=1e-5)
    assert row["settings"]["ood_group"] == "synthetic"
    assert (row["n"], row["n_ood"]) == (500, 300)


def test_attack(rows: list[dict[str, Any]], own: Own) -> None:
    # d CE / dx = (sum_k p_k mean_k - mean_y) / variance
    gradient = softmax(own.logits(own.x), axis=1) @ own.means - own.means[own.y]
    right = own.logits(own.x).argmax(axis=1) == own.y
    for eps in (0.05, 0.2):
        moved = np.clip(own.x + eps * np.sign(gradient), 0, 1)
        # What is broken at a smaller budget stays broken; a sign of a rounding error may differ.
        right &= own.logits(moved).argmax(axis=1) == own.y
        row = only(rows, model="nearest-mean", suite="robustness", eps=eps)
        assert row["value"] == pytest.approx(right.mean(), abs=1 / 500 + 1e-9)
        assert row["settings"]["attack"] == "fgsm-linf"


def test_suite(rows: list[dict[str, Any]], own: Own) -> None:
    noise = np.random.default_rng(0).normal(size=(20, *own.x.shape))
    draws = [own.accuracy(own.x + 0.3 * z) for z in noise]
    row = only(rows, model="nearest-mean", suite="noise")
    assert row["value"] == pytest.approx(np.mean(draws), abs=5 * float(np.std(draws)))
    assert np.mean(draws) + 5 * np.std(draws) < own.accuracy(own.x)  # so the noise was added
    assert row["settings"]["input_noise"] == 0.3


def test_trainer(rows: list[dict[str, Any]], own: Own, folder: Path) -> None:
    state = load_file(folder / "runs/weights/logistic-digits-resnet-tiny.safetensors")
    logits = own.x @ state["1.weight"].T.astype(np.float64) + state["1.bias"]
    accuracy = float((logits.argmax(axis=1) == own.y).mean())
    assert 0.8 < accuracy < 1.0
    row = only(rows, model="logistic", suite="accuracy", metric="accuracy")
    assert row["value"] == accuracy


def test_model_by_file_and_by_module_on_a_data_set(folder: Path) -> None:
    by_file, by_module = "py:nearest_mean.py:make", "py:package.nearest_mean:make"
    models = [by_file, by_module, f"{by_file}?variance=0.25"]
    command = ["run", "--json", "--suite", "accuracy", "--dataset", "bars?width=3"]
    command += [word for model in models for word in ("--model", model)]
    found = records(bench(folder, *command))
    # The undecorated function: this process must not know the name afterwards.
    source = (EXAMPLES / "bars.py").read_text().replace('@DATASETS.register("bars")\n', "")
    names: dict[str, Any] = {}
    exec(source, names)
    bars = Own(names["bars"]("train", width=3), names["bars"](width=3))
    for model, variance in zip(models, (1.0, 1.0, 0.25), strict=True):
        row = only(found, label=model, metric="nll")
        assert row["value"] == pytest.approx(bars.nll(variance), abs=1e-5)
        assert only(found, label=model, metric="accuracy")["value"] == bars.accuracy(bars.x)
    # Equal weights, other code: nothing stored may answer for it.
    source = (folder / "nearest_mean.py").read_text()
    (folder / "nearest_mean.py").write_text(source.replace("(2 * self.v", "(4 * self.v"))
    found = records(bench(folder, *command))
    assert only(found, label=by_file, metric="nll")["value"] == pytest.approx(
        bars.nll(2.0), abs=1e-5
    )
    assert only(found, label=by_module, metric="nll")["value"] == pytest.approx(
        bars.nll(), abs=1e-5
    )


def test_a_name_that_is_taken_is_refused_with_both_owners(tmp_path: Path) -> None:
    text = (EXAMPLES / "logit_gap.py").read_text().replace('"logit-gap"', '"log-density"')
    install(tmp_path / "site", "imitation", {"imitation": text})
    done = bench(tmp_path, "list", "scores")
    assert done.returncode == 2
    assert "plug-in 'imitation'" in done.stderr
    assert "score 'log-density' is registered already, by bench.scores.log_density" in done.stderr
    assert "Traceback" not in done.stderr
