"""Lengths of PNG files against those that Pillow writes."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from bench.scores.png import png_lengths
from bench.types import Array


def pillow_lengths(pixels: Array) -> list[int]:
    lengths = []
    for image in pixels:
        flat = image.transpose(1, 2, 0) if len(image) == 3 else np.concatenate(list(image), axis=1)
        file = io.BytesIO()
        Image.fromarray(flat).save(file, format="PNG")
        lengths.append(file.tell())
    return lengths


def smooth(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Return random walks along both axes: each filter is best for some lines."""
    steps = random.integers(-3, 4, shape)
    return (128 + steps.cumsum(axis=2).cumsum(axis=3)).astype(np.uint8)


@pytest.mark.parametrize(
    "shape", [(40, 1, 8, 8), (10, 3, 17, 5), (4, 2, 6, 9), (3, 1, 1, 1), (2, 3, 64, 64)]
)
def test_as_long_as_pillows_files(shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    noise = random.integers(0, 256, shape).astype(np.uint8)
    few = random.integers(0, 3, shape).astype(np.uint8)
    for pixels in (noise, few, smooth(random, shape), np.zeros(shape, np.uint8)):
        # Another deflate (Pillow's need not be Python's) may differ by a few bytes.
        assert np.allclose(png_lengths(pixels), pillow_lengths(pixels), rtol=0.02, atol=3)


def test_more_than_one_chunk_of_data() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (2, 3, 220, 224)).astype(np.uint8)
    assert png_lengths(pixels) == pytest.approx(pillow_lengths(pixels), abs=24)
    assert min(png_lengths(pixels)) > pixels[0].size


def test_a_length_is_of_the_image_alone() -> None:
    pixels = smooth(np.random.default_rng(1), (9, 3, 12, 12))
    assert png_lengths(pixels[4:6]) == png_lengths(pixels)[4:6]
    large = smooth(np.random.default_rng(1), (3, 3, 400, 500))  # filtered one or two at a time
    assert png_lengths(large[2:]) == png_lengths(large)[2:]
