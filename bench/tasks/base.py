"""What a task is made of: data, measures that fill shards, and rows reduced from them.

A *measure* says how to get numbers for each image of one data set. The runner cuts it into shards
of a fixed number of images and stores each under a key made of all that determines it. A *task*
needs some measures and reduces their arrays to rows; it never runs the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from bench.context import Context
from bench.data import load_dataset
from bench.digest import canonical_json
from bench.models import LoadedModel
from bench.types import Array, Dataset, Status

Arrays = Mapping[str, Array]


@dataclass(frozen=True)
class Failure:
    """Why a measure has no arrays: the model or data set cannot, or something went wrong."""

    status: Status
    reason: str


Results = Mapping[str, Arrays | Failure]  # by `identity` of the measure


@dataclass(frozen=True)
class DataRef:
    """Which images: enough to load them in another process.

    Attributes:
        spec: A registered name, ``npz:FILE`` or ``folder:DIR``.
        split: Of an in-distribution set.
        like: For an out-of-distribution set, the in-distribution set it belongs to.
        n: How many images of an out-of-distribution set.
        seed: Of a made set.
        limit: Keep only the first images.
        root: Where data sets lie.
        download: Whether they may be fetched.
    """

    spec: str
    split: str = "test"
    like: str | None = None
    n: int | None = None
    seed: int = 0
    limit: int | None = None
    root: str | None = None
    download: bool = False

    @property
    def title(self) -> str:
        """The spec with a file's name in place of its path: the same on every machine."""
        head, mark, options = self.spec.partition("?")
        scheme, colon, place = head.partition(":")
        return f"{scheme}{colon}{Path(place).name if colon else ''}{mark}{options}"


@lru_cache(maxsize=64)
def load(ref: DataRef) -> Dataset:
    """Return the images of a reference, kept for the next call."""
    return load_dataset(
        ref.spec,
        ref.split,
        root=None if ref.root is None else Path(ref.root),
        like=ref.like,
        n=ref.n,
        seed=ref.seed,
        limit=ref.limit,
        download=ref.download,
    )


@dataclass(frozen=True, eq=False)
class Batch:
    """The images of one shard, on the device.

    Attributes:
        x: ``(B, C, H, W)`` float32 in [0, 1].
        y: Labels ``(B,)``, where there are any.
        num_classes: Of the in-distribution set.
        measures: All that are to see this batch: what one computes may serve the others.
        shared: Where they keep it for each other.
        fitted: What scores have learnt from training images, by the name of the score.
    """

    x: Tensor
    y: Tensor | None
    num_classes: int | None
    measures: Sequence[Measure] = ()
    shared: dict[str, Any] = field(default_factory=dict)
    fitted: Mapping[str, Arrays] = field(default_factory=dict)


class Measure(Protocol):
    """How to get numbers for each image of a data set; a frozen dataclass of its settings."""

    @property
    def data(self) -> DataRef:
        """The images."""
        ...

    @property
    def name(self) -> str:
        """What it is; names its noise, so two measures of one name share their draws."""
        ...

    @property
    def images_per_shard(self) -> int:
        """How many images make a shard: always the same, so keys are the same everywhere."""
        ...

    @property
    def uses_model(self) -> str:
        """Which digest of the model counts: ``full``, ``plain`` (unrefined) or ``none``."""
        ...

    def settings(self) -> Mapping[str, Any]:
        """Return what else determines the numbers, as JSON values."""
        ...

    def code(self) -> Sequence[Any]:
        """Return functions and classes whose source determines the numbers."""
        ...

    def __call__(self, model: LoadedModel | None, batch: Batch, context: Context) -> Arrays:
        """Return arrays with one row an image."""
        ...


@dataclass(frozen=True, kw_only=True)
class Row:
    """One number of a task, before the runner adds model, run and versions to it."""

    metric: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    interval: str | None = None
    n: int | None = None
    n_ood: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)
    status: Status = Status.OK
    note: str | None = None


@dataclass(frozen=True)
class Reduction:
    """How intervals are made: their level, and the seed of resampling."""

    level: float = 0.95
    seed: int = 0
    resamples: int = 1000


class Task(Protocol):
    """One measurement of a suite."""

    @property
    def name(self) -> str:
        """E.g. ``ood/interp``."""
        ...

    @property
    def needs_model(self) -> bool:
        """Whether its rows are of a model; where not, they stand in the table once."""
        ...

    @property
    def measures(self) -> Sequence[Measure]:
        """What it needs, in any order; equal measures of several tasks run once."""
        ...

    def rows(self, results: Results, reduction: Reduction) -> Iterator[Row]:
        """Yield rows; a measure that failed gives rows with its reason."""
        ...

    def missing(self, failure: Failure) -> Iterator[Row]:
        """Yield all rows with a reason in place of the number."""
        ...


@dataclass(frozen=True)
class Absent:
    """A task whose data cannot be had: its rows say how to get them."""

    task: Task
    reason: str

    @property
    def name(self) -> str:
        """The task's."""
        return self.task.name

    @property
    def needs_model(self) -> bool:
        """As the task."""
        return self.task.needs_model

    @property
    def measures(self) -> Sequence[Measure]:
        """None."""
        return ()

    def rows(self, results: Results, reduction: Reduction) -> Iterator[Row]:
        """Yield ``n/a`` rows."""
        yield from self.missing(Failure(Status.NOT_APPLICABLE, self.reason))

    def missing(self, failure: Failure) -> Iterator[Row]:
        """Yield all rows with the reason."""
        yield from self.task.missing(failure)


@dataclass(frozen=True)
class Plan:
    """What a suite plans for: one model on one data set.

    Attributes:
        dataset: The in-distribution test images.
        data: Where they come from.
        stochastic: Whether the model's logits depend on noise.
        refine_steps: N of JEM-N.
        input_noise: The protocol's, x units; 0 for the default protocol.
        protocol: ``default`` or ``paper``.
    """

    dataset: Dataset
    data: DataRef
    stochastic: bool = False
    refine_steps: int = 0
    input_noise: float = 0.0
    protocol: str = "default"


def identity(measure: Measure) -> str:
    """Return a text that is equal for equal measures, within one model."""
    return canonical_json(
        [type(measure).__qualname__, measure.name, vars(measure.data), measure.settings()]
    )


def first_failure(measures: Sequence[Measure], results: Results) -> Failure | None:
    """Return the first failure among the results of some measures."""
    for measure in measures:
        result = results[identity(measure)]
        if isinstance(result, Failure):
            return result
    return None


def arrays_of(measure: Measure, results: Results) -> Arrays:
    """Return the arrays of a measure that did not fail."""
    result = results[identity(measure)]
    assert not isinstance(result, Failure)
    return result
