"""How many images go through a model at once, and what happens when they do not fit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bench.batching import in_parts
from bench.sizing import LARGEST, ON_CPU, fitting, micro_batch_for


@pytest.mark.parametrize(
    ("per_image", "free", "size"),
    [(1000, 2000, 1), (1000, 16_000, 8), (1000, 15_999, 4), (1e12, 10, 1), (1, 10**12, LARGEST)],
)
def test_half_of_the_free_memory_is_filled(per_image: float, free: int, size: int) -> None:
    assert fitting(per_image, free) == size


def test_a_cpu_has_a_fixed_size() -> None:
    assert micro_batch_for(torch.nn.Flatten(), torch.rand(2, 1, 4, 4)) == ON_CPU


def test_parts_are_halved_and_what_is_done_stays_done() -> None:
    seen: list[list[int]] = []

    def work(rows: Tensor) -> list[int]:
        seen.append(rows.tolist())
        if len(rows) > 3 and int(rows[0]) > 0:
            raise torch.OutOfMemoryError("full")
        return [10 * i for i in rows.tolist()]

    done = in_parts(13, 6, work)
    assert [i for part in done for i in part] == [10 * i for i in range(13)]
    assert [rows[0] for rows in seen] == [0, 6, 6, 9, 12]  # the first part was not done again
    assert [len(rows) for rows in seen] == [6, 6, 3, 3, 1]


def test_one_image_that_does_not_fit_is_told() -> None:
    def work(rows: Tensor) -> None:
        raise torch.OutOfMemoryError("full")

    with pytest.raises(torch.OutOfMemoryError, match="full"):
        in_parts(4, 4, work)
    assert in_parts(0, 4, work) == []
