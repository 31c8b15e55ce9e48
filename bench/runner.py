"""Run a request: suite x model x data set -> shards -> store -> records.

Nothing already stored is computed again; every result is stored as it arrives, so a run that is
interrupted at any moment goes on from there when the same command is given again.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from bench.digest import sha256_text
from bench.errors import InputError
from bench.executors import Executor, Lost, make_executor
from bench.planning import ModelPlan, RunPlan, ShardPlan, jobs_of, plan_run, versions
from bench.recording import records_of
from bench.records import Record
from bench.replay import fingerprint, replayable
from bench.request import Machine, Request
from bench.store import Store
from bench.tasks.base import Failure
from bench.types import Status
from bench.work import Job, ShardResult, pinned_threads, run_job


class Progress(Protocol):
    """Shown while a run is under way; see `bench.cli.progress` for the one on a terminal."""

    def start(self, totals: Mapping[str, int], stored: int) -> None:
        """Say how many images each task still needs, and how many shards were there already."""
        ...

    def advance(self, task: str, images: int) -> None:
        """Say that so many images of a task are done and stored."""
        ...

    def problem(self, text: str) -> None:
        """Say that something failed; the run goes on."""
        ...

    def remark(self, text: str) -> None:
        """Say what the user may not expect."""
        ...


class Silent:
    """A progress that shows nothing."""

    def start(self, totals: Mapping[str, int], stored: int) -> None:
        """Show nothing."""

    def advance(self, task: str, images: int) -> None:
        """Show nothing."""

    def problem(self, text: str) -> None:
        """Show nothing."""

    def remark(self, text: str) -> None:
        """Show nothing."""


@dataclass(frozen=True)
class Run:
    """What a run came to.

    Attributes:
        run_id: Name of its folder.
        records: One a cell, in a fixed order.
        computed: How many shards this call computed.
        stored: How many were there already.
    """

    run_id: str
    records: tuple[Record, ...]
    computed: int = 0
    stored: int = 0

    @property
    def failed(self) -> bool:
        """Whether a task failed."""
        return any(r.status is Status.FAILED for r in self.records)

    def table(self, format: str = "table") -> str:
        """Return the leaderboards of the run as text: ``table``, ``markdown``, ``csv``, ..."""
        from bench.report import render

        return render(self.records, format)


@dataclass
class _Outcome:
    """What went wrong in this call, by the key of the shard."""

    failures: dict[str, Failure] = field(default_factory=dict)
    traces: list[str] = field(default_factory=list)


def execute(
    request: Request,
    machine: Machine,
    progress: Progress | None = None,
    module: Any = None,
) -> Run:
    """Run a request to its end and store what it came to.

    Args:
        request: What is asked for.
        machine: Where it runs.
        progress: Told what happens.
        module: A model in memory, in place of the one name in ``request.models``.

    Raises:
        BenchError: The request cannot be carried out; nothing has been computed.
        KeyboardInterrupt: Passed on; what was computed is stored.
    """
    progress = progress or Silent()
    if module is not None and machine.executor != "local":
        raise InputError(
            f"executor '{machine.executor}' cannot take a model in memory to its workers; use "
            "executor='local', or name a factory: 'py:FILE.py:FACTORY'"
        )
    store = Store(machine.runs)
    store.prepare()
    # The code that is loaded now is what computes: an edit during a long run must not be taken
    # for what its results came from.
    mark = fingerprint(request, store.root) if module is None and replayable(request) else ""
    with pinned_threads(machine.threads):  # a factory may compute weights, as the workers will
        plan = plan_run(request, [str(machine.runs / "weights")], module)
    shards = list(plan.shards())
    missing = [pair for pair in shards if store.read_shard(pair[1].key) is None]
    fits = _missing_fits(missing, store)
    totals: dict[str, int] = {}
    for model, shard in [*fits, *missing]:
        name = _progress_name(model, shard)
        totals[name] = totals.get(name, 0) + shard.stop - shard.start
    for path in dict.fromkeys(m.model.passed_over for m in plan.models):
        if path is not None:
            progress.remark(f"the weights that ship are used, not '{path}': for those --checkpoint")
    progress.start(totals, len(shards) - len(missing))
    outcome = _Outcome()
    executor = make_executor(machine.executor, machine.threads, machine.retries)
    try:
        _compute(plan, fits, store, machine, executor, progress, outcome)
        ready = _without_failed_fits(missing, outcome)
        _compute(plan, ready, store, machine, executor, progress, outcome)
    finally:
        executor.close()
    records = tuple(records_of(plan, store, outcome.failures))
    _finish(plan, store, records, outcome, mark)
    computed = sum(shard.key not in outcome.failures for _, shard in missing)
    return Run(request.run_id, records, computed, len(shards) - len(missing))


Pair = tuple[ModelPlan, ShardPlan]  # a shard and the first model that needs it


def _progress_name(model: ModelPlan, shard: ShardPlan) -> str:
    task = shard.measure.name.partition("/")[0]
    return task if shard.measure.uses_model == "none" else f"{model.model.label}: {task}"


def _missing_fits(missing: Sequence[Pair], store: Store) -> list[Pair]:
    """Return what scores must learn from training images before their shards can be filled."""
    fits = {s.fit.key: (m, s.fit) for m, s in missing if s.fit is not None}
    return [pair for key, pair in fits.items() if store.read_shard(key) is None]


def _without_failed_fits(missing: Sequence[Pair], outcome: _Outcome) -> list[Pair]:
    """Return the shards that can be filled; the others fail for the reason of their fit."""
    for _, shard in missing:
        if shard.fit is not None and shard.fit.key in outcome.failures:
            outcome.failures[shard.key] = outcome.failures[shard.fit.key]
    return [pair for pair in missing if pair[1].key not in outcome.failures]


def _compute(
    plan: RunPlan,
    missing: Sequence[Pair],
    store: Store,
    machine: Machine,
    executor: Executor,
    progress: Progress,
    outcome: _Outcome,
) -> None:
    """Compute what is missing, storing every result as it arrives."""
    jobs = jobs_of(
        missing, plan, machine.device, machine.micro_batch, machine.threads, str(machine.runs)
    )
    names = {shard.key: _progress_name(model, shard) for model, shard in missing}
    for number, results in executor.run(run_job, jobs):
        for result in _settled(jobs[number], results):
            if result.arrays is not None:
                store.write_shard(result.key, result.arrays, result.seconds)
            else:
                outcome.failures[result.key] = Failure(result.status, result.reason)
                if result.status is Status.FAILED:
                    progress.problem(f"{names[result.key]}: {result.reason}")
                    outcome.traces.append(result.trace or result.reason)
            progress.advance(names[result.key], jobs[number].stop - jobs[number].start)


def _settled(job: Job, results: list[ShardResult] | Lost) -> list[ShardResult]:
    if not isinstance(results, Lost):
        return results
    return [
        ShardResult(s.key, None, status=Status.FAILED, reason=results.reason) for s in job.shards
    ]


def _shard_entry(model: ModelPlan, shard: ShardPlan) -> dict[str, Any]:
    """Return what a shard holds, so that others find their way from a record to its images."""
    measure = shard.measure
    return {
        "key": shard.key,
        "label": "" if measure.uses_model == "none" else model.model.label,
        "measure": type(measure).__name__,
        "dataset": measure.data.title,
        "settings": measure.settings(),
        "start": shard.start,
        "stop": shard.stop,
    }


def _finish(
    plan: RunPlan,
    store: Store,
    records: tuple[Record, ...],
    outcome: _Outcome,
    mark: str,
) -> None:
    header = {
        "run": plan.request.run_id,
        "request": plan.request.canonical(),
        "dataset_sha256": plan.dataset.sha256,
        "models": [
            {
                "label": m.model.label,
                "digest": m.model.digest,
                "weights_sha256": m.model.weights_sha256,
                "card": m.model.card,
            }
            for m in plan.models
        ],
        "versions": versions(),
        "host": platform.node(),
        "argv": sys.argv,
        "pid": os.getpid(),
        "keys": sorted({shard.key for _, shard in plan.shards()} - outcome.failures.keys()),
        "shards": [_shard_entry(m, s) for m, s in plan.shards() if s.key not in outcome.failures],
        "failures": [
            {**_shard_entry(m, s), "status": failure.status, "reason": failure.reason}
            for m, s in plan.shards()
            if (failure := outcome.failures.get(s.key)) is not None
        ],
        "complete": not any(r.status is Status.FAILED for r in records),
        "fingerprint": mark,
        "records_sha256": sha256_text(*(record.as_json() for record in records)),
        "traces": outcome.traces,
    }
    store.write_run(plan.request.run_id, header, list(records))
