"""The frame of an image set from a user's own files.

Nothing in such files is run (no pickles), and whatever is wrong with them is one `InputError` that
names the file.
"""

from __future__ import annotations

from pathlib import Path

from bench.types import Array, Dataset

EPS = {
    "linf": tuple(k / 255 for k in (1, 2, 4, 8, 16)),
    "l2": (0.25, 0.5, 1.0, 2.0),
}
OOD = {"synthetic": ("constant", "uniform", "gaussian")}  # what needs no validation images


def own_dataset(
    path: Path, split: str, images: Array, labels: Array | None, classes: tuple[str, ...], how: str
) -> Dataset:
    """Return the data set of a user's own images; ``how`` is appended to its source."""
    if labels is not None and not classes:
        classes = tuple(str(k) for k in range(int(labels.max(initial=-1)) + 1))
    return Dataset(
        name=path.name,
        split=split,
        images=images,
        labels=labels,
        classes=classes,
        eps=EPS,
        ood=OOD,
        licence="the owner's",
        source=f"read from {path.name}{how}",
        note="a set of the user's own: budgets are multiples of 1/255, to be judged anew",
    )
