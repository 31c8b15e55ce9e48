"""A shard is whole or missing, and a folder that cannot be written to gives one clear error."""

from __future__ import annotations

import errno
import io
import json
import os
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.errors import StoreError
from bench.records import SCHEMA, Record
from bench.store import Store, write_atomically
from bench.types import Array, Status

ARRAYS: dict[str, Array] = {
    "logits": np.arange(600, dtype=np.float32).reshape(60, 10),
    "labels": np.arange(60),
}
HEADER = {"request": json.dumps({"models": ["jem"], "suites": ["ood"]})}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "runs")
    store.prepare()
    return store


def record(**changes: Any) -> Record:
    fields: dict[str, Any] = {
        "run": "r",
        "model": "jem",
        "label": "jem",
        "dataset": "digits",
        "suite": "ood",
        "suite_version": 1,
        "protocol": "default",
        "task": "ood/interp",
        "metric": "auroc",
        "value": 0.1 + 0.2,
        "seed": 0,
    }
    return Record(**{**fields, **changes})


def test_shards_come_back_bit_by_bit(store: Store) -> None:
    store.write_shard("k" * 64, ARRAYS, 1.25)
    shard = store.read_shard("k" * 64)
    assert shard is not None
    assert shard.seconds == 1.25
    assert shard.arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert shard.arrays[name].dtype == array.dtype
        assert np.array_equal(shard.arrays[name], array)


def test_a_missing_shard_is_none(store: Store) -> None:
    assert store.read_shard("absent") is None


def test_a_shard_cut_off_anywhere_is_missing(store: Store) -> None:
    store.write_shard("key", ARRAYS, 0.0)
    path = store.shard_path("key")
    data = path.read_bytes()
    for length in [*range(0, len(data), 97), len(data) - 1]:
        path.write_bytes(data[:length])
        assert store.read_shard("key") is None


def test_a_shard_with_a_flipped_bit_never_raises_and_never_lies(store: Store) -> None:
    """zipfile, zlib and NumPy raise seven kinds of errors among them; all mean: missing."""
    store.write_shard("key", ARRAYS, 0.0)
    path = store.shard_path("key")
    data = path.read_bytes()
    missing = 0
    positions = range(0, len(data), 5)
    for position in positions:
        damaged = bytearray(data)
        damaged[position] ^= 1 << position % 8
        path.write_bytes(damaged)
        shard = store.read_shard("key")
        if shard is None:
            missing += 1
            continue
        for name, array in shard.arrays.items():
            assert np.array_equal(array, ARRAYS[name])
    assert missing > len(positions) // 2


def test_a_shard_of_another_key_is_missing(store: Store) -> None:
    store.write_shard("one", ARRAYS, 0.0)
    store.shard_path("one").rename(store.shard_path("other"))
    assert store.read_shard("other") is None


@pytest.mark.parametrize("meta", ["{", "[]", "{}", '{"schema": 99, "key": "key", "seconds": 0}'])
def test_a_shard_with_strange_words_about_itself_is_missing(store: Store, meta: str) -> None:
    np.savez(store.shard_path("key"), __meta__=np.array(meta), labels=ARRAYS["labels"])
    assert store.read_shard("key") is None


def test_foreign_files_in_place_of_a_shard_are_missing(store: Store) -> None:
    path = store.shard_path("key")
    np.save(path.with_suffix(".npy"), ARRAYS["labels"])
    path.with_suffix(".npy").rename(path)
    assert store.read_shard("key") is None
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "hello")
    assert store.read_shard("key") is None
    path.unlink()
    path.mkdir()
    assert store.read_shard("key") is None


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, ("exploded",))


def test_a_pickle_in_a_shard_is_not_run(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    meta = json.dumps({"schema": SCHEMA, "key": "key", "seconds": 0.0})
    buffer = io.BytesIO()
    np.savez(buffer, __meta__=np.array(meta), labels=np.array([Bomb()], dtype=object))
    store.shard_path("key").write_bytes(buffer.getvalue())
    assert store.read_shard("key") is None
    assert not (tmp_path / "exploded").exists()


def test_a_write_that_fails_leaves_nothing_and_keeps_what_was(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write_shard("key", ARRAYS, 0.0)

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match="the disk is full: free some space") as error:
        store.write_shard("key", {"labels": np.zeros(3)}, 0.0)
    assert "it goes on where it stopped" in str(error.value)
    monkeypatch.undo()
    shard = store.read_shard("key")
    assert shard is not None
    assert np.array_equal(shard.arrays["labels"], ARRAYS["labels"])
    assert [p.name for p in store.shards.iterdir()] == ["key.npz"]


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS])
def test_a_read_only_folder_is_told(
    store: Store, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(self: Path, target: Path) -> Path:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(StoreError, match="cannot be written to: choose another folder with --runs"):
        store.prepare()
    with pytest.raises(StoreError, match=str(store.root)):
        store.write_run("r", {}, [])


@pytest.mark.parametrize("inside", [False, True])
def test_a_file_in_place_of_the_folder_is_told(tmp_path: Path, inside: bool) -> None:
    (tmp_path / "runs").write_text("I am a file")
    root = tmp_path / "runs" / "deeper" if inside else tmp_path / "runs"
    with pytest.raises(StoreError, match="it is not a folder: choose another one"):
        Store(root).prepare()


def test_any_other_error_of_the_disk_is_told(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(handle: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StoreError, match="Input/output error; then give the same command again"):
        store.write_shard("key", ARRAYS, 0.0)


def test_only_old_leftovers_are_swept_up(store: Store) -> None:
    old, new = store.shards / ".tmp-1-aa", store.shards / ".tmp-2-bb"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 2 * 24 * 3600,) * 2)
    store.prepare()
    assert not old.exists()
    assert new.exists()


def test_a_leftover_that_vanishes_meanwhile_is_no_error(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another run renames its temporary file between our listing and our look."""
    gone = store.shards / ".tmp-3-cc"
    monkeypatch.setattr(Path, "glob", lambda self, pattern: iter([gone]))
    store.prepare()


def test_runs_come_back_with_records_and_header(store: Store) -> None:
    records = [record(), record(value=None, status=Status.FAILED, note="no")]
    store.write_run("one", HEADER, records)
    assert store.read_records("one") == records
    header = store.read_header("one")
    assert header == {"schema": SCHEMA, **HEADER}
    assert store.runs() == ["one"]
    os.utime(store.root / "one" / "run.json", (1, 1))
    store.write_run("another", {}, [])
    os.utime(store.root / "another" / "run.json", (0, 0))
    assert store.runs() == ["another", "one"]  # by the time they ended


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "{}", '{"request": 1}', '{"schema": "1"}'])
def test_a_damaged_header_is_none(store: Store, text: str) -> None:
    store.write_run("one", HEADER, [])
    (store.root / "one" / "run.json").write_text(text)
    assert store.read_header("one") is None


@pytest.mark.parametrize(
    "changes",
    [
        {"schema": True},
        {"schema": None},
        {"request": None},
        {"request": "{"},
        {"request": "[]"},
        {"request": "{}"},
        {"request": '{"models": [1], "suites": ["ood"]}'},
        {"keys": 5},
        {"keys": [5]},
        {"traces": "text"},
        {"versions": []},
    ],
)
def test_a_header_of_another_form_is_none(store: Store, changes: dict[str, Any]) -> None:
    store.write_run("one", {**HEADER, "keys": ["k"], "versions": {}, "traces": []}, [])
    assert store.read_header("one") is not None
    path = store.root / "one" / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    assert store.read_header("one") is None


@pytest.mark.parametrize("data", [b"{", b"{}\n", b"3\n", b"\xff\xfe\n", b"[]\n", b'"text"\n'])
def test_damaged_records_are_none(store: Store, data: bytes) -> None:
    store.write_run("one", {}, [record()])
    (store.root / "one" / "records.jsonl").write_bytes(data)
    assert store.read_records("one") == []


def test_newer_schemas_are_refused_by_name(store: Store) -> None:
    store.write_run("one", {}, [record()])
    folder = store.root / "one"
    (folder / "run.json").write_text(json.dumps({"schema": SCHEMA + 1}))
    with pytest.raises(StoreError, match=rf"has schema {SCHEMA + 1}; this version reads up to"):
        store.read_header("one")
    row = {**record().as_dict(), "schema": SCHEMA + 1}
    (folder / "records.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(StoreError, match=r"records.jsonl', line 1 has schema 2.*upgrade"):
        store.read_records("one")


@pytest.mark.parametrize(
    "changes",
    [
        {"status": "great"},
        {"status": []},
        {"label": None},
        {"schema": "1"},
        {"schema": None},
        {"value": "0.5"},
        {"settings": []},
        {"run": 5},
    ],
)
def test_a_damaged_line_makes_the_records_missing(store: Store, changes: dict[str, Any]) -> None:
    store.write_run("one", HEADER, [record()])
    assert store.read_records("one") == [record()]
    rows = [record().as_dict(), {**record().as_dict(), **changes}]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (store.root / "one" / "records.jsonl").write_text(text)
    assert store.read_records("one") == []


def test_a_line_without_a_field_makes_the_records_missing(store: Store) -> None:
    store.write_run("one", HEADER, [])
    row = record().as_dict()
    del row["label"]
    (store.root / "one" / "records.jsonl").write_text(json.dumps(row) + "\n")
    assert store.read_records("one") == []


def test_fields_of_an_older_writer_are_passed_over(store: Store) -> None:
    store.write_run("one", {}, [])
    row = {**record().as_dict(), "flavour": "sweet"}
    (store.root / "one" / "records.jsonl").write_text(json.dumps(row) + "\n")
    assert store.read_records("one") == [record()]


def test_numbers_that_are_not_finite_are_null() -> None:
    row = json.loads(record(value=float("nan"), details={"a": [float("inf"), 1.0]}).as_json())
    assert row["value"] is None
    assert row["details"] == {"a": [None, 1.0]}


def test_atomic_writing_replaces_whole_files(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"one")
    write_atomically(path, b"two")
    assert path.read_bytes() == b"two"
    assert list(tmp_path.iterdir()) == [path]
