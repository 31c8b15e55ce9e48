"""Handwritten digits, 8x8 grey: the embedded data set, part of scikit-learn.

1,797 images of the UCI "Optical Recognition of Handwritten Digits" test set (Alpaydin and Kaynak,
1998, doi 10.24432/C50P49): each pixel counts the ink in a 4x4 cell of a 32x32 bitmap, 0 to 16.
"""

from __future__ import annotations

import hashlib
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from bench.errors import InputError
from bench.registry import DATASETS
from bench.types import Array, Dataset

# Rows of the hash order. The order depends on the pixels alone, so neither a library's random
# generator nor the order in which scikit-learn stores the images can move an image.
SPLITS = {"test": slice(0, 500), "validation": slice(500, 797), "train": slice(797, 1797)}
SHA256 = {
    "test": "e959f5698086055e0e7ea920e5323dc75de41ebbceb6b8459648e18ee77aa2ca",
    "validation": "55b36e24612279e063a7ae48309bca14622d0f3dbd25754c444c700a0bf646ba",
    "train": "3dfb720572b4beeaf710a9d647b54ebb7d4a5a596331bd7c589a52ca81d63d72",
}
EPS = {"linf": (0.025, 0.05, 0.1, 0.15, 0.2), "l2": (0.125, 0.25, 0.5, 0.75, 1.0)}
OOD = {
    "near": ("interp", "letters"),
    "synthetic": (
        "constant",
        "uniform",
        "gaussian",
        "inverted",
        "pixel-permuted",
        "photo-patches",
    ),
    "shifted": ("rot90",),
}


def hash_order(counts: Array) -> list[int]:
    """Return the row numbers by the sha256 of each row's bytes, ties by row number."""
    keys = [hashlib.sha256(row.tobytes()).digest() for row in counts]
    return sorted(range(len(keys)), key=lambda i: (keys[i], i))


def _stored() -> tuple[Array, Array]:
    """Return the counts ``(N, 8, 8)`` uint8 and the classes ``(N,)`` that scikit-learn ships.

    They are read from its file: importing the package takes a second of every start. Its own
    loader is asked where the file lies elsewhere; the sums tell whether it is the same data.
    """
    package = find_spec("sklearn")
    if package is not None and package.origin is not None:
        file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
        if file.is_file():
            table = np.loadtxt(file, delimiter=",")
            return table[:, :-1].reshape(-1, 8, 8).astype(np.uint8), table[:, -1].astype(np.int64)
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return bunch.images.astype(np.uint8), bunch.target.astype(np.int64)


@DATASETS.register("digits")
def digits(split: str = "test", root: Path | None = None) -> Dataset:
    """Return scikit-learn's digits, ``(N, 1, 8, 8)``: 1,000 train, 297 validation, 500 test.

    Args:
        split: ``train``, ``validation`` or ``test``.
        root: Not used; the images are part of scikit-learn.

    Raises:
        InputError: There is no such split, or this scikit-learn ships other pixels.
    """
    if split not in SPLITS:
        raise InputError(f"digits has no split '{split}'; expected one of {', '.join(SPLITS)}")
    counts, labels = _stored()
    rows = hash_order(counts)[SPLITS[split]]
    dataset = Dataset(
        name="digits",
        split=split,
        images=counts[rows][:, None].astype(np.float32) / np.float32(16),
        labels=labels[rows],
        classes=tuple(str(k) for k in range(10)),
        eps=EPS,
        ood=OOD,
        licence="CC BY 4.0",
        source="scikit-learn load_digits (UCI optical digits, doi 10.24432/C50P49), counts / 16",
        note="8x8 pixels; 500 test images: one standard error is about 0.7 points at 97 %",
    )
    if dataset.sha256 != SHA256[split]:
        raise InputError(
            f"digits ({split}) has sha256 {dataset.sha256}, expected {SHA256[split]}: this "
            "scikit-learn ships other pixels or labels; install scikit-learn 1.4 to 1.9"
        )
    return dataset
