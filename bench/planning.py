"""From a request to shards: which tasks each model gets, and the key of every shard."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import numpy as np
import torch

from bench.digest import canonical_json, sha256_text, source_digest
from bench.errors import InputError
from bench.models import LoadedModel, ModelRef, load
from bench.records import SCHEMA
from bench.registry import ATTACKS, SUITES
from bench.request import Request
from bench.specs import check_options, wrong_type
from bench.tasks.base import DataRef, Measure, Plan, Task, identity
from bench.tasks.base import load as load_images
from bench.types import Dataset
from bench.work import Job, ShardRequest


@dataclass(frozen=True)
class ShardPlan:
    """A slice of a measure and the key of its results.

    ``fit`` is a shard that must be there first: what the measure's score learns from training
    images.
    """

    key: str
    measure: Measure
    start: int
    stop: int
    fit: ShardPlan | None = None


@dataclass(frozen=True)
class TaskPlan:
    """A task of a suite, and the shards of each of its measures by `identity`."""

    suite: str
    suite_version: int
    task: Task
    shards: Mapping[str, tuple[ShardPlan, ...]]


@dataclass(frozen=True)
class ModelPlan:
    """All that one row of the leaderboard needs."""

    ref: ModelRef
    model: LoadedModel
    tasks: tuple[TaskPlan, ...]


@dataclass(frozen=True)
class RunPlan:
    """A request resolved: models loaded, tasks planned, keys known."""

    request: Request
    inside: DataRef
    dataset: Dataset
    models: tuple[ModelPlan, ...] = field(default=())

    def shards(self) -> Iterator[tuple[ModelPlan, ShardPlan]]:
        """Yield every shard once, with the first model that needs it."""
        seen = set()
        for model in self.models:
            for task in model.tasks:
                for shards in task.shards.values():
                    for shard in shards:
                        if shard.key not in seen:
                            seen.add(shard.key)
                            yield model, shard


def plan_run(request: Request, folders: Sequence[str], module: Any = None) -> RunPlan:
    """Return the plan of a request.

    Args:
        request: What is asked for.
        folders: Where `bench train` leaves weights.
        module: A model in memory, in place of the one name in ``request.models``.

    Raises:
        BenchError: A name, an option, a file of weights or a data set is not what it must be;
            nothing has been computed yet.
    """
    suites = _suites(request)
    load_images.cache_clear()  # a file of images may have changed since the last run
    inside = DataRef(
        spec=request.dataset,
        limit=request.limit,
        root=request.data_root,
        download=request.download,
    )
    dataset = load_images(inside)
    models: list[ModelPlan] = []
    for name in request.models:
        for steps in request.refine_steps:
            ref = ModelRef(
                spec=name if module is None else module,
                dataset=request.dataset,
                network=request.network,
                checkpoint=request.checkpoint,
                refine_steps=steps,
                input_noise=request.input_noise,
                folders=tuple(folders),
                trust=request.trust,
                title=name,
            )
            first = not models
            models.append(_plan_model(ref, request, suites, inside, dataset, first))
    _check_used(request, models)
    return RunPlan(request, inside, dataset, tuple(models))


def _suites(request: Request) -> dict[str, tuple[int, Any]]:
    """Return the suites with their options set; every name in ``--set`` must be known."""
    suites = {}
    of_attacks = _attack_options(request)
    for name in request.suites:
        entry = SUITES.entry(name)
        options = dict(request.settings.get(name, {}))
        check_options("suite", name, options, entry.options)
        if "settings" in entry.options:  # a suite that hands options on, e.g. to attacks
            options["settings"] = of_attacks
        options = {k: _typed(v, entry.options[k], f"{name}.{k}") for k, v in options.items()}
        suites[name] = int(entry.facts.get("version", 1)), entry.target(**options)
    return suites


def _attack_options(request: Request) -> dict[str, dict[str, Any]]:
    """Return what ``--set`` says of attacks, by name."""
    options = {}
    for name, given in request.settings.items():
        if name in SUITES:
            continue
        entry = ATTACKS.entry(name)
        check_options("attack", name, given, entry.options)
        if "eps" in given:
            norm = entry.facts["norm"]
            raise InputError(
                f"'--set {name}.eps={given['eps']}': budgets belong to the suite, for all its "
                f"attacks; use '--set robustness.{norm}=[{given['eps']}]'"
            )
        options[name] = {k: _typed(v, entry.options[k], f"{name}.{k}") for k, v in given.items()}
    return options


def _check_used(request: Request, models: Sequence[ModelPlan]) -> None:
    """Raise `InputError` for options of an attack that no suite runs, where one could.

    Options of suites that are not asked for are left alone, and so are those of attacks where no
    suite attacks: a file of settings may serve several requests.
    """
    measures = [m for model in models for task in model.tasks for m in task.task.measures]
    used = sorted({str(m.attack) for m in measures if hasattr(m, "attack")})
    for name, options in request.settings.items():
        if used and options and name not in SUITES and name not in used:
            raise InputError(
                f"'--set {name}.{next(iter(options))}=…' would change nothing: the "
                f"attacks of this request are {', '.join(used)}; leave it out, or choose the "
                "attacks with '--set robustness.attacks=…'"
            )


def _typed(value: Any, default: Any, what: str) -> Any:
    """Return an option in the type of its default; one value, or a comma list, makes a tuple."""
    if isinstance(default, tuple):
        return _several(value, default, what)
    if words := wrong_type(value, default):
        raise InputError(f"'--set {what}={value}': expected {words}")
    return value


def _several(value: Any, default: tuple[Any, ...], what: str) -> tuple[Any, ...]:
    """Return the values of an option that takes several; names only where the default has names."""
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",")]
    values = tuple(value) if isinstance(value, list | tuple) else (value,)
    if not values:
        raise InputError(f"'--set {what}=[]': expected at least one value; leave the option out")
    names = [v for v in values if isinstance(v, str)]
    if default and all(isinstance(d, str) for d in default) and len(names) < len(values):
        raise InputError(f"'--set {what}={value}': expected names joined by commas")
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise InputError(f"'--set {what}': '{twice[0]}' is named twice; name it once")
    return values


def _plan_model(
    ref: ModelRef,
    request: Request,
    suites: Mapping[str, tuple[int, Any]],
    inside: DataRef,
    dataset: Dataset,
    first: bool,
) -> ModelPlan:
    """Return the tasks of one model; those that need no model go to the first."""
    model = load(ref, dataset)
    plan = Plan(
        dataset=dataset,
        data=inside,
        stochastic=model.stochastic,
        refine_steps=ref.refine_steps,
        input_noise=request.input_noise,
        protocol=request.protocol,
    )
    tasks = []
    for suite, (number, maker) in suites.items():
        for task in maker.tasks(plan):
            if not (first or task.needs_model):
                continue
            shards = {
                identity(measure): tuple(_cut(measure, model, request, dataset))
                for measure in task.measures
            }
            tasks.append(TaskPlan(suite, number, task, shards))
    return ModelPlan(ref, model, tuple(tasks))


def _cut(
    measure: Measure, model: LoadedModel, request: Request, inside: Dataset
) -> Iterator[ShardPlan]:
    """Yield the slices of a measure; their borders never depend on the machine."""
    images = load_images(measure.data)
    digests = {
        "full": model.digest + model.answers,
        "plain": model.plain_digest + model.answers,
        "none": "",
    }
    common = {
        "schema": SCHEMA,
        "measure": type(measure).__qualname__,
        "name": measure.name,
        "settings": measure.settings(),
        "code": source_digest(measure.code()),
        "model": digests[measure.uses_model],
        "classes": len(inside.classes),
        "seed": request.seed,
        "versions": {"torch": torch.__version__.partition("+")[0]},
    }
    fitting = getattr(measure, "fitting", None)
    fit = None if fitting is None else next(_cut(fitting, model, request, inside))
    if fit is not None:
        common["fit"] = fit.key
    for start in range(0, len(images), measure.images_per_shard):
        stop = min(start + measure.images_per_shard, len(images))
        content = _slice_digest(images, start, stop)
        key = sha256_text(canonical_json({**common, "start": start, "images": content}))
        yield ShardPlan(key, measure, start, stop, fit)


def _slice_digest(images: Dataset, start: int, stop: int) -> str:
    digest = hashlib.sha256(f"{images.images.dtype}{images.images[start:stop].shape}".encode())
    digest.update(np.ascontiguousarray(images.images[start:stop]).tobytes())
    if images.labels is not None:
        digest.update(images.labels[start:stop].tobytes())
    return digest.hexdigest()


def jobs_of(
    missing: Sequence[tuple[ModelPlan, ShardPlan]],
    plan: RunPlan,
    device: str,
    micro_batch: int | None,
    threads: int,
    runs: str,
) -> list[Job]:
    """Return jobs that bundle missing shards of one model and one slice of images.

    ``runs`` is the folder of the store, where the workers find fits.
    """
    groups: dict[tuple[Any, ...], list[tuple[ModelPlan, ShardPlan]]] = {}
    for model, shard in missing:
        ref = None if shard.measure.uses_model == "none" else id(model)
        group = (ref, shard.measure.data, shard.start, shard.stop)
        groups.setdefault(group, []).append((model, shard))
    return [
        Job(
            model=None if ref is None else members[0][0].ref,
            digest=members[0][0].model.digest,
            inside=plan.inside,
            data=data,
            start=start,
            stop=stop,
            shards=tuple(ShardRequest(s.key, s.measure) for _, s in members),
            fits={str(s.measure.settings()["score"]): s.fit.key for _, s in members if s.fit},
            runs=runs,
            seed=plan.request.seed,
            device=device,
            micro_batch=micro_batch,
            threads=threads,
        )
        for (ref, data, start, stop), members in groups.items()
    ]


def versions() -> dict[str, str]:
    """Return the versions that stand in every record."""
    names = {"bench": "robust-ood-bench", "torch": "torch", "numpy": "numpy"}
    names["scikit-learn"] = "scikit-learn"
    return {"python": platform.python_version()} | {k: version(v) for k, v in names.items()}
