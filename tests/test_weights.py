"""Weight files: what is read, what is refused and why, and that no code runs on the way."""

from __future__ import annotations

import argparse
import hashlib
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bench.errors import CheckpointError
from bench.weights import (
    find_weights,
    load_into,
    read_card,
    read_state,
    read_weights,
    weights_name,
    weights_sha256,
    write_state,
    write_weights,
)


def small_state() -> dict[str, Tensor]:
    return {"weight": torch.arange(6.0).reshape(2, 3), "bias": torch.tensor([1.0, -2.0])}


class RunsCode:
    """Unpickled, it makes the file ``marker``."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.marker),))


def assert_same(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_what_is_written_is_read(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"w{suffix}"
    if suffix == ".pt":
        torch.save(small_state(), path)
    else:
        write_weights(path, small_state(), {"seed": 3, "model": "jem"})
        assert read_weights(path)[1] == {"seed": 3, "model": "jem"}
    assert_same(read_weights(path)[0], small_state())


def test_equal_input_gives_equal_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_weights(tmp_path / name, small_state(), {k: k for k in "abcdefgh"})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "w.safetensors"
    write_weights(path, small_state(), {})
    before = path.read_bytes()

    def full_disk(handle: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="no space"):
        write_weights(path, {"weight": torch.zeros(100)}, {})
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["w.safetensors"]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "empty"),
        (b"<!DOCTYPE html><html><body>Sign in</body></html>", "web page"),
        (b"\n  <html lang=en>", "web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "git lfs pull"),
        (b"just some text that is no weights", "no file of weights"),
        (b"PK\x03\x04" + bytes(100), "cut off"),
        (b"\x80\x02}q\x00.", "damaged or foreign"),
    ],
)
def test_foreign_files_are_named(tmp_path: Path, content: bytes, told: str) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=told):
        read_weights(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no file '.*nothing\.pt'"):
        read_weights(tmp_path / "nothing.pt")


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
@pytest.mark.parametrize("keep", [0.2, 0.6, 0.97])
def test_truncated_files_are_refused(tmp_path: Path, suffix: str, keep: float) -> None:
    path = tmp_path / f"w{suffix}"
    state = {"weight": torch.zeros(1000)}
    if suffix == ".pt":
        torch.save(state, path)
    else:
        write_weights(path, state, {})
    whole = path.read_bytes()
    path.write_bytes(whole[: int(keep * len(whole))])
    with pytest.raises(CheckpointError, match="cut off"):
        read_weights(path)


def save_legacy(value: object, path: Path) -> None:
    torch.save(value, path, _use_new_zipfile_serialization=False)


@pytest.mark.parametrize("save", [torch.save, save_legacy])
def test_code_is_not_run_unless_trusted(tmp_path: Path, save: Any) -> None:
    path, marker = tmp_path / "evil.pt", tmp_path / "marker"
    save({"state_dict": small_state(), "extra": RunsCode(marker)}, path)
    with pytest.raises(CheckpointError, match=r"asks for (posix|nt)\.mkdir.*--trust"):
        read_weights(path)
    assert not marker.exists()
    assert_same(read_weights(path, trust=True)[0], small_state())
    assert marker.exists()  # so the file does run code, and the refusal was what stopped it


def test_a_bare_pickle_of_a_newer_protocol_is_not_run(tmp_path: Path) -> None:
    path, marker = tmp_path / "evil.pth", tmp_path / "marker"
    path.write_bytes(pickle.dumps(RunsCode(marker), protocol=4))
    with pytest.raises(CheckpointError, match=r"asks for (posix|nt)\.mkdir"):
        read_weights(path)
    assert not marker.exists()


def test_a_whole_module_needs_trust(tmp_path: Path) -> None:
    path, module = tmp_path / "module.pt", nn.Linear(3, 2)
    torch.save(module, path)
    with pytest.raises(CheckpointError, match=r"torch\.nn\.modules\.linear\.Linear.*state_dict"):
        read_weights(path)
    assert_same(read_weights(path, trust=True)[0], dict(module.state_dict()))


def test_research_checkpoints_are_read(tmp_path: Path) -> None:
    path = tmp_path / "jem.pt"
    checkpoint = {
        "model_state_dict": {f"module.{k}": v for k, v in small_state().items()},
        "replay_buffer": torch.zeros(4, 1, 2, 2),
        "acc": np.float64(0.92),
        "best": np.float32(0.5),
        "epoch": np.int64(7),
        "curve": np.arange(3.0),
        "args": argparse.Namespace(lr=0.1),
    }
    torch.save(checkpoint, path)
    state, rest = read_weights(path)
    assert rest["acc"] == 0.92
    assert rest["args"].lr == 0.1
    module = nn.Linear(3, 2)
    load_into(module, state, path)
    assert_same(dict(module.state_dict()), small_state())


def test_wrapped_state_dicts_are_unwrapped_when_loaded() -> None:
    module = nn.Linear(3, 2)
    load_into(module, {"state_dict": small_state(), "epoch": 3}, "here")
    assert_same(dict(module.state_dict()), small_state())


def test_what_does_not_fit_is_named() -> None:
    module = nn.Sequential(*(nn.Linear(2, 2) for _ in range(8)))
    state = {"0.weight": torch.zeros(3, 2), "9.weight": torch.zeros(2, 2)}
    before = weights_sha256(module)
    with pytest.raises(CheckpointError) as caught:
        load_into(module, state, "other.pt")
    message = str(caught.value)
    assert "other.pt" in message
    assert "15 missing (0.bias, 1.weight, 1.bias, 2.weight, 2.bias, and 10 more)" in message
    assert "1 unexpected (9.weight)" in message
    assert "0.weight is (3, 2), not (2, 2)" in message
    assert weights_sha256(module) == before


def test_old_torch_warns_of_pickles_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.9.1+cpu")
    write_weights(tmp_path / "w.safetensors", small_state(), {})
    read_weights(tmp_path / "w.safetensors")
    torch.save(small_state(), tmp_path / "w.pt")
    with pytest.warns(UserWarning, match="CVE-2026-24747"):
        read_weights(tmp_path / "w.pt")


def test_the_digest_is_over_names_dtypes_shapes_and_bytes() -> None:
    tensor = torch.tensor([1.0, 2.0])
    by_hand = hashlib.sha256(
        b"w;torch.float32;(2,);" + np.array([1, 2], np.float32).tobytes()
    ).hexdigest()
    assert weights_sha256({"w": tensor}) == by_hand
    others = [
        {"v": tensor},
        {"w": tensor.reshape(2, 1)},
        {"w": tensor.view(torch.int32)},
        {"w": torch.tensor([1.0, 2.5])},
        {"w": torch.tensor([2.0, 1.0])},
    ]
    assert len({by_hand, *map(weights_sha256, others)}) == 6
    first, second = torch.tensor(1.0), torch.tensor(True)
    assert weights_sha256({"a": first, "b": second}) == weights_sha256({"b": second, "a": first})


def test_weights_are_found_in_the_first_folder_that_has_them(tmp_path: Path) -> None:
    name = weights_name("my-model", "digits", "resnet-tiny")
    folders = [tmp_path / "a", tmp_path / "b"]
    assert find_weights("my-model", "digits", "resnet-tiny", folders) is None
    for folder in reversed(folders):
        write_weights(folder / name, small_state(), {})
        assert find_weights("my-model", "digits", "resnet-tiny", folders) == folder / name


def test_shipped_weights_come_first(tmp_path: Path) -> None:
    name = weights_name("baseline", "digits", "resnet-tiny")
    write_weights(tmp_path / name, small_state(), {})
    found = find_weights("baseline", "digits", "resnet-tiny", [tmp_path])
    assert found is not None
    assert found.parent.name == "weights"


def test_a_card_is_an_object_or_an_error(tmp_path: Path) -> None:
    weights = tmp_path / "w.safetensors"
    assert read_card(weights) == {}
    weights.with_suffix(".json").write_text('{"seed": 1}')
    assert read_card(weights) == {"seed": 1}
    for text in ("[1]", '{"seed"'):
        weights.with_suffix(".json").write_text(text)
        with pytest.raises(CheckpointError, match="JSON"):
            read_card(weights)


def test_a_training_state_survives_and_damage_is_told(tmp_path: Path) -> None:
    path = tmp_path / "state.pt"
    write_state(path, {"a": torch.ones(2), "progress": {"epoch": 3, "restarts": [{"r": "x"}]}})
    state = read_state(path)
    assert state["progress"] == {"epoch": 3, "restarts": [{"r": "x"}]}
    with zipfile.ZipFile(path) as archive:
        assert any(name.endswith("data.pkl") for name in archive.namelist())
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(CheckpointError, match="cut off"):
        read_state(path)
