"""Photo patches: crops of the two sample photographs that scikit-learn ships.

china.jpg and flower.jpg, both 640x427 and CC BY (see scikit-learn's datasets/images/README.txt).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from bench.registry import DATASETS
from bench.types import Dataset

from .making import generator, made

PHOTOS = ("china.jpg", "flower.jpg")
ROWS, COLUMNS, CELL = 4, 6, 106  # the grid that is laid over each photograph, cells in pixels
SMALLEST = 32  # side of the smallest crop


@DATASETS.register("photo-patches", ood="synthetic", reuses_images=False)
def photo_patches(
    split: str = "test", root: Path | None = None, *, like: Dataset, n: int = 500, seed: int = 0
) -> Dataset:
    """Return square crops of two photographs, resized to the images of ``like``.

    A crop of 32 to 106 pixels a side lies in one of 48 grid cells, which is its cluster: crops of
    different cells share no pixel. Pillow resizes (bilinear, antialiased), in grey for C = 1.
    """
    from sklearn.datasets import load_sample_image

    c, h, w = like.shape
    mode = "L" if c == 1 else "RGB"
    photos = [Image.fromarray(load_sample_image(name)).convert(mode) for name in PHOTOS]
    draws = generator(seed, "photo-patches").random((max(n, 0), 4))
    cells = (draws[:, 0] * len(photos) * ROWS * COLUMNS).astype(np.int64)
    patches = [
        np.asarray(_crop(photos, cell, *draw).resize((w, h), Image.Resampling.BILINEAR))
        for cell, draw in zip(cells.tolist(), draws[:, 1:].tolist(), strict=True)
    ]
    images = np.array(patches, np.float32).reshape(-1, h, w, c).transpose(0, 3, 1, 2)
    return made(
        "photo-patches",
        split,
        images / np.float32(255),
        asked=n,
        like=like,
        clusters=cells,
        licence="CC BY 2.0",
        source="random crops of scikit-learn's china.jpg and flower.jpg, Pillow BILINEAR",
        note="two photographs only: intervals resample grid cells and are still too narrow",
    )


def _crop(
    photos: list[Image.Image], cell: int, side: float, top: float, left: float
) -> Image.Image:
    """Return the crop of a cell for three draws in [0, 1): its side and its place in the cell."""
    photo, place = divmod(cell, ROWS * COLUMNS)
    row, column = divmod(place, COLUMNS)
    pixels = SMALLEST + int(side * (CELL - SMALLEST + 1))
    y = row * CELL + int(top * (CELL - pixels + 1))
    x = column * CELL + int(left * (CELL - pixels + 1))
    return photos[photo].crop((x, y, x + pixels, y + pixels))
