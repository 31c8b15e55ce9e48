"""Scores that learn from training images: from which, once, and what becomes of failures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bench
from bench.context import Context
from bench.data import load_dataset, to_tensor
from bench.errors import InputError
from bench.models import LoadedModel
from bench.noise import bound
from bench.registry import SCORES
from bench.request import Machine, Request
from bench.runner import Run
from bench.tasks.base import Batch, DataRef
from bench.tasks.fitting import Fitting
from bench.tasks.scoring import Scored
from bench.types import Array
from bench.verifying_runs import verify
from tests.scores.closed_form import Counting, density_of, images, logits_of

TRAIN = DataRef("digits", split="train", limit=50_000)


class Linear(nn.Module):
    """Logits of digits, with a count of the images it has seen."""

    def __init__(self, bad: bool = False) -> None:
        super().__init__()
        self.bad = bad
        generator = torch.Generator().manual_seed(0)
        self.register_buffer("weight", torch.randn(64, 10, generator=generator))
        self.asked: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        if self.bad and len(x) > 100:
            raise RuntimeError("too many images")
        self.asked.append(len(x))
        logits: Tensor = x.flatten(1) @ self.get_buffer("weight")
        return logits


def densities(split: str, name: str = "digits", **options: Any) -> Array:
    """Return log sum exp in float64 of the images of a set."""
    x = to_tensor(load_dataset(name, split, **options).images).double().flatten(1)
    logits = (x @ Linear().get_buffer("weight").double()).numpy()
    return density_of(logits)


def run(tmp_path: Path, model: Any, scores: tuple[str, ...], **options: Any) -> Run:
    settings = {"ood": {"scores": scores, "sets": ["interp"], "metrics": ["auroc"]}}
    return bench.run(model, "ood", runs=tmp_path, **{"settings": settings, "limit": 40, **options})


def arrays(tmp_path: Path, name: str) -> dict[Path, Array]:
    found = {}
    for path in sorted((tmp_path / "shards").iterdir()):
        with np.load(path) as file:
            if name in file.files:
                found[path] = file[name]
    return found


def loaded(module: nn.Module) -> LoadedModel:
    return LoadedModel(module, "net", "net", {}, None, "", "", "")


def test_typicality_as_by_hand() -> None:
    net, train, x = Counting(), images(30, seed=5), images(9)
    score = SCORES["typicality"]
    fitted = score.fit([(net, part, None) for part in torch.split(train, 7)])  # type: ignore[attr-defined]
    seen, known = (density_of(logits_of(net, images)) for images in (x, train))
    by_hand = -np.abs(seen - known.mean())
    assert score(net, x, fitted).numpy() == pytest.approx(by_hand, abs=2e-5)
    assert (seen > known.mean()).any()
    assert (seen < known.mean()).any()


def test_it_is_fitted_once_on_the_training_split_and_stored(tmp_path: Path) -> None:
    first = run(tmp_path, Linear(), ("typicality", "log-density"))
    assert not first.failed
    ((path, fit),) = arrays(tmp_path, "log_density").items()
    assert fit == pytest.approx(densities("train"), abs=1e-4)
    stored = list(arrays(tmp_path, "score").values())
    expected = -np.abs(densities("test", limit=40) - densities("train").mean())
    assert any(s == pytest.approx(expected, abs=1e-4) for s in stored)
    (row, *_) = [r for r in first.records if r.settings["score"] == "typicality"]
    on = {"dataset": "digits", "split": "train", "limit": 50_000}
    assert row.settings["fitted_on"] == on

    written = path.stat().st_mtime_ns
    again = run(tmp_path, Linear(), ("typicality", "log-density"))
    assert (again.computed, again.records) == (0, first.records)
    more = run(tmp_path, Linear(), ("typicality",), limit=20)
    assert more.computed == 2 * 5  # both sides of it and of four that need no model
    assert path.stat().st_mtime_ns == written
    assert list(arrays(tmp_path, "log_density")) == [path]


def test_what_is_not_stored_is_fitted_on_the_spot_and_verified(tmp_path: Path) -> None:
    done = run(tmp_path, Linear(), ("typicality",))
    (path,) = arrays(tmp_path, "log_density")
    path.unlink()
    settings = {"ood": {"scores": ["typicality"], "sets": ["interp"], "metrics": ["auroc"]}}
    name = done.records[0].model
    request = Request(models=(name,), suites=("ood",), limit=40, settings=settings)
    checked = verify(done.run_id, request, Machine(runs=tmp_path), module=Linear())
    assert checked.holds
    assert sum(shard.what == "typicality" for shard in checked.shards) == 2


def test_a_fit_that_fails_fails_its_rows_with_the_reason_and_no_others(tmp_path: Path) -> None:
    done = run(tmp_path, Linear(bad=True), ("typicality", "log-density"), batch_size=500)
    rows = {r.settings["score"]: r for r in done.records if r.task == "ood/interp"}
    assert rows["log-density"].status == "ok"
    assert rows["typicality"].status == "failed"
    note = str(rows["typicality"].note)
    assert all(word in note for word in ("'typicality'", "digits", "train", "too many images"))


@pytest.fixture
def own_set(tmp_path: Path) -> dict[str, Array]:
    digits = load_dataset("digits")
    assert digits.labels is not None
    return {"x_test": digits.images[:40], "y_test": digits.labels[:40]}


def with_files(tmp_path: Path, members: dict[str, Array]) -> Run:
    np.savez(tmp_path / "own.npz", **members)  # type: ignore[arg-type]
    np.savez(tmp_path / "other.npz", images=load_dataset("digits", "validation").images[:30])
    settings = {
        "scores": ["typicality", "log-density"],
        "sets": [f"npz:{tmp_path / 'other.npz'}"],
        "metrics": ["auroc"],
    }
    own = f"npz:{tmp_path / 'own.npz'}"
    return bench.run(Linear(), "ood", dataset=own, settings={"ood": settings}, runs=tmp_path)


def test_without_training_images_the_row_says_so(tmp_path: Path, own_set: dict[str, Array]) -> None:
    done = with_files(tmp_path, own_set)
    rows = {r.settings["score"]: r for r in done.records}
    assert rows["log-density"].status == "ok"
    assert rows["typicality"].status == "n/a"
    assert "training images" in str(rows["typicality"].note)
    assert "train" in str(rows["typicality"].note)


def test_test_images_are_never_fitted_on(tmp_path: Path, own_set: dict[str, Array]) -> None:
    copies = {name.replace("test", "train"): values for name, values in own_set.items()}
    with pytest.raises(InputError, match=r"training images .* are its test images"):
        with_files(tmp_path, own_set | copies)


def test_a_fitted_score_must_be_told_on_what() -> None:
    with pytest.raises(InputError, match=r"'typicality' .* training images"):
        _ = Scored(data=DataRef("digits"), score="typicality").settings()


@pytest.fixture
def second() -> Iterator[str]:
    """Another fitted score, of labels too."""

    class ClassMeans:
        """Negative distance of the logits from the nearest class mean."""

        def fit(self, train: Any) -> dict[str, Tensor]:
            known = [(model(x), y) for model, x, y in train]
            logits, y = (torch.cat(column) for column in zip(*known, strict=True))
            return {"means": torch.stack([logits[y == k].mean(dim=0) for k in range(10)])}

        def __call__(self, model: Any, x: Tensor, fitted: dict[str, Tensor]) -> Tensor:
            return -torch.cdist(model(x), fitted["means"]).min(dim=1).values.double()

    SCORES.register("class-means", needs="logits")(ClassMeans())
    yield "class-means"
    SCORES._entries.pop("class-means")


def test_fits_share_a_pass_over_the_training_images(second: str) -> None:
    net, data = Linear(), load_dataset("digits", "train")
    measures = [Fitting(data=TRAIN, score=name) for name in ("typicality", second)]
    batch = Batch(to_tensor(data.images), torch.as_tensor(data.labels), 10, measures)
    context = Context(noise=bound(0, "x", range(len(data))), micro_batch=128)
    fits = [measure(loaded(net), batch, context) for measure in measures]
    assert sum(net.asked) == len(data)
    assert fits[0]["log_density"].shape == (len(data),)
    assert fits[1]["means"].shape == (10, 10)


def test_the_noise_of_training_images_is_theirs(second: str) -> None:
    """A fit is of a model: runs with other seeds and parts get the same one."""
    data = load_dataset("digits", "train", limit=60)
    measure = Fitting(data=TRAIN, score="typicality", input_noise=0.015)

    def fit(seed: int, size: int) -> Array:
        batch = Batch(to_tensor(data.images), None, 10, [measure])
        context = Context(noise=bound(seed, "x", range(60)), micro_batch=size)
        return np.asarray(measure(loaded(Linear()), batch, context)["log_density"])

    assert fit(0, 60) == pytest.approx(fit(1, 7), abs=1e-5)
    assert np.abs(fit(0, 60) - densities("train", limit=60)).max() > 1e-3
