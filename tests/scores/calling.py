"""Any registered score of some images, given what it needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bench.noise import bound
from bench.registry import SCORES
from bench.tasks.scoring import needs_of


def values_of(name: str, model: Any, x: Tensor, ids: Sequence[int] | None = None) -> Tensor:
    """Return one number an image; ``ids`` are the images' numbers, for the noise."""
    given: list[Any] = []
    if "noise" in needs_of(name):
        given.append(bound(0, "test", torch.arange(len(x)) if ids is None else ids))
    values: Tensor = SCORES[name](model, x, *given)
    return values
