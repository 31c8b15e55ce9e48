"""CIFAR-10 and CIFAR-100, natural images of 32x32 pixels (Krizhevsky 2009)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.registry import DATASETS
from bench.types import Dataset

from .fetched import EPS_255, SYNTHETIC, from_train, open_files, part


@DATASETS.register("cifar10")
def cifar10(split: str = "test", root: Path | None = None, *, download: bool = False) -> Dataset:
    """Return CIFAR-10, ``(N, 3, 32, 32)`` uint8: 45,000 train, 5,000 validation, 10,000 test.

    Raises:
        Unsupported: The files are not in ``root``.
        InputError: There is no such split.
    """
    from torchvision.datasets import CIFAR10

    return _load(CIFAR10, "cifar100", split, root, download)


@DATASETS.register("cifar100")
def cifar100(split: str = "test", root: Path | None = None, *, download: bool = False) -> Dataset:
    """Return CIFAR-100, fine labels, ``(N, 3, 32, 32)`` uint8; splits as for CIFAR-10.

    Raises:
        Unsupported: The files are not in ``root``.
        InputError: There is no such split.
    """
    from torchvision.datasets import CIFAR100

    return _load(CIFAR100, "cifar10", split, root, download)


def _load(
    torchvision_set: Any, near: str, split: str, root: Path | None, download: bool
) -> Dataset:
    name = torchvision_set.__name__.lower()
    train = from_train(name, split)
    found = open_files(
        name,
        f"{torchvision_set.base_folder}/",
        lambda **where: torchvision_set(train=train, **where),
        root,
        download,
    )
    images, labels = part(split, found.data.transpose(0, 3, 1, 2), found.targets)
    return Dataset(
        name=name,
        split=split,
        images=images,
        labels=labels,
        classes=tuple(found.classes),
        eps=EPS_255,
        ood={
            "near": (near,),
            "far": ("svhn",),
            "synthetic": ("interp", *SYNTHETIC),
            "shifted": ("rot90",),
        },
        licence="none stated by its authors",
        source="https://www.cs.toronto.edu/~kriz/cifar.html, read by torchvision",
        note="validation is taken out of the training images as in JEM's code",
    )
