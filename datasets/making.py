"""What every made set shares: its random generator, its source images, its frame.

A made set draws from a generator keyed by (seed, its own name), so that no set depends on
another, and it draws image after image, so that its first k images do not depend on n. All draws
are ``Generator.random``: the numbers are the same in every NumPy that has PCG64.
"""

from __future__ import annotations

import hashlib

import numpy as np

from bench.errors import InputError, Unsupported
from bench.types import Array, Dataset


def generator(seed: int, name: str) -> np.random.Generator:
    """Return the generator of the set ``name`` under ``seed``."""
    digest = hashlib.sha256(f"{name}/{seed}".encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "little")))


def as_float(images: Array) -> Array:
    """Return images as float32 in [0, 1]; uint8 is divided by 255."""
    if images.dtype == np.uint8:
        return images.astype(np.float32) / np.float32(255)
    return images


def on_grid(images: Array, like: Dataset) -> Array:
    """Return images rounded to the grey levels k / L of ``like``, where it has such levels.

    The mean of two digits of 17 grey levels has 33 of them, and the length of its PNG file alone
    gives it away. Halves go to the even level, so that no image gets darker on the whole.
    """
    if like.images.dtype == np.uint8:
        top = 255
    else:
        levels = np.unique(like.images)
        top = round(1.0 / float(np.diff(levels).min(initial=1.0)))
        if top > 255 or not np.array_equal(np.rint(levels * top) / np.float32(top), levels):
            return images
    return np.asarray(np.rint(images * top) / top, dtype=np.float32)


def pick(like: Dataset, n: int, rng: np.random.Generator) -> Array:
    """Return the numbers of up to ``n`` different images of ``like``, in random order."""
    return rng.random(len(like)).argsort(kind="stable")[:n]


def made(
    name: str,
    split: str,
    images: Array,
    *,
    asked: int,
    like: Dataset,
    source: str,
    clusters: Array | None = None,
    licence: str | None = None,
    note: str = "",
) -> Dataset:
    """Return the made set, with what its source allowed in the note.

    Args:
        name: The registered name.
        split: What was asked for; made sets are ``test``.
        images: ``(N, C, H, W)`` in [0, 1].
        asked: How many images were asked for; a shortfall is noted.
        like: The validation images it was made from or made to resemble.
        source: How it was made.
        clusters: ``(N,)``, images from one source share a number.
        licence: Its terms; ``None``: those of ``like``.
        note: What a reader of a table must know.

    Raises:
        Unsupported: ``split`` is not ``test``.
        InputError: ``asked`` is not a positive number, or the source allows no image.
    """
    if split != "test":
        raise Unsupported(f"'{name}' is an out-of-distribution set and has a test split only")
    if asked < 1:
        raise InputError(f"'{name}' was asked for with n={asked}; expected at least 1")
    if len(images) == 0:
        raise InputError(f"'{name}' cannot be made from the {len(like)} images of '{like.name}'")
    if len(images) < asked:
        short = f"{len(images)} images: {len(like)} source images allow no more"
        note = f"{short}; {note}" if note else short
    return Dataset(
        name=name,
        split=split,
        images=np.ascontiguousarray(images, dtype=np.float32),
        clusters=clusters,
        licence=like.licence if licence is None else licence,
        source=source,
        note=note,
    )
