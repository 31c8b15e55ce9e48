"""Sets made from validation images, one by one: inverted, pixel-permuted, rot90.

Each keeps something of its source and breaks the rest: inversion keeps all edges, the permutation
keeps the histogram, the rotation keeps everything but the direction of up. Never made from test
images: a detector would see each test image twice.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bench.errors import Unsupported
from bench.registry import DATASETS
from bench.types import Dataset

from .making import as_float, generator, made, pick


@DATASETS.register("inverted", ood="synthetic")
def inverted(
    split: str = "test", root: Path | None = None, *, like: Dataset, n: int = 500, seed: int = 0
) -> Dataset:
    """Return negatives of validation images, 1 - x."""
    rows = pick(like, n, generator(seed, "inverted"))
    images = 1 - as_float(like.images[rows])
    source = f"1 - x, x from {like.name} validation"
    return made("inverted", split, images, asked=n, like=like, source=source)


@DATASETS.register("pixel-permuted", ood="synthetic")
def pixel_permuted(
    split: str = "test", root: Path | None = None, *, like: Dataset, n: int = 500, seed: int = 0
) -> Dataset:
    """Return validation images with their pixels shuffled, each by a permutation of its own.

    The channels of a pixel stay together, so the colour histogram is kept. One permutation shared
    by all images would make a new, learnable data set; here no structure survives.
    """
    rng = generator(seed, "pixel-permuted")
    rows = pick(like, n, rng)
    c, h, w = like.shape
    order = rng.random((len(rows), 1, h * w)).argsort(axis=2, kind="stable")
    flat = as_float(like.images[rows]).reshape(len(rows), c, h * w)
    images = np.take_along_axis(flat, order, axis=2).reshape(-1, c, h, w)
    source = f"pixels shuffled, one permutation an image, from {like.name} validation"
    return made("pixel-permuted", split, images, asked=n, like=like, source=source)


@DATASETS.register("rot90", ood="shifted")
def rot90(
    split: str = "test", root: Path | None = None, *, like: Dataset, n: int = 500, seed: int = 0
) -> Dataset:
    """Return validation images turned by 90 degrees, counter-clockwise.

    Raises:
        Unsupported: The images of ``like`` are not square.
    """
    _, h, w = like.shape
    if h != w:
        raise Unsupported(f"rot90 needs square images; those of '{like.name}' are {h}x{w}")
    rows = pick(like, n, generator(seed, "rot90"))
    images = np.rot90(as_float(like.images[rows]), axes=(2, 3))
    source = f"turned by 90 degrees counter-clockwise, from {like.name} validation"
    note = (
        "shifted, not foreign: what looks alike when turned (0, 8, 6 and 9) stays in-distribution"
    )
    return made("rot90", split, images, asked=n, like=like, source=source, note=note)
