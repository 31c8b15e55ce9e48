"""Batches for training: an order, mild augmentation, and z = 2x - 1 with input noise.

JEM's data pipeline (Grathwohl et al. 2019, arXiv 1912.03263, and its code): reflect-pad and crop,
flip, scale to [-1, 1], then Gaussian noise. Every draw comes from the generator that is passed in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from bench.types import Dataset


def stream(device: torch.device, *path: int | str) -> torch.Generator:
    """Return a generator that belongs to the named stream, e.g. ``(seed, "epoch", 3)``."""
    key = hashlib.blake2b(repr(path).encode(), digest_size=7).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(key, "little"))


def pixels(dataset: Dataset) -> Tensor:
    """Return the images ``(N, C, H, W)`` as they are stored, uint8 or float32."""
    return torch.from_numpy(np.require(dataset.images, requirements=["C", "W"]))


def to_z(images: Tensor, device: torch.device) -> Tensor:
    """Return images as float32 in [-1, 1] on ``device``; uint8 is 0..255, float is [0, 1]."""
    x = images.to(device)
    x = x.to(torch.float32) / 255.0 if x.dtype == torch.uint8 else x
    return 2.0 * x - 1.0


def shifted(z: Tensor, most: int, generator: torch.Generator) -> Tensor:
    """Move each image by up to ``most`` pixels each way; the border repeats outwards."""
    n, _, height, width = z.shape
    padded = pad(z, (most,) * 4, mode="replicate")
    dy, dx = torch.randint(2 * most + 1, (2, n), generator=generator, device=z.device)
    rows = dy[:, None] + torch.arange(height, device=z.device)
    columns = dx[:, None] + torch.arange(width, device=z.device)
    image = torch.arange(n, device=z.device)[:, None, None]
    # Indexing on both sides of the channel axis puts that axis last.
    return padded[image, :, rows[:, :, None], columns[:, None, :]].movedim(3, 1)


def flipped(z: Tensor, generator: torch.Generator) -> Tensor:
    """Mirror half of the images, left to right."""
    mirror = torch.rand(len(z), generator=generator, device=z.device) < 0.5
    return torch.where(mirror[:, None, None, None], z.flip(3), z)


def epoch_batches(count: int, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield the row numbers of full batches in a fresh order; the last, short one is dropped."""
    size = min(size, count)
    order = torch.randperm(count, generator=generator, device=generator.device).cpu()
    for start in range(0, count - size + 1, size):
        yield order[start : start + size]
