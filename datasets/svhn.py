"""Street View House Numbers, cropped digits of 32x32 pixels (Netzer et al. 2011)."""

from __future__ import annotations

from pathlib import Path

from bench.registry import DATASETS
from bench.types import Dataset

from .fetched import EPS_255, SYNTHETIC, from_train, open_files, part


@DATASETS.register("svhn")
def svhn(split: str = "test", root: Path | None = None, *, download: bool = False) -> Dataset:
    """Return SVHN, ``(N, 3, 32, 32)`` uint8: 65,932 train, 7,325 validation, 26,032 test.

    The 531,131 extra training images are not used.

    Raises:
        Unsupported: The files are not in ``root``.
        InputError: There is no such split.
    """
    from torchvision.datasets import SVHN

    stored = "train" if from_train("svhn", split) else "test"
    found = open_files(
        "svhn", f"{stored}_32x32.mat", lambda **where: SVHN(split=stored, **where), root, download
    )
    images, labels = part(split, found.data, found.labels)
    return Dataset(
        name="svhn",
        split=split,
        images=images,
        labels=labels,
        classes=tuple(str(k) for k in range(10)),
        eps=EPS_255,
        ood={
            "near": ("interp",),
            "far": ("cifar10", "cifar100"),
            "synthetic": SYNTHETIC,
            "shifted": ("rot90",),
        },
        licence="non-commercial use only",
        source="http://ufldl.stanford.edu/housenumbers/, read by torchvision",
        note="validation is a seeded tenth of the training images",
    )
