"""What the metrics accept: arrays, sequences or torch tensors, checked and in float64.

Torch is recognised by its methods, so that metrics need no torch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from bench.errors import InputError
from bench.types import Array

# A probability computed in float32 may end a rounding error above 1; a percentage does not.
ROUNDING = 1e-6
# Softmax in half precision sums to 1 within this; logits do not.
ROW_SUM = 1e-2


def as_numpy(values: npt.ArrayLike) -> Array:
    """Return ``values`` as an array on the CPU; torch floats become float64 (bfloat16 too)."""
    tensor: Any = values
    if hasattr(tensor, "detach"):
        tensor = tensor.detach().cpu()
        return np.asarray((tensor.double() if tensor.is_floating_point() else tensor).numpy())
    try:
        return np.asarray(values)
    except ValueError as error:  # rows of different lengths
        raise InputError(f"expected an array of numbers, got {error}") from error


def _numbers(name: str, values: npt.ArrayLike, ndim: int, expected: str) -> Array:
    array = as_numpy(values)
    if array.dtype.kind not in "buif":
        raise InputError(f"{name} has dtype {array.dtype}; expected real numbers")
    if array.ndim != ndim:
        raise InputError(f"{name} has shape {array.shape}; expected {expected}")
    if array.size == 0:
        raise InputError(f"{name} is empty (shape {array.shape}); expected at least one image")
    array = array.astype(np.float64, copy=False)
    nans = int(np.isnan(array).sum())
    if nans:
        raise InputError(
            f"{name} holds {nans} NaN among {array.size} values; a NaN has no rank and no bin: "
            "find the images that produced it"
        )
    return array


def scores(name: str, values: npt.ArrayLike) -> Array:
    """Return ``(N,)`` scores; infinities are legal, NaN is not."""
    return _numbers(name, values, 1, "(N,)")


def confidences(name: str, values: npt.ArrayLike) -> Array:
    """Return ``(N,)`` probabilities in [0, 1]."""
    return _in_unit_range(name, _numbers(name, values, 1, "(N,)"))


def probabilities(name: str, values: npt.ArrayLike) -> Array:
    """Return ``(N, K)`` probabilities in [0, 1] whose rows sum to 1."""
    array = _in_unit_range(name, _numbers(name, values, 2, "(N, K)"))
    worst = float(np.abs(array.sum(axis=1) - 1.0).max())
    if worst > ROW_SUM:
        raise InputError(
            f"{name} has a row that misses the sum 1 by {worst:g}; expected probabilities of all "
            "classes: apply softmax to the logits"
        )
    return array


def _in_unit_range(name: str, array: Array) -> Array:
    low, high = float(array.min()), float(array.max())
    if low < -ROUNDING or high > 1.0 + ROUNDING:
        raise InputError(
            f"{name} runs from {low:g} to {high:g}; expected probabilities in [0, 1], "
            "not logits and not percent"
        )
    return np.clip(array, 0.0, 1.0)


def logit_matrix(name: str, values: npt.ArrayLike) -> Array:
    """Return ``(N, K)`` logits, K >= 2; -inf (probability 0) is legal, +inf is not."""
    array = _numbers(name, values, 2, "(N, K)")
    if array.shape[1] < 2:
        raise InputError(f"{name} has one class (shape {array.shape}); expected at least two")
    top = array.max(axis=1)
    bad = int(np.isinf(top).sum())
    if bad:
        raise InputError(
            f"{name} has {bad} rows with +inf or nothing but -inf; their softmax is undefined: "
            "find the images that produced them"
        )
    return array


def class_labels(name: str, values: npt.ArrayLike, shape: tuple[int, ...]) -> Array:
    """Return ``(N,)`` int64 class numbers that fit predictions of ``shape`` (N, K)."""
    array = as_numpy(values)
    n, k = shape
    if array.dtype.kind not in "iu" or array.shape != (n,):
        raise InputError(
            f"{name} is {array.dtype} of shape {array.shape}; expected integers of shape ({n},)"
        )
    if array.min() < 0 or array.max() >= k:
        raise InputError(
            f"{name} runs from {array.min()} to {array.max()}; expected class numbers 0 to {k - 1}"
        )
    return array.astype(np.int64, copy=False)


def correctness(name: str, values: npt.ArrayLike, n: int) -> Array:
    """Return ``(N,)`` float64 with 1 where the prediction is right and 0 where it is wrong."""
    array = _numbers(name, values, 1, "(N,)")
    if array.shape != (n,):
        raise InputError(f"{name} has {len(array)} entries; expected one for each of {n} images")
    if not np.isin(array, (0.0, 1.0)).all():
        raise InputError(f"{name} holds values other than 0 and 1; expected True or False")
    return array
