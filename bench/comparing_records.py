"""Compare the records of a run with what its shards give, both ways and in every field."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from bench.digest import canonical_json
from bench.records import Record

_EXACT = 1e-9  # what reducing the same shards on another machine may change of a number
_TIMES = ("seconds", "versions")  # of the machine; the header of the run has the versions
# A request that was stored has absolute paths where the records have what was typed.
_FOLDER = re.compile(r"(?<![\w.])(?:[^\s'\":@=,\d][^\s'\":@=,]*)?/")


def record_differences(stored: Iterable[Record], again: Iterable[Record]) -> Iterator[str]:
    """Yield a line for each way in which stored records are not those that the shards give."""
    were, are = _by_place(stored), _by_place(again)
    for place, record in were.items():
        if place not in are:
            yield f"{_title(record)}: no shard gives it"
            continue
        was, now = record.as_dict(), are[place].as_dict()
        for name in was.keys() - {*_TIMES}:
            for where, old, new in _changes(name, was[name], now[name]):
                yield f"{_title(record)}: {where} is stored as {old}, the shards give {new}"
    for place in are.keys() - were.keys():
        yield f"{_title(are[place])}: is not among the records, and the shards give it"


def _by_place(records: Iterable[Record]) -> dict[tuple[str, int], Record]:
    """Return records by what they are of; those that are of the same thing are numbered."""
    found: dict[tuple[str, int], Record] = {}
    counts: dict[str, int] = {}
    for record in records:
        place = _place(record)
        counts[place] = counts.get(place, -1) + 1
        found[place, counts[place]] = record
    return found


def _place(record: Record) -> str:
    """Return what a record is of."""
    settings = {k: v for k, v in record.settings.items() if k != "non_default"}
    row = (record.label, record.weights_sha256, record.suite, record.task, record.metric)
    return canonical_json([*row, settings])


def _title(record: Record) -> str:
    """Return what a record is of, in words."""
    eps = record.settings.get("eps")
    budget = "" if eps is None else f" at eps {eps:g}"
    return f"record of {record.label}, {record.task}, {record.metric}{budget}"


def _changes(name: str, was: Any, now: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield where two JSON values differ by more than rounding, and both values there."""
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        for key in sorted(was.keys() | now.keys()):
            yield from _changes(f"{name}.{key}", was.get(key), now.get(key))
    elif isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        for i, (old, new) in enumerate(zip(was, now, strict=True)):
            yield from _changes(f"{name}[{i}]", old, new)
    elif not _same(was, now):
        yield name, was, now


def _same(was: Any, now: Any) -> bool:
    if isinstance(was, str) and isinstance(now, str):
        return was == now or _FOLDER.sub("", was) == _FOLDER.sub("", now)
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in (was, now))
    if numbers:
        return bool(abs(was - now) <= _EXACT * max(1, abs(was)))
    return bool(was == now) and isinstance(was, bool) == isinstance(now, bool)
