"""From stored shards to records: the only place where metrics are computed.

The model is never asked again; what is not in the store is a row with its reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from bench.errors import BenchError
from bench.planning import ModelPlan, RunPlan, TaskPlan, versions
from bench.records import Record
from bench.request import Request
from bench.store import Store
from bench.tasks.base import Failure, Reduction, Results, Row
from bench.types import Array, Status

NO_MODEL = "(no model)"  # the label of rows that need none


def records_of(plan: RunPlan, store: Store, failures: Mapping[str, Failure]) -> Iterator[Record]:
    """Yield the records, from the store alone."""
    known = versions()
    reduction = Reduction(seed=plan.request.seed)
    for model in plan.models:
        for task in model.tasks:
            results, seconds = _gather(task, store, failures)
            try:
                rows = list(task.task.rows(results, reduction))
            except BenchError as error:
                rows = list(task.task.missing(Failure(Status.FAILED, str(error))))
            for row in rows:
                yield _record(row, plan, model, task, known, seconds, reduction.level)


def _gather(task: TaskPlan, store: Store, failures: Mapping[str, Failure]) -> tuple[Results, float]:
    """Return the arrays of each measure, its shards joined in order, and the seconds they took."""
    results: dict[str, Mapping[str, Array] | Failure] = {}
    seconds = 0.0
    for name, shards in task.shards.items():
        parts = []
        for shard in shards:
            stored = store.read_shard(shard.key)
            if stored is None:
                reason = f"shard {shard.key[:12]}… could not be read back; run the command again"
                results[name] = failures.get(shard.key, Failure(Status.FAILED, reason))
                break
            parts.append(stored)
        else:
            seconds += sum(part.seconds for part in parts)
            results[name] = {
                key: np.concatenate([part.arrays[key] for part in parts]) for key in parts[0].arrays
            }
    return results, seconds


def _record(
    row: Row,
    plan: RunPlan,
    model: ModelPlan,
    task: TaskPlan,
    known: Mapping[str, str],
    seconds: float,
    level: float,
) -> Record:
    request, loaded = plan.request, model.model
    settings = dict(row.settings)
    if request.limit is not None:
        settings["limit"] = request.limit
    changed = _changed_options(request, task.suite, settings)
    if changed:
        settings["non_default"] = changed
    of_model: dict[str, Any] = {"model": "", "label": NO_MODEL}
    if task.task.needs_model:
        of_model = {
            "model": loaded.name,
            "label": loaded.label,
            "variant": loaded.variant,
            "network": loaded.network,
            "weights_sha256": loaded.weights_sha256,
        }
    return Record(
        run=request.run_id,
        **of_model,
        dataset=request.dataset,
        dataset_sha256=plan.dataset.sha256,
        suite=task.suite,
        suite_version=task.suite_version,
        protocol=request.protocol,
        task=task.task.name,
        metric=row.metric,
        value=row.value,
        low=row.low,
        high=row.high,
        level=None if row.low is None else level,
        interval=row.interval,
        n=row.n,
        n_ood=row.n_ood,
        settings=settings,
        details={**row.details, **_cost(row, loaded.card)},
        seed=request.seed,
        versions=known,
        seconds=round(seconds, 3) if row.status is Status.OK else None,
        status=row.status,
        note=row.note,
    )


def _cost(row: Row, card: Mapping[str, Any]) -> dict[str, Any]:
    """Return the seconds of training, which stand beside the accuracy they bought."""
    known = row.metric == "accuracy" and "seconds" in card
    return {"training_seconds": card["seconds"]} if known else {}


def _changed_options(request: Request, suite: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ``--set`` changed for a row: the suite's options, and those of its attacks."""
    named = (settings.get("attack", ""), settings.get("asked", ""))  # called, and asked for by
    attacks = "+".join(map(str, named)).split("+")
    return {
        name: dict(options)
        for name, options in request.settings.items()
        if name == suite or name in attacks
    }
