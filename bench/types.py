"""The words of `bench`: what a norm, a data set, a density, an attack and a status are.

Nothing here does work beyond checking that a word is well formed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from bench.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from bench.context import Context

Array = npt.NDArray[Any]


class Norm(StrEnum):
    """The norm in which a perturbation is measured, over all pixels and channels of one image."""

    L0 = "l0"
    L2 = "l2"
    LINF = "linf"


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images, labels, and what suites need to know of them.

    Attributes:
        name: The name it was asked for by.
        split: ``train``, ``validation`` or ``test``; out-of-distribution sets are ``test``.
        images: ``(N, C, H, W)``, uint8 in 0..255 or float32 in [0, 1].
        labels: ``(N,)`` int64 class numbers, or ``None`` where there are none.
        classes: Names of the classes, in order.
        eps: Budgets to evaluate for each norm, increasing, in units of the [0, 1] pixel range.
        ood: Names of out-of-distribution sets by group: near, far, synthetic, shifted.
        clusters: ``(N,)`` int64; images with one number come from one source and are not
            independent, so intervals resample whole clusters. ``None``: all independent.
        licence: Under which terms the images may be used.
        source: Where they come from, and how they were made.
        note: What a reader of a table must know, e.g. that a set is partly in-distribution.
    """

    name: str
    split: str
    images: Array
    labels: Array | None = None
    classes: tuple[str, ...] = ()
    eps: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    ood: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    clusters: Array | None = None
    licence: str = ""
    source: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        images = self.images
        where = f"data set '{self.name}' ({self.split})"
        if images.ndim != 4:
            raise InputError(
                f"{where}: images have shape {images.shape}; expected (N, C, H, W): "
                "move the channels to the second axis, and keep the axis of a grey image"
            )
        if len(images) == 0:
            raise InputError(f"{where} is empty; expected at least one image")
        if images.dtype == np.float32:
            low, high = float(images.min()), float(images.max())
            if not (low >= 0.0 and high <= 1.0):  # also false for NaN
                raise InputError(
                    f"{where}: pixel values run from {low:g} to {high:g}; expected float32 in "
                    "[0, 1] or uint8 in 0..255: divide by 255, or undo the normalisation "
                    "(it belongs into the model)"
                )
        elif images.dtype != np.uint8:
            raise InputError(
                f"{where}: images are {images.dtype}; expected uint8 in 0..255 or float32 in [0, 1]"
            )
        if self.labels is not None:
            if self.labels.shape != (len(images),) or self.labels.dtype != np.int64:
                raise InputError(
                    f"{where}: labels are {self.labels.dtype} of shape {self.labels.shape}; "
                    f"expected int64 of shape ({len(images)},)"
                )
            k = len(self.classes)
            if k and not (self.labels.min() >= 0 and self.labels.max() < k):
                raise InputError(
                    f"{where}: labels run from {self.labels.min()} to {self.labels.max()}; "
                    f"expected 0 to {k - 1} for the {k} classes"
                )
        if self.clusters is not None and self.clusters.shape != (len(images),):
            raise InputError(
                f"{where}: clusters have shape {self.clusters.shape}; expected ({len(images)},)"
            )

    def __len__(self) -> int:
        return len(self.images)

    @property
    def shape(self) -> tuple[int, int, int]:
        """``(C, H, W)`` of one image."""
        _, c, h, w = self.images.shape
        return c, h, w

    @cached_property
    def sha256(self) -> str:
        """A digest of the pixels and labels, the same on every machine."""
        digest = hashlib.sha256(f"{self.images.shape}{self.images.dtype}".encode())
        digest.update(np.ascontiguousarray(self.images).tobytes())
        if self.labels is not None:
            digest.update(self.labels.tobytes())
        return digest.hexdigest()


@runtime_checkable
class DensityModel(Protocol):
    """A model with a log-density of its own, up to a constant."""

    def log_density(self, x: Tensor) -> Tensor:
        """Return log p(x) + const, ``(B,)``, differentiable in x."""
        ...


@runtime_checkable
class FittedScore(Protocol):
    """An out-of-distribution score that first learns from training images."""

    def fit(self, train: Iterable[tuple[Any, Tensor, Tensor | None]]) -> Mapping[str, Tensor]:
        """Return what is learnt, by name, from parts of the training images.

        Args:
            train: The model, images ``(B, C, H, W)`` and labels ``(B,)`` of each part. The model
                answers for the images of its part once and then from memory.
        """
        ...

    def __call__(self, model: Any, x: Tensor, fitted: Mapping[str, Tensor]) -> Tensor:
        """Return one number an image, ``(B,)``, higher for in-distribution."""
        ...


class Attack(Protocol):
    """One attack with its options, as a frozen dataclass whose field ``eps`` is the budget.

    It returns candidates. Whether they succeed, and how far they are, is measured by the task
    with a fresh forward pass.
    """

    @property
    def norm(self) -> Norm:
        """The norm of the budget."""
        ...

    def __call__(self, model: Any, x: Tensor, y: Tensor, context: Context) -> Tensor:
        """Return candidate images, the shape of ``x``, in [0, 1] and within the budget."""
        ...


class Status(StrEnum):
    """Whether a record has its number."""

    OK = "ok"
    NOT_APPLICABLE = "n/a"
    FAILED = "failed"
