"""Arrays of images and labels from an ``.npz`` archive that somebody else made."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from bench.data.imagefiles import own_dataset
from bench.errors import InputError, Unsupported
from bench.types import Array, Dataset

MOST_CLASSES = 100_000  # beyond it labels are something else, e.g. identifiers


def read_npz(path: Path, split: str, *, x: str | None = None, y: str | None = None) -> Dataset:
    """Return the images of an ``.npz`` archive.

    Images are under ``x_SPLIT``, or for the test split also ``x`` or ``images``; labels likewise
    under ``y_SPLIT``, ``y`` or ``labels``, and class names under ``classes`` where there are any.

    Args:
        path: The file.
        split: ``train``, ``validation`` or ``test``.
        x: The key of the test images, if it is another one.
        y: The key of their labels, if it is another one.

    Raises:
        InputError: The file is missing, truncated, not an archive, or its arrays do not fit.
        Unsupported: It has no images for this split.
    """
    arrays = _arrays(path)
    images_key = _key(arrays, x, split, ("x", "images"), path)
    if images_key is None:
        if split != "test":
            raise Unsupported(
                f"'{path}' holds {', '.join(sorted(arrays))} and no '{split}' images; store them "
                f"under 'x_{split}'"
            )
        raise InputError(
            f"'{path}' holds {', '.join(sorted(arrays)) or 'nothing'}; expected images under 'x' "
            "or 'images' (or name the key, 'npz:FILE?x=KEY')"
        )
    labels_key = _key(arrays, y, split, ("y", "labels"), path)
    labels = None if labels_key is None else _labels(arrays[labels_key], path)
    names = tuple(str(c) for c in arrays["classes"].ravel()) if "classes" in arrays else ()
    return own_dataset(path, split, _channels_first(arrays[images_key], path), labels, names, "")


def _arrays(path: Path) -> dict[str, Array]:
    """Return every array of the archive; reading pickles is off."""
    if not path.is_file():
        raise InputError(f"there is no file '{path}'; expected an .npz archive of images")
    if not zipfile.is_zipfile(path):
        with path.open("rb") as file:
            page = file.read(64).lstrip().startswith(b"<")
        what = "a web page (the download went wrong)" if page else "truncated, or another format"
        raise InputError(f"'{path}' is not an .npz archive: it is {what}; fetch or write it again")
    try:
        with np.load(path, allow_pickle=False) as archive:
            members = {key: archive[key] for key in archive.files}
    except ValueError as error:
        raise InputError(
            f"'{path}' cannot be read: {error}; expected plain arrays, since objects would run "
            "code on loading: save them as numbers"
        ) from error
    except (OSError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"'{path}' is damaged ({error}); fetch or write it again") from error
    # NumPy returns members of other formats, of any zip archive, as bytes.
    return {key: value for key, value in members.items() if isinstance(value, np.ndarray)}


def _key(
    arrays: Mapping[str, Array], asked: str | None, split: str, usual: tuple[str, str], path: Path
) -> str | None:
    """Return the key that holds what is asked for, or ``None``.

    A key without the name of a split means test images, so that no split is read twice.
    """
    if asked is not None and asked not in arrays:
        raise InputError(f"'{path}' has no array '{asked}'; it holds {', '.join(arrays)}")
    candidates = [f"{usual[0]}_{split}"]
    if split == "test":
        candidates = [asked] if asked is not None else [*candidates, *usual]
    return next((key for key in candidates if key in arrays), None)


def _channels_first(images: Array, path: Path) -> Array:
    """Return images as ``(N, C, H, W)`` with C = 1 or 3; floats become float32."""
    shape = images.shape
    if images.ndim == 3:
        images = images[:, None]
    elif images.ndim == 4 and shape[1] not in (1, 3) and shape[3] in (1, 3):
        images = images.transpose(0, 3, 1, 2)
    if images.ndim != 4 or images.shape[1] not in (1, 3) or 0 in images.shape[1:]:
        raise InputError(
            f"images in '{path}' have shape {shape}; expected (N, H, W), (N, C, H, W) or "
            "(N, H, W, C) with 1 or 3 channels"
        )
    if images.dtype.kind == "f":
        images = images.astype(np.float32)
    return np.ascontiguousarray(images)


def _labels(labels: Array, path: Path) -> Array:
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or labels.min(initial=0) < 0:
        raise InputError(
            f"labels in '{path}' are {labels.dtype} of shape {labels.shape}; expected class "
            "numbers from 0, integers of shape (N,)"
        )
    if labels.max(initial=0) >= MOST_CLASSES:
        raise InputError(
            f"labels in '{path}' go up to {labels.max()}; expected class numbers 0, 1, 2, ... "
            f"of at most {MOST_CLASSES:,} classes: number the classes without gaps"
        )
    return labels.astype(np.int64)
