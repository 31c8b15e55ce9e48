"""MNIST (LeCun et al. 1998) and Fashion-MNIST (Xiao et al. 2017), grey, 28x28 pixels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.registry import DATASETS
from bench.types import Dataset

from .fetched import SYNTHETIC, from_train, open_files, part

# Strokes are nearly binary, so budgets are larger than for natural images; L-inf 0.3 is Madry's.
EPS = {"linf": (0.05, 0.1, 0.2, 0.3), "l2": (0.5, 1.0, 1.5, 2.0)}
CLOTHES = (
    "T-shirt/top",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)


@DATASETS.register("mnist")
def mnist(split: str = "test", root: Path | None = None, *, download: bool = False) -> Dataset:
    """Return MNIST, ``(N, 1, 28, 28)`` uint8: 54,000 train, 6,000 validation, 10,000 test.

    Raises:
        Unsupported: The files are not in ``root``.
        InputError: There is no such split.
    """
    from torchvision.datasets import MNIST

    return _load(
        "mnist",
        MNIST,
        split,
        root,
        download,
        classes=tuple(str(k) for k in range(10)),
        ood={
            "near": ("interp", "letters"),
            "far": ("fashion-mnist",),
            "synthetic": SYNTHETIC,
            "shifted": ("rot90",),
        },
        licence="CC BY-SA 3.0",
        source="http://yann.lecun.com/exdb/mnist/, read by torchvision",
    )


@DATASETS.register("fashion-mnist")
def fashion_mnist(
    split: str = "test", root: Path | None = None, *, download: bool = False
) -> Dataset:
    """Return Fashion-MNIST, ``(N, 1, 28, 28)`` uint8; splits as for MNIST.

    Raises:
        Unsupported: The files are not in ``root``.
        InputError: There is no such split.
    """
    from torchvision.datasets import FashionMNIST

    return _load(
        "fashion-mnist",
        FashionMNIST,
        split,
        root,
        download,
        classes=CLOTHES,
        ood={
            "near": ("interp",),
            "far": ("mnist", "letters"),
            "synthetic": SYNTHETIC,
            "shifted": ("rot90",),
        },
        licence="MIT",
        source="https://github.com/zalandoresearch/fashion-mnist, read by torchvision",
    )


def _load(
    name: str, torchvision_set: Any, split: str, root: Path | None, download: bool, **facts: Any
) -> Dataset:
    train = from_train(name, split)
    found = open_files(
        name,
        f"{torchvision_set.__name__}/raw/",
        lambda **where: torchvision_set(train=train, **where),
        root,
        download,
    )
    images, labels = part(split, found.data[:, None].numpy(), found.targets.numpy())
    note = "validation is a seeded tenth of the training images"
    return Dataset(
        name=name, split=split, images=images, labels=labels, eps=EPS, note=note, **facts
    )
