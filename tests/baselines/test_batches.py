"""Batches: an order without repeats, shifts that are shifts, and named streams."""

from __future__ import annotations

import importlib

import numpy as np
import torch

from bench.registry import TRAINERS

TRAINERS["baseline"]
batches = importlib.import_module("bench.baselines.batches")


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_an_epoch_visits_no_image_twice_and_drops_the_short_batch() -> None:
    rows = list(batches.epoch_batches(23, 5, generator()))
    assert [len(r) for r in rows] == [5, 5, 5, 5]
    assert len(set(torch.cat(rows).tolist())) == 20
    assert [len(r) for r in batches.epoch_batches(3, 64, generator())] == [3]


def test_a_shifted_image_is_the_padded_image_seen_through_a_window() -> None:
    z = torch.rand(40, 2, 5, 6, generator=generator())
    moved = batches.shifted(z, 2, generator(1))
    seen = set()
    for image, result in zip(z.numpy(), moved.numpy(), strict=True):
        padded = np.pad(image, ((0, 0), (2, 2), (2, 2)), mode="edge")
        windows = {
            (dy, dx): padded[:, dy : dy + 5, dx : dx + 6] for dy in range(5) for dx in range(5)
        }
        fitting = [move for move, window in windows.items() if np.array_equal(window, result)]
        assert len(fitting) == 1
        seen.add(fitting[0])
    assert len(seen) > 12


def test_about_half_of_the_images_are_mirrored() -> None:
    z = torch.rand(400, 1, 3, 3, generator=generator())
    out = batches.flipped(z, generator(1))
    mirrored = (out == z.flip(3)).flatten(1).all(dim=1)
    kept = (out == z).flatten(1).all(dim=1)
    assert (mirrored ^ kept).all()
    assert 160 < int(mirrored.sum()) < 240  # four standard deviations


def test_bytes_and_floats_give_the_same_z() -> None:
    levels = torch.tensor([[[[0, 51, 255]]]], dtype=torch.uint8)
    device = torch.device("cpu")
    expected = torch.tensor([[[[-1.0, -0.6, 1.0]]]])
    torch.testing.assert_close(batches.to_z(levels, device), expected)
    torch.testing.assert_close(batches.to_z(levels / 255.0, device), expected)


def test_streams_differ_by_every_part_of_their_name() -> None:
    names = [(0, "epoch", 1), (0, "epoch", 2), (1, "epoch", 1), (0, "memory"), (0, "epoch", 1, 1)]
    device = torch.device("cpu")
    draws = {float(torch.rand(1, generator=batches.stream(device, *name))) for name in names}
    assert len(draws) == len(names)
    again = torch.rand(1, generator=batches.stream(device, *names[0]))
    assert float(again) in draws
