"""Send a batch through a model in parts, smaller ones where the device runs out of memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

T = TypeVar("T")


def in_parts(
    count: int, size: int, work: Callable[[torch.Tensor], T], device: torch.device | str = "cpu"
) -> list[T]:
    """Return what ``work`` makes of consecutive positions, in order.

    A part that does not fit into the device's memory is halved and done again, and later parts
    keep the smaller size; what is done stays done. Keyed noise (`bench.noise`) makes the result
    independent of the size.

    Args:
        count: How many images there are.
        size: How many to start with at once.
        work: Takes positions, ``(b,)`` int64 on ``device``.
        device: Where the positions lie.

    Raises:
        torch.OutOfMemoryError: One image alone does not fit.
    """
    done: list[T] = []
    start, size = 0, max(1, size)
    while start < count:
        rows = torch.arange(start, min(start + size, count), device=device)
        try:
            done.append(work(rows))
        except torch.OutOfMemoryError:
            if len(rows) == 1:
                raise
            size = -(-len(rows) // 2)
        else:
            start += len(rows)
            continue
        # Outside the handler: the exception holds the frames, and with them the tensors.
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return done
