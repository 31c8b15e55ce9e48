"""One cell of a leaderboard, with all that is needed to believe it or run it again."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from bench.errors import StoreError
from bench.types import Status

SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class Record:
    """A value, its interval, and what it was computed from.

    Attributes:
        schema: Version of this format; a reader refuses a newer one.
        run: Identity of the run.
        model: What was asked for, e.g. ``jem``; empty for scores that need no model.
        label: The row of a table, e.g. ``JEM-10``.
        variant: What distinguishes rows of one model, e.g. ``{"refine_steps": 10}``.
        network: The architecture, where it is known.
        weights_sha256: Digest of the weights.
        dataset: The in-distribution data set.
        dataset_sha256: Digest of its images and labels.
        suite, suite_version: The suite that asked.
        protocol: ``default`` or ``paper``.
        task: What was measured, e.g. ``ood/interp``.
        metric: The name of the number.
        value, low, high: The number and its interval at ``level``; ``None`` when not finite.
        interval: How the interval was made.
        n, n_ood: How many images.
        settings: What determines the number besides all the above; nothing of the machine.
        details: Numbers that belong beside the value, e.g. the ties among verdicts.
        seed: The run's seed.
        versions: Versions of what computed it.
        seconds: Computing time of the shards behind it.
        status: ``ok``, ``n/a`` or ``failed``.
        note: The reason of a missing number, or what a reader must know.
    """

    schema: int = SCHEMA
    run: str
    model: str
    label: str
    variant: Mapping[str, Any] = field(default_factory=dict)
    network: str | None = None
    weights_sha256: str | None = None
    dataset: str
    dataset_sha256: str | None = None
    suite: str
    suite_version: int
    protocol: str
    task: str
    metric: str
    value: float | None
    low: float | None = None
    high: float | None = None
    level: float | None = None
    interval: str | None = None
    n: int | None = None
    n_ood: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)
    seed: int
    versions: Mapping[str, str] = field(default_factory=dict)
    seconds: float | None = None
    status: Status = Status.OK
    note: str | None = None

    @property
    def cell(self) -> str:
        """What the number is of: records of two runs with equal cells measure the same thing."""
        row = self.as_dict()
        model = ("model", "label", "variant", "network", "weights_sha256")
        images = ("dataset", "dataset_sha256")
        asked = ("suite", "suite_version", "protocol", "task", "metric", "settings", "seed")
        return json.dumps({key: row[key] for key in (*model, *images, *asked)}, sort_keys=True)

    def as_dict(self) -> dict[str, Any]:
        """Return the record as JSON values; numbers that are not finite become null."""
        plain: dict[str, Any] = _finite(asdict(self))
        return plain

    def as_json(self) -> str:
        """Return the record as one line of JSON."""
        return json.dumps(self.as_dict(), allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return value


TEXTS = ("run", "model", "label", "dataset", "suite", "protocol", "task", "metric")
NUMBERS = ("value", "low", "high", "level", "n", "n_ood", "seconds")
MAPPINGS = ("variant", "settings", "details", "versions")


def record_from_dict(data: Mapping[str, Any], where: str = "a record") -> Record | None:
    """Return the record of a parsed JSON object; ``None`` where it is damaged.

    Raises:
        StoreError: It is of a newer schema.
    """
    schema = data.get("schema")
    if type(schema) is not int:  # a bool is no schema
        return None
    if schema > SCHEMA:
        raise StoreError(
            f"{where} has schema {schema!r}; this version reads up to {SCHEMA}: "
            "upgrade with 'pip install -U robust-ood-bench'"
        )
    known = {f.name for f in fields(Record)}
    try:
        record = Record(**{k: v for k, v in data.items() if k in known})
        record = replace(record, status=Status(record.status))
    except (TypeError, ValueError):
        return None
    return record if _well_formed(record) else None


def _well_formed(record: Record) -> bool:
    numbers = [getattr(record, name) for name in NUMBERS]
    return (
        all(isinstance(getattr(record, name), str) for name in TEXTS)
        and all(isinstance(getattr(record, name), Mapping) for name in MAPPINGS)
        and all(number is None or isinstance(number, int | float) for number in numbers)
    )
