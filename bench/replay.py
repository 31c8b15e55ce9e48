"""Answering a command that was answered before, without loading a model or computing anything.

A finished run leaves a fingerprint of everything its numbers depend on: the request, every source
file of the package and of plug-ins, versions, weights, and the files the request names. While it
is unchanged and all shards are there, the stored records are the answer.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path
from typing import Any

from bench.digest import canonical_json, sha256_file, sha256_text
from bench.records import Record
from bench.registry import ENTRY_POINT_GROUP, MODELS
from bench.request import Request
from bench.store import Store
from bench.types import Status

PACKAGES = (
    *("robust-ood-bench", "torch", "torchvision", "numpy", "scipy", "scikit-learn", "pillow"),
    *("matplotlib", "foolbox", "torchattacks"),
)


def replay(request: Request, store: Store) -> list[Record] | None:
    """Return the records of the same request, or ``None`` where something must be done.

    Only a run in which every row has its number, or cannot have one, is replayed: what failed is
    tried again.
    """
    header = store.read_header(request.run_id)
    if header is None or not header.get("complete") or not header.get("fingerprint"):
        return None  # a model in memory leaves no fingerprint: what it was cannot be looked up
    if header["fingerprint"] != fingerprint(request, store.root):
        return None
    if not all(store.shard_path(key).is_file() for key in header.get("keys", ())):
        return None
    records = store.read_records(request.run_id)
    if not records or any(record.status is Status.FAILED for record in records):
        return None
    if sha256_text(*(r.as_json() for r in records)) != header.get("records_sha256"):
        return None
    return records


def replayable(request: Request) -> bool:
    """Say whether everything that the answer depends on can be looked up without running code.

    Not so for factories of the user's and of plug-ins: they can read any file or variable. Their
    models are built anew each time, and only what is stored under the same key is used again.
    """
    plain = [spec.partition("?")[0] for spec in request.models if not spec.startswith("ckpt:")]
    return all(name in MODELS and MODELS.entry(name).module.startswith("bench.") for name in plain)


def fingerprint(request: Request, runs: Path) -> str:
    """Return a digest of everything that could change the answer to ``request``."""
    parts = [request.canonical(), sys.version, canonical_json(_versions())]
    for path in [*_package_files(), *_named_files(request), *_files_below(runs / "weights")]:
        try:
            parts.append(f"{path}={sha256_file(path)}")
        except OSError:
            parts.append(f"{path}=unreadable")
    return sha256_text(*parts, *_stamps(request))


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "absent"
    for point in entry_points(group=ENTRY_POINT_GROUP):
        found[f"{point.name}={point.value}"] = point.dist.version if point.dist else ""
    return found


def _package_files() -> list[Path]:
    """Return every source file and weight of the package, its rooms and its plug-ins."""
    import importlib.util

    folders = []
    names = ["bench", "bench.attacks", "bench.baselines", "bench.datasets"]
    names += [p.module.partition(".")[0] for p in entry_points(group=ENTRY_POINT_GROUP)]
    for name in names:
        spec = importlib.util.find_spec(name)
        if spec is None:
            continue
        if spec.submodule_search_locations:
            folders += [Path(p) for p in spec.submodule_search_locations]
        elif spec.origin:
            folders.append(Path(spec.origin))
    found: set[Path] = set()
    for folder in folders:
        found |= {folder} if folder.is_file() else set(_files_below(folder))
    return sorted(found)


def _named_files(request: Request) -> list[Path]:
    """Return the files of weights that the request names."""
    named: list[Path] = [Path(request.checkpoint)] if request.checkpoint else []
    for spec in request.models:
        scheme, _, rest = spec.partition("?")[0].partition(":")
        if scheme == "ckpt":
            named.append(Path(rest.partition("@")[2]))
    return named


def _files_below(
    folder: Path, suffixes: Iterable[str] | None = (".py", ".safetensors", ".json", ".toml")
) -> list[Path]:
    """Return the files below a folder with one of the suffixes (all: ``None``), by name.

    Links to folders are followed, each folder once, so that loops end.
    """
    wanted = None if suffixes is None else set(suffixes)
    found, seen = [], set()
    for parent, folders, names in os.walk(folder, followlinks=True):
        real = Path(parent).resolve()
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        found += [Path(parent) / n for n in names if wanted is None or Path(n).suffix in wanted]
    return sorted(found)


def _stamps(request: Request) -> list[str]:
    """Return size and time of each data file: reading gigabytes would cost what it saves."""
    places = [Path(request.data_root or "data")]  # the default of sets that are fetched
    for spec in (request.dataset, *_texts(request.settings)):
        scheme, _, rest = spec.partition("?")[0].partition(":")
        if scheme in ("npz", "folder"):
            places.append(Path(rest))
    stamps = []
    for place in map(Path.resolve, places):
        for path in [place] if place.is_file() else _files_below(place, suffixes=None):
            stat = path.stat()
            stamps.append(f"{path}={stat.st_size},{stat.st_mtime_ns}")
    return stamps


def _texts(value: Any) -> Iterator[str]:
    """Yield every text in nested options: some name data sets, e.g. ``ood.sets``."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _texts(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
