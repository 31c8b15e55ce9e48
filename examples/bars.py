"""Bars on black, vertical or horizontal: an in-distribution set that is drawn."""

import numpy as np

from bench.errors import InputError
from bench.registry import DATASETS
from bench.types import Dataset

SIZES = {"train": 200, "validation": 100, "test": 100}


@DATASETS.register("bars")
def bars(split="test", root=None, *, width=2):
    """Return vertical and horizontal bars on black, (N, 1, 8, 8)."""
    if split not in SIZES:
        raise InputError(f"bars has no split '{split}'; expected one of {', '.join(SIZES)}")
    first = sum(list(SIZES.values())[: list(SIZES).index(split)])
    images = np.zeros((SIZES[split], 1, 8, 8), np.uint8)
    labels = np.arange(SIZES[split]) % 2
    for i, label in enumerate(labels):
        place = (7 * (first + i)) % (8 - width)
        image = images[i, 0].T if label else images[i, 0]
        image[:, place : place + width] = 255 - (first + i) % 100
    return Dataset(
        name="bars",
        split=split,
        images=images,
        labels=labels.astype(np.int64),
        classes=("vertical", "horizontal"),
        eps={"linf": (0.05, 0.1, 0.2), "l2": (0.5, 1.0)},
        ood={"synthetic": ("constant", "uniform"), "shifted": ("rot90",)},
        licence="CC0",
        source="drawn",
    )
