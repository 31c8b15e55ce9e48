"""Interp: the mean of two images, (a + b) / 2 (Grathwohl et al. 2019, section 5.2, Table 3).

The authors' code averages a shuffled batch of *test* images with the batch before, each image
already noisy, and adds noise again. Here the sources are validation images of different classes
and no noise is added: noise belongs to the protocol, which treats every set alike. The mean is
rounded to the grey levels of the sources (`on_grid`).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from bench.registry import DATASETS
from bench.types import Array, Dataset

from .making import as_float, generator, made, on_grid, pick

GROUP = 5  # images that are mixed among themselves: the 10 pairs of 5 images


@DATASETS.register("interp", ood="near")
def interp(
    split: str = "test", root: Path | None = None, *, like: Dataset, n: int = 500, seed: int = 0
) -> Dataset:
    """Return means of two validation images of different classes.

    V validation images are cut into groups of five, and pairs are made within groups only, first
    disjoint ones: about 2V / 5 images are independent, 2V the most there can be. Means that
    share a source, directly or by a chain, have one cluster number.
    """
    left, right = (side[: max(n, 0)] for side in pairs(like, generator(seed, "interp")))
    means = (as_float(like.images[left]) + as_float(like.images[right])) / np.float32(2)
    link = coo_array((np.ones(len(left)), (left, right)), shape=(len(like), len(like)))
    _, component = connected_components(link, directed=False)
    return made(
        "interp",
        split,
        on_grid(means, like),
        asked=n,
        like=like,
        clusters=component[left].astype(np.int64),
        source="(a + b) / 2 on the grey levels of its sources, "
        f"a and b of different classes, from {like.name} validation",
        note=f"{len(np.unique(component[left]))} independent groups of source images",
    )


def pairs(like: Dataset, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return the numbers of both images of every pair, in the order in which they are used.

    Round r pairs member r + j of a group with member r - j (modulo 5), j = 1, 2: no image is used
    twice in a round, and the five rounds give all ten pairs.
    """
    order = _mixed(like, pick(like, len(like), rng))
    groups = order[: len(order) // GROUP * GROUP].reshape(-1, GROUP)
    steps = [(r, j) for r in range(GROUP) for j in (1, 2)]
    left = np.concatenate([groups[:, (r + j) % GROUP] for r, j in steps])
    right = np.concatenate([groups[:, (r - j) % GROUP] for r, j in steps])
    if like.labels is None:
        return left, right
    differ = like.labels[left] != like.labels[right]
    return left[differ], right[differ]


def _mixed(like: Dataset, order: Array) -> Array:
    """Return ``order`` rearranged so that neighbours tend to be of different classes."""
    if like.labels is None:
        return order
    labels = like.labels[order]
    rank = np.zeros(len(order), np.int64)  # how many of its class came before
    for k in np.unique(labels):
        mine = labels == k
        rank[mine] = np.arange(mine.sum())
    return order[np.lexsort((labels, rank))]
