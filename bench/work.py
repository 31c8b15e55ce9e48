"""What a worker does with a job: load model and images once, then fill shards.

`run_job` is pure: the same job gives the same arrays in any process and order.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import torch

from bench.context import Context, resolve_device
from bench.data import to_tensor
from bench.errors import BenchError, MissingExtra, ModelError, Unsupported
from bench.models import LoadedModel, ModelRef, load
from bench.noise import bound
from bench.sizing import micro_batch_for
from bench.store import Store
from bench.tasks.base import Arrays, Batch, DataRef, Measure
from bench.tasks.base import load as load_images
from bench.types import Status


@dataclass(frozen=True)
class ShardRequest:
    """One shard to fill: its key and its measure."""

    key: str
    measure: Measure


@dataclass(frozen=True)
class Job:
    """Shards that share a model and a slice of images, so that both are loaded once.

    ``digest`` is of the model that the shards' keys were made for; ``fits`` are the keys of what
    scores have learnt, by score, in the store of the folder ``runs``.
    """

    model: ModelRef | None
    digest: str
    inside: DataRef
    data: DataRef
    start: int
    stop: int
    shards: tuple[ShardRequest, ...]
    seed: int
    device: str
    micro_batch: int | None
    threads: int
    fits: Mapping[str, str] = field(default_factory=dict)
    runs: str = ""


@dataclass(frozen=True)
class ShardResult:
    """What became of a shard: its arrays, or why there are none."""

    key: str
    arrays: Arrays | None
    seconds: float = 0.0
    status: Status = Status.OK
    reason: str = ""
    trace: str = ""


def run_job(job: Job) -> list[ShardResult]:
    """Return a result for every shard of the job; a failure of one does not touch the others."""
    with pinned_threads(job.threads):
        device = resolve_device(job.device)
        images = load_images(job.data)
        inside = load_images(job.inside)
        ref = job.model
        model = None if ref is None else _model(ref, job.inside, str(device), job.digest)
        ids = torch.arange(job.start, job.stop, device=device)
        labels = images.labels
        batch = Batch(
            x=to_tensor(images.images[job.start : job.stop], device),
            y=None if labels is None else torch.as_tensor(labels[job.start : job.stop]).to(device),
            num_classes=len(inside.classes) or None,
            measures=[shard.measure for shard in job.shards],
            fitted=_fitted(job),
        )
        size = job.micro_batch or micro_batch_for(None if model is None else model.module, batch.x)
        return [_fill(shard, model, batch, ids, job.seed, size) for shard in job.shards]


def _fitted(job: Job) -> dict[str, Arrays]:
    """Return the fits that are stored; a measure makes for itself what cannot be read."""
    found = {score: Store(Path(job.runs)).read_shard(key) for score, key in job.fits.items()}
    return {score: shard.arrays for score, shard in found.items() if shard is not None}


def _fill(
    shard: ShardRequest,
    model: LoadedModel | None,
    batch: Batch,
    ids: torch.Tensor,
    seed: int,
    micro_batch: int,
) -> ShardResult:
    started = time.perf_counter()
    while True:
        noise = bound(seed, shard.measure.name, ids)
        context = Context(noise=noise, micro_batch=micro_batch)
        try:
            arrays = shard.measure(model, batch, context)
            return ShardResult(shard.key, arrays, time.perf_counter() - started)
        except torch.OutOfMemoryError as error:
            if micro_batch == 1:
                return _failed(shard, error, f"out of memory with one image at a time: {error}")
            torch.cuda.empty_cache()
            micro_batch //= 2  # keyed noise makes the result independent of it
        except (MissingExtra, Unsupported) as error:
            return ShardResult(shard.key, None, status=Status.NOT_APPLICABLE, reason=str(error))
        except BenchError as error:
            return _failed(shard, error, str(error))
        except Exception as error:  # one task fails, with its trace kept; the others go on
            return _failed(shard, error, f"{type(error).__name__}: {error}")


def _failed(shard: ShardRequest, error: BaseException, reason: str) -> ShardResult:
    trace = "".join(traceback.format_exception(error))
    line = " ".join(reason.split())
    return ShardResult(shard.key, None, status=Status.FAILED, reason=line, trace=trace)


@lru_cache(maxsize=4)
def _model(ref: ModelRef, inside: DataRef, device: str, digest: str) -> LoadedModel:
    model = load(ref, load_images(inside))
    if model.digest != digest:  # its results would be stored as those of another model
        raise ModelError(
            f"'{ref.name}' is not the model that the run was planned with: its files changed since "
            "the run began, or its factory builds another model each time (unseeded weights?); "
            "seed the factory or load weights in it, and give the same command again"
        )
    model.module.to(device)
    for parameter in model.module.parameters():
        parameter.requires_grad_(False)  # gradients go to the input only
    return model


@contextmanager
def pinned_threads(count: int) -> Iterator[None]:
    """Use ``count`` CPU threads: another number adds in another order and rounds otherwise."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
