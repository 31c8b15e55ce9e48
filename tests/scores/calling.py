"""Any registered score of some images, given what it needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bench.noise import bound
from bench.registry import SCORES
from bench.tasks.scores import needs_of
from bench.types import FittedScore


def values_of(
    name: str, model: Any, x: Tensor, train: Tensor, ids: Sequence[int] | None = None
) -> Tensor:
    """Return one number an image.

    Args:
        name: Of the score.
        model: The model.
        x: The images.
        train: In-distribution images, for a score that is fitted.
        ids: The images' numbers, for the noise; the default is their place.
    """
    given: list[Any] = []
    if "noise" in needs_of(name):
        given.append(bound(0, "test", torch.arange(len(x)) if ids is None else ids))
    score = SCORES[name]
    if isinstance(score, FittedScore):
        given.append(score.fit([(model, part, None) for part in torch.split(train, 5)]))
    values: Tensor = score(model, x, *given)
    return values
