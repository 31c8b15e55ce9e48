"""Verify a stored run: everything it says is asked of a freshly loaded model again.

Each shard is rechecked (`bench.tasks.rechecking`), and the records are reduced from the shards
anew. What does not come out as stored is named with its file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

import bench.tasks.rechecking_evidence
import bench.tasks.rechecking_images  # noqa: F401 - registers how images are rechecked
from bench.announcing import Announced
from bench.comparing_records import record_differences
from bench.context import Context, resolve_device
from bench.data import to_tensor
from bench.digest import canonical_json
from bench.errors import CheckpointError, InputError, StoreError
from bench.noise import bound
from bench.planning import ModelPlan, RunPlan, ShardPlan, TaskPlan, plan_run, versions
from bench.recording import records_of
from bench.request import Machine, Request
from bench.runner import Progress, Silent
from bench.sizing import micro_batch_for
from bench.store import Store
from bench.tasks.base import Batch, Failure, Measure
from bench.tasks.base import load as load_images
from bench.tasks.rechecking import TIE, Finding, Stored, recheck
from bench.types import Array, Status
from bench.work import pinned_threads


@dataclass(frozen=True)
class Checked:
    """One shard and what its recheck came to."""

    label: str
    what: str
    dataset: str
    key: str
    finding: Finding


@dataclass(frozen=True)
class Verification:
    """What became of a run.

    Attributes:
        run_id: Its name.
        shards: Every shard it lists.
        records: How many records the run has.
        differences: Records that are not what the shards give, one line each.
        remarks: What else a reader must know, e.g. other versions, or shards without a result.
    """

    run_id: str
    shards: tuple[Checked, ...]
    records: int
    differences: tuple[str, ...]
    remarks: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether all of it came out as stored."""
        return not self.differences and not any(s.finding.differences for s in self.shards)


def verify(
    run_id: str,
    request: Request,
    machine: Machine,
    *,
    sample: int | None = None,
    tolerance: float = TIE,
    module: Any = None,
    progress: Progress | None = None,
) -> Verification:
    """Recheck a stored run.

    Args:
        run_id: Name of its folder in ``machine.runs``.
        request: What it was asked.
        machine: Where to run; the executor is not used.
        sample: How many images of each shard, evenly spread; ``None``: all.
        tolerance: How far a number may move, relative to the largest of its kind, and the margin
            below which a verdict is a tie. Another machine rounds otherwise.
        module: The model, where the run had one in memory.
        progress: Told what happens.

    Raises:
        StoreError: The run cannot be read, or this version plans other shards.
        CheckpointError: Weights or images are not those of the run.
        InputError: Its model was an object in memory, or an argument is impossible.
    """
    if (sample is not None and sample < 1) or not 0 <= tolerance < 1:
        raise InputError(
            f"sample {sample}, tolerance {tolerance}: expected at least one image, and a tolerance "
            "from 0 to 1"
        )
    store = Store(machine.runs)
    header = store.read_header(run_id)
    if header is None:
        raise StoreError(f"run '{run_id}' cannot be read; give its 'bench run' command again")
    if module is None:
        _refuse_memory(request)
    with pinned_threads(machine.threads):
        plan = plan_run(request, [str(machine.runs / "weights")], module)
        _check_inputs(plan, header)
        keys = _stored_keys(plan, header)
        plan = _renamed(plan, keys)
        checker = _Checker(plan, frozenset(keys.values()), store, machine, sample, tolerance)
        shards = tuple(checker.all(progress or Silent()))
        kept, failures = store.read_records(run_id), _failures(plan, header)
        try:
            again = list(records_of(plan, store, failures))
            differences = tuple(record_differences(kept, again))
        except (KeyError, ValueError, IndexError):
            if not any(shard.finding.differences for shard in shards):
                raise
            differences = ("cannot be compared: a shard does not hold what they need",)
    remarks = (*_remarks(keys, header), *_without_result(plan, failures))
    return Verification(run_id, shards, len(kept), differences, remarks)


def _refuse_memory(request: Request) -> None:
    """Refuse a model that no name leads to."""
    unnamed = [name for name in request.models if ":" not in name and "@" in name]
    if unnamed:
        raise InputError(
            f"model '{unnamed[0]}' was an object in memory, which no command can load again; call "
            "bench.verifying_runs.verify(..., module=MODEL) in a program that has it"
        )


def _check_inputs(plan: RunPlan, header: Mapping[str, Any]) -> None:
    """Raise `CheckpointError` unless images and weights are those of the run."""
    if header.get("dataset_sha256") != plan.dataset.sha256:
        raise CheckpointError(
            f"data set '{plan.dataset.name}' has sha256 {plan.dataset.sha256[:12]}… and the run "
            f"had {str(header.get('dataset_sha256'))[:12]}…: put its images back"
        )
    were = {m["label"]: m["weights_sha256"] for m in header.get("models", ())}
    for model in plan.models:
        label, digest = model.model.label, model.model.weights_sha256
        if were.get(label) != digest:
            raise CheckpointError(
                f"model '{label}' has weights {digest[:12]}… and the run had "
                f"{str(were.get(label))[:12]}…: put its weights back"
            )


def _stored_keys(plan: RunPlan, header: Mapping[str, Any]) -> dict[str, str]:
    """Return the key under which the run stored each planned shard, by the key it has now.

    The keys hold digests of the code. An edit since then changes them, and whether the edited code
    still says the same is what a verification tells.
    """
    stored = {_entry_place(entry): entry["key"] for entry in header.get("shards", ())}
    keys: dict[str, str] = {}
    for model, shard in plan.shards():
        place = _shard_place(model, shard)
        if place in stored:
            keys[shard.key] = stored.pop(place)
    if stored:
        raise StoreError(
            f"{len(stored)} shards of the run are not what this version would compute for its "
            "request; verify it with the version in its run.json, or give its 'bench run' command "
            "again"
        )
    return keys


def _entry_place(entry: Mapping[str, Any]) -> str:
    """Return what an entry of the header is of."""
    names = ("label", "measure", "dataset", "settings", "start", "stop")
    return canonical_json([entry[name] for name in names])


def _shard_place(model: ModelPlan, shard: ShardPlan) -> str:
    """Return the same of a planned shard."""
    m = shard.measure
    facts = [_label(model, m), type(m).__name__, m.data.title, m.settings()]
    return canonical_json([*facts, shard.start, shard.stop])


def _failures(plan: RunPlan, header: Mapping[str, Any]) -> dict[str, Failure]:
    """Return why shards have no result, by the key they have now."""
    keys = {_shard_place(model, shard): shard.key for model, shard in plan.shards()}
    return {
        keys[place]: Failure(Status(entry["status"]), entry["reason"])
        for entry in header.get("failures", ())
        if (place := _entry_place(entry)) in keys
    }


def _without_result(plan: RunPlan, failures: Mapping[str, Failure]) -> Iterator[str]:
    """Yield a line for each shard that the run has no result of: nobody can verify those."""
    for model, shard in plan.shards():
        if (failure := failures.get(shard.key)) is not None:
            label, title = _label(model, shard.measure), _title(shard.measure)
            images = f"images {shard.start} to {shard.stop - 1}"
            yield f"{label}, {title}, {images}: {failure.status}: {failure.reason}"


def _renamed(plan: RunPlan, keys: Mapping[str, str]) -> RunPlan:
    """Return the plan with other keys."""

    def task(old: TaskPlan) -> TaskPlan:
        shards = {
            name: tuple(replace(s, key=keys.get(s.key, s.key)) for s in parts)
            for name, parts in old.shards.items()
        }
        return replace(old, shards=shards)

    models = (replace(m, tasks=tuple(map(task, m.tasks))) for m in plan.models)
    return replace(plan, models=tuple(models))


@dataclass(frozen=True)
class _Checker:
    """Rechecks the shards that a run lists."""

    plan: RunPlan
    listed: frozenset[str]
    store: Store
    machine: Machine
    sample: int | None
    tolerance: float

    def all(self, progress: Progress) -> Iterator[Checked]:
        """Yield what became of every shard."""
        pairs = [(m, s) for m, s in self.plan.shards() if s.key in self.listed]
        totals: dict[str, int] = {}
        for _, shard in pairs:
            name = _title(shard.measure)
            totals[name] = totals.get(name, 0) + shard.stop - shard.start
        progress.start(totals, 0)
        for model, shard in pairs:
            finding = self._finding(model, shard)
            progress.advance(_title(shard.measure), shard.stop - shard.start)
            label = _label(model, shard.measure)
            title, dataset = _title(shard.measure), shard.measure.data.title
            yield Checked(label, title, dataset, shard.key, finding)

    def _finding(self, model: ModelPlan, shard: ShardPlan) -> Finding:
        count = shard.stop - shard.start
        stored = self.store.read_shard(shard.key)
        if stored is None:
            return Finding(
                differences=["is missing or damaged; give the 'bench run' command again"]
            )
        if any(len(values) != count for values in stored.arrays.values()):
            return Finding(differences=[f"does not hold one row for each of its {count} images"])
        device = resolve_device(self.machine.device)
        module = _prepared(model, device)
        # Draws of a model that is random without saying so belong to the batch: take all of it.
        whole = self.sample is None or isinstance(module, Announced)
        rows = np.arange(count) if whole else _spread(count, self.sample or count)
        numbers = shard.start + rows
        batch = _batch(shard.measure, numbers, len(self.plan.dataset.classes) or None, device)
        ids = torch.as_tensor(numbers, device=device)
        size = self.machine.micro_batch or micro_batch_for(module, batch.x)
        noise = bound(self.plan.request.seed, shard.measure.name, ids)
        of_model = None if shard.measure.uses_model == "none" else model.model
        arrays = {name: values[rows] for name, values in stored.arrays.items()}
        return recheck(
            shard.measure,
            of_model,
            batch,
            Context(noise=noise, micro_batch=size),
            Stored(arrays, numbers, self.tolerance),
        )


def _label(model: ModelPlan, measure: Measure) -> str:
    """Return the label under which a run lists a shard; what needs no model has none."""
    return "" if measure.uses_model == "none" else model.model.label


def _title(measure: Measure) -> str:
    """Return what a measure is of, in a word: its attack, its score, or its name."""
    settings = measure.settings()
    return str(settings.get("attack") or settings.get("score") or measure.name)


def _batch(
    measure: Measure, numbers: Array, num_classes: int | None, device: torch.device
) -> Batch:
    """Return some images of a measure's data set."""
    images = load_images(measure.data)
    labels = images.labels
    return Batch(
        x=to_tensor(images.images[numbers], device),
        y=None if labels is None else torch.as_tensor(labels[numbers]).to(device),
        num_classes=num_classes,
    )


def _prepared(model: ModelPlan, device: torch.device) -> torch.nn.Module:
    """Return the module on the device, its weights frozen: gradients go to the input only."""
    module = model.model.module.to(device)
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    return module


def _spread(count: int, wanted: int) -> Array:
    """Return ``wanted`` of ``count`` positions, evenly spread."""
    return np.unique(np.linspace(0, count - 1, min(wanted, count)).round().astype(np.int64))


def _remarks(keys: Mapping[str, str], header: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is not as it was when the run was made, and may explain a difference."""
    moved = sum(now != was for now, was in keys.items())
    if moved:
        yield f"the code has changed since {moved} shards were stored"
    here = versions()
    for name, was in header.get("versions", {}).items():
        if here.get(name) != was:
            yield f"{name} was {was} and is {here.get(name)}"
