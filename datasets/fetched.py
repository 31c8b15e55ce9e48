"""What every set that torchvision reads shares: finding the files, and the validation split."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench.errors import InputError, Unsupported
from bench.types import Array

EPS_255 = {"linf": tuple(k / 255 for k in (1, 2, 4, 8, 16)), "l2": (0.25, 0.5, 1.0, 2.0)}
SYNTHETIC = ("constant", "uniform", "gaussian", "inverted", "pixel-permuted", "photo-patches")
SPLITS = ("train", "validation", "test")
SEED = 1234


def open_files(
    name: str, files: str, read: Callable[..., Any], root: Path | None, download: bool
) -> Any:
    """Return torchvision's data set, read from ``root``, by default the folder ``data``.

    Args:
        name: The registered name, for the message.
        files: What torchvision expects in ``root``, for the message.
        read: Called with ``root`` and ``download``.
        root: The folder (``--data-root``).
        download: Let torchvision fetch what is missing.

    Raises:
        Unsupported: The files are missing or damaged, or cannot be fetched.
    """
    root = Path("data") if root is None else root
    try:
        return read(root=str(root), download=download)
    except (RuntimeError, OSError, ValueError, AssertionError, EOFError) as error:
        raise Unsupported(
            f"'{name}' cannot be read from '{root}': expected {files} in it, as torchvision has "
            f"them ({type(error).__name__}: {error}); point --data-root at the folder that holds "
            "them, or let --download fetch them"
        ) from error


def from_train(name: str, split: str) -> bool:
    """Say whether a split lies in the stored training images.

    Raises:
        InputError: There is no such split.
    """
    if split not in SPLITS:
        raise InputError(f"{name} has no split '{split}'; expected one of {', '.join(SPLITS)}")
    return split != "test"


def part(split: str, images: Array, labels: Array) -> tuple[Array, Array]:
    """Return the images and labels of a split, out of the stored ones that it lies in.

    Validation is a tenth of the training images: the first tenth of their numbers after NumPy's
    legacy shuffle with seed 1234, and train is the rest in that order. For CIFAR these are the
    5,000 and 45,000 images of JEM's code (Grathwohl et al. 2019, ``train_wrn_ebm.py``).
    """
    labels = np.asarray(labels).astype(np.int64)
    if split != "test":
        order = np.arange(len(images))
        np.random.RandomState(SEED).shuffle(order)
        tenth = len(order) // 10
        order = order[:tenth] if split == "validation" else order[tenth:]
        images, labels = images[order], labels[order]
    return np.ascontiguousarray(images), labels
