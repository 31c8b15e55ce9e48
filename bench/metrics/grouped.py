"""Sums over groups of images, for one set of weights or for many resamples at once."""

from __future__ import annotations

import numpy as np

from bench.types import Array


def grouped_sums(weights: Array, group: Array, n_groups: int) -> Array:
    """Return ``(..., G)``: the sum of ``weights (..., N)`` over the images of each group.

    Args:
        weights: ``(..., N)``; leading axes are resamples.
        group: ``(N,)`` int64 group numbers, 0 .. ``n_groups`` - 1.
        n_groups: G; groups without images sum to 0.
    """
    if weights.ndim == 1:
        return np.bincount(group, weights, n_groups)
    rows = len(weights)
    cell = np.arange(rows)[:, None] * n_groups + group
    return np.bincount(cell.ravel(), weights.ravel(), rows * n_groups).reshape(rows, n_groups)
