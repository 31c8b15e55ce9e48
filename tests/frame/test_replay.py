"""A stored answer is given again only while nothing it depends on has changed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bench
from bench import replay as replaying
from bench.replay import replay
from bench.request import Machine, Request
from bench.runner import execute
from bench.store import Store


def answered(request: Request) -> bool:
    """Whether the request is answered from the records alone."""
    return replay(request, Store(Path("runs"))) is not None


def finished(**options: Any) -> Request:
    """Return a request that was run to its end."""
    given = {"models": ("baseline",), "suites": ("accuracy",), "limit": 20, **options}
    request = Request(**given)
    run = execute(request, Machine())
    assert not run.failed
    assert answered(request)
    records = replay(request, Store(Path("runs")))
    assert records == list(run.records)
    return request


def test_a_factory_of_the_users_is_asked_each_time(model_file: Path) -> None:
    """It can read any file or variable, which nobody can look up."""
    request = Request(models=("py:model.py:make",), suites=("accuracy",), limit=20)
    assert not execute(request, Machine()).failed
    assert not answered(request)
    assert execute(request, Machine()).computed == 0


def plain_weights(path: str) -> None:
    net = bench.NETWORKS["resnet-tiny"]((1, 8, 8), 10)
    torch.save(net.state_dict(), path)


def test_edited_weights_are_seen(model_file: Path) -> None:
    net = bench.NETWORKS["resnet-tiny"]((1, 8, 8), 10)
    torch.save(net.state_dict(), "w.pt")
    request = finished(models=("ckpt:resnet-tiny@w.pt",))
    torch.save({k: v + 1 for k, v in net.state_dict().items()}, "w.pt")
    assert not answered(request)


def test_new_weights_of_bench_train_are_seen(model_file: Path) -> None:
    request = finished()
    Path("runs/weights").mkdir()
    Path("runs/weights/jem-digits-resnet-tiny.safetensors").write_bytes(b"new")
    assert not answered(request)


def test_an_edit_of_the_package_is_seen(model_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a copy of the package, since the tests run in the original."""
    copy = model_file.parent / "package"
    home = Path(replaying.__file__).parent
    shutil.copytree(home, copy, ignore=shutil.ignore_patterns("__pycache__"))
    files = replaying._package_files
    assert home / "noise.py" in files()
    monkeypatch.setattr(
        replaying,
        "_package_files",
        lambda: [copy / f.relative_to(home) if f.is_relative_to(home) else f for f in files()],
    )
    request = finished()
    with (copy / "noise.py").open("a") as file:
        file.write("# one more line\n")
    assert not answered(request)


def test_rooms_and_their_data_belong_to_the_package() -> None:
    names = {path.name for path in replaying._package_files()}
    assert {"pgd.py", "jem.py", "digits.py", "log_density.py", "ood.py", "runner.py"} <= names


def test_another_version_of_a_library_is_seen(
    model_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = finished()
    monkeypatch.setattr(replaying, "version", lambda n: "9.9" if n == "numpy" else version(n))
    assert not answered(request)


def test_a_missing_shard_is_seen(model_file: Path) -> None:
    request = finished()
    (shard,) = Path("runs/shards").iterdir()
    shard.unlink()
    assert not answered(request)


def test_edited_records_are_seen(model_file: Path) -> None:
    request = finished()
    path = Path("runs") / request.run_id / "records.jsonl"
    line, *rest = path.read_text().splitlines()
    row = json.loads(line)
    path.write_text("\n".join([json.dumps({**row, "value": 1.0}), *rest]) + "\n")
    assert not answered(request)
    path.unlink()
    assert not answered(request)


def npz(path: str, shift: int = 0) -> None:
    data = bench.load_dataset("digits", limit=20)
    assert data.labels is not None
    np.savez(path, x=np.roll(data.images, shift, axis=3), y=data.labels)
    os.utime(path, ns=(10**18 + shift, 10**18 + shift))


def test_edited_images_are_seen(model_file: Path) -> None:
    npz("d.npz")
    plain_weights("w.pt")
    request = finished(models=("ckpt:resnet-tiny@w.pt",), dataset="npz:d.npz", limit=None)
    npz("d.npz", shift=1)
    assert not answered(request)


def test_edited_outside_images_named_in_an_option_are_seen(model_file: Path) -> None:
    npz("o.npz", shift=2)
    settings = {"ood": {"sets": ["npz:o.npz"], "scores": "log-density"}}
    request = finished(suites=("ood",), settings=settings)
    npz("o.npz", shift=1)
    assert not answered(request)


def test_a_set_that_arrives_in_the_default_folder_is_seen(model_file: Path) -> None:
    request = finished()
    Path("data").mkdir()
    Path("data/cifar.bin").write_bytes(b"1")
    assert not answered(request)


def test_failed_rows_are_tried_again(model_file: Path) -> None:
    request = Request(models=("py:model.py:broken?how=wide",), suites=("accuracy",), limit=20)
    assert execute(request, Machine()).failed
    assert not answered(request)


def test_a_model_in_memory_is_never_answered_from_records(model_file: Path) -> None:
    run = bench.run(bench.load_model("baseline"), "accuracy", limit=20)
    header = Store(Path("runs")).read_header(run.run_id)
    assert header is not None
    assert header["complete"]
    assert not header["fingerprint"]


def test_the_command_line_answers_without_a_model(
    cli: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("run", "--model", "baseline", "--suite", "accuracy", "--limit", 20)
    code, first, _ = cli(*arguments)
    assert code == 0
    monkeypatch.setattr("bench.runner.execute", None)  # to call it would be an error
    code, second, errors = cli(*arguments)
    assert (code, second, errors) == (0, first, "")
