"""What a run leaves behind: immutable shards, and the folder of the run.

    RUNS/shards/<key>.npz     results of one slice, shared by all runs; the key says all they
                              depend on, so they are never wrong, only absent
    RUNS/<run id>/run.json    the request, the versions, the keys
    RUNS/<run id>/records.jsonl   derived: can be rebuilt from the shards

Every file appears whole or not at all (temporary file, fsync, rename), so a process may be killed
at any moment, and several may write at once.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.errors import StoreError
from bench.records import SCHEMA, Record, record_from_dict
from bench.types import Array

STALE_SECONDS = 24 * 3600.0


@dataclass(frozen=True)
class Shard:
    """The stored results of one slice: arrays with one row an image, and the seconds they took."""

    arrays: Mapping[str, Array]
    seconds: float


class Store:
    """The folder ``--runs``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.shards = root / "shards"

    def prepare(self) -> None:
        """Make the folders, and sweep up what killed processes left half-written a day ago.

        Raises:
            StoreError: The folder cannot be written to.
        """
        with _explained(self.root):
            self.shards.mkdir(parents=True, exist_ok=True)
            write_atomically(self.root / ".writable", b"")
            (self.root / ".writable").unlink(missing_ok=True)
            for path in self.root.glob("**/.tmp-*"):
                with contextlib.suppress(FileNotFoundError):  # another run has just renamed it
                    if time.time() - path.stat().st_mtime > STALE_SECONDS:
                        path.unlink()

    def shard_path(self, key: str) -> Path:
        """Return where the shard of ``key`` lies."""
        return self.shards / f"{key}.npz"

    def write_shard(self, key: str, arrays: Mapping[str, Array], seconds: float) -> None:
        """Store the results of one slice.

        Raises:
            StoreError: The disk is full, or the folder is read-only.
        """
        buffer = io.BytesIO()
        meta = json.dumps({"schema": SCHEMA, "key": key, "seconds": seconds})
        members: dict[str, Any] = {"__meta__": np.array(meta), **arrays}
        np.savez_compressed(buffer, **members)
        with _explained(self.shards):
            write_atomically(self.shard_path(key), buffer.getvalue())

    def read_shard(self, key: str) -> Shard | None:
        """Return a shard; ``None`` where it is missing, unreadable or of another key."""
        try:
            data = io.BytesIO(self.shard_path(key).read_bytes())
            with np.load(data, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            meta = json.loads(str(arrays.pop("__meta__")))
            if meta["schema"] > SCHEMA or meta["key"] != key:
                return None
            return Shard(arrays, float(meta["seconds"]))
        except Exception:  # a damaged archive makes NumPy, zipfile and zlib raise what they like
            return None

    def run_folder(self, run_id: str) -> Path:
        """Return the folder of a run."""
        return self.root / run_id

    def write_run(self, run_id: str, header: Mapping[str, Any], records: list[Record]) -> None:
        """Store the header of a run and its records.

        Raises:
            StoreError: The disk is full, or the folder is read-only.
        """
        folder = self.run_folder(run_id)
        lines = "".join(record.as_json() + "\n" for record in records)
        with _explained(folder):
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(folder / "records.jsonl", lines.encode())
            text = json.dumps({"schema": SCHEMA, **header}, indent=1, default=str)
            write_atomically(folder / "run.json", text.encode())

    def read_header(self, run_id: str) -> dict[str, Any] | None:
        """Return ``run.json`` of a run, or ``None`` where there is none that can be read.

        Raises:
            StoreError: It is of a newer schema.
        """
        path = self.run_folder(run_id) / "run.json"
        try:
            header = json.loads(path.read_text())
        except (OSError, ValueError):
            return None
        if not isinstance(header, dict) or type(header.get("schema")) is not int:
            return None
        if header["schema"] > SCHEMA:
            raise StoreError(
                f"'{path}' has schema {header['schema']}; this version reads up to {SCHEMA}: "
                "upgrade with 'pip install -U robust-ood-bench', or choose another --runs folder"
            )
        return header if _well_formed(header) else None

    def read_records(self, run_id: str) -> list[Record]:
        """Return the records of a run; empty where there are none that can be read."""
        path = self.run_folder(run_id) / "records.jsonl"
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError):
            return []
        records = []
        for number, line in enumerate(lines, start=1):
            try:
                data = json.loads(line)
            except ValueError:
                return []
            if not isinstance(data, dict):
                return []
            record = record_from_dict(data, f"'{path}', line {number}")
            if record is None:
                return []
            records.append(record)
        return records

    def ended(self, run_id: str) -> float:
        """Return when a run last ended, in seconds since the epoch."""
        return (self.run_folder(run_id) / "run.json").stat().st_mtime

    def runs(self) -> list[str]:
        """Return the ids of all runs, by the time they ended."""
        if not self.root.is_dir():
            return []
        headers = list(self.root.glob("*/run.json"))
        return [path.parent.name for path in sorted(headers, key=lambda p: (p.stat().st_mtime, p))]


def _well_formed(header: Mapping[str, Any]) -> bool:
    """Say whether a header holds a request, and the rest of it is of the kind that is written."""
    try:
        request = json.loads(header["request"])
    except (KeyError, TypeError, ValueError):
        return False
    return (
        isinstance(request, dict)
        and all(_texts(request.get(name)) for name in ("models", "suites"))
        and all(_texts(header.get(name, [])) for name in ("keys", "traces"))
        and isinstance(header.get("versions", {}), dict)
    )


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that it appears whole or not at all, also after a power cut."""
    temporary = path.with_name(f".tmp-{os.getpid()}-{os.urandom(4).hex()}")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    with contextlib.suppress(OSError):  # some file systems cannot sync a folder
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextlib.contextmanager
def _explained(place: Path) -> Iterator[None]:
    """Turn an error of the file system into one that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            what = "the disk is full: free some space"
        elif error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
            what = "it cannot be written to: choose another folder with --runs"
        elif error.errno in (errno.ENOTDIR, errno.EEXIST):
            what = "it is not a folder: choose another one with --runs"
        else:
            what = f"{error.strerror or error}"
        raise StoreError(
            f"results cannot be stored in '{place}': {what}; then give the same command again, "
            "it goes on where it stopped"
        ) from error
