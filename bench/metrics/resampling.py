"""Bootstrap resamples as counts: how often each image was drawn.

Counts depend on (seed, stream, number of images, clusters) only. The same counts therefore serve
every metric, score and model of one set of images, which is what makes differences paired.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from bench.errors import InputError
from bench.metrics.arrays import as_numpy
from bench.types import Array

# Numbers in one chunk of counts: 4 MiB in float64, so that a metric's temporaries stay below 64.
CHUNK = 2**19
KEPT = 2**21  # numbers of a set of resamples that is kept for the next metric, in 4 MiB


def bootstrap_counts(
    n: int,
    resamples: int,
    seed: int,
    clusters: npt.ArrayLike | None = None,
    *,
    stream: str = "images",
    rows: int | None = None,
) -> Iterator[Array]:
    """Yield chunks ``(R, N)`` float64 of how often each image is in a resample.

    Without clusters, ``n`` images are drawn with replacement. With clusters, as many clusters
    as there are, each with all its images: a resample may then hold more or fewer than ``n``.
    Each row is drawn by itself, so chunking changes no number.

    Args:
        n: N, the number of images.
        resamples: How many rows in all.
        seed: The run's seed.
        clusters: ``(N,)``; images of one number come from one source.
        stream: Names an independent set of images: the OOD side of a pair is ``"ood"``.
        rows: Rows of a chunk; by default as many as memory allows.

    Raises:
        InputError: ``n`` or ``resamples`` is below 1, or the clusters do not fit.
    """
    if n < 1 or resamples < 1:
        raise InputError(f"{resamples} resamples of {n} images; expected at least 1 of each")
    member = None if clusters is None else cluster_numbers(clusters, n)
    units = n if member is None else int(member.max()) + 1
    return _chunks(seed % 2**64, stream, units, member, resamples, rows or chunk_rows(n))


def _chunks(
    seed: int, stream: str, units: int, member: Array | None, resamples: int, rows: int
) -> Iterator[Array]:
    small = units * resamples <= KEPT
    counts = iter(_kept_counts(seed, stream, units, resamples)) if small else None
    counts = counts or _unit_counts(seed, stream, units, resamples)
    for start in range(0, resamples, rows):
        chunk = np.empty((min(rows, resamples - start), units))
        for row in chunk:
            row[:] = next(counts)
        yield chunk if member is None else chunk[:, member]


def _unit_counts(seed: int, stream: str, units: int, resamples: int) -> Iterator[Array]:
    """Yield ``resamples`` times how often each of ``units`` is among as many draws."""
    rng = np.random.default_rng([seed, *stream.encode()])
    for _ in range(resamples):
        yield np.bincount(rng.integers(0, units, units), minlength=units)


@lru_cache(maxsize=8)
def _kept_counts(seed: int, stream: str, units: int, resamples: int) -> Array:
    """Return the counts of a small set: every score of a table resamples the same images."""
    table = np.empty((resamples, units), dtype=np.uint16)
    for row, counts in zip(table, _unit_counts(seed, stream, units, resamples), strict=True):
        row[:] = counts
    return table


def chunk_rows(n: int) -> int:
    """Return how many resamples of ``n`` images to hold at once."""
    return max(1, CHUNK // n)


def cluster_numbers(clusters: npt.ArrayLike, n: int) -> Array:
    """Return ``(N,)`` cluster numbers from 0 on without gaps.

    Raises:
        InputError: There is not one number for each of the ``n`` images.
    """
    array = as_numpy(clusters)
    if array.shape != (n,) or array.dtype.kind not in "iu":
        raise InputError(
            f"clusters are {array.dtype} of shape {array.shape}; expected one integer for each "
            f"of {n} images"
        )
    return np.unique(array, return_inverse=True)[1]


def drawn(counts: Array) -> Array:
    """Return the image numbers of one resample, ``(sum of counts,)``, from its counts ``(N,)``."""
    return np.repeat(np.arange(len(counts)), counts.astype(np.int64))
