"""Image sets from files that people bring: one ``.npz`` archive, or a folder of images.

Both are somebody else's files: nothing in them is run (no pickles), and whatever is wrong with
them is one `InputError` that names the file.
"""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from bench.errors import InputError, Unsupported
from bench.types import Array, Dataset

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}
EPS = {
    "linf": tuple(k / 255 for k in (1, 2, 4, 8, 16)),
    "l2": (0.25, 0.5, 1.0, 2.0),
}
OOD = {"synthetic": ("constant", "uniform", "gaussian")}
NOT_OURS = "the licence is the owner's"


def read_npz(path: Path, split: str, *, x: str | None = None, y: str | None = None) -> Dataset:
    """Return the images of an ``.npz`` archive.

    Images are under ``x_SPLIT``, or for the test split also ``x`` or ``images``; labels likewise
    under ``y_SPLIT``, ``y`` or ``labels``, and class names under ``classes`` where there are any.

    Args:
        path: The file.
        split: ``train``, ``validation`` or ``test``.
        x: The key of the images, if it is another one.
        y: The key of the labels, if it is another one.

    Raises:
        InputError: The file is missing, truncated, not an archive, or its arrays do not fit.
        Unsupported: It has no images for this split.
    """
    arrays = _arrays(path)
    images_key = _key(arrays, x, split, ("x", "images"), path)
    if images_key is None:
        if x is None and split != "test" and _key(arrays, x, "test", ("x", "images"), path):
            raise Unsupported(
                f"'{path}' has a test split only; store '{split}' images under 'x_{split}'"
            )
        raise InputError(
            f"'{path}' holds {', '.join(sorted(arrays)) or 'nothing'}; expected images under 'x' "
            "or 'images' (or name the key, 'npz:FILE?x=KEY')"
        )
    labels_key = _key(arrays, y, split, ("y", "labels"), path)
    labels = None if labels_key is None else _labels(arrays[labels_key], path)
    names = tuple(str(c) for c in arrays["classes"].ravel()) if "classes" in arrays else ()
    return _dataset(path, split, _channels_first(arrays[images_key], path), labels, names, "")


def read_folder(
    path: Path,
    split: str,
    *,
    size: int | Sequence[int] | None = None,
    channels: int | None = None,
) -> Dataset:
    """Return the images of a folder, with one sub-folder a class, or flat and without labels.

    Sub-folders called ``train``, ``validation`` or ``test`` are splits. Images come in the order
    of the sha256 of their relative paths, so that the first ones are a mixture of the classes.

    Args:
        path: The folder.
        split: ``train``, ``validation`` or ``test``; without split folders all is ``test``.
        size: Resize to this height and width, by Pillow's antialiased bilinear filter.
        channels: 1 (grey) or 3 (RGB); ``None``: grey if every file is.

    Raises:
        InputError: The folder is missing or empty, or an image is broken or of another size.
        Unsupported: It has no images for this split.
    """
    if not path.is_dir():
        raise InputError(f"'{path}' is not a folder; expected one with images in it")
    folder = path / split
    if not folder.is_dir():
        if split != "test":
            raise Unsupported(f"'{path}' has no sub-folder '{split}' for that split")
        folder = path
    files = _image_files(folder)
    classes = tuple(sorted({f.relative_to(folder).parts[0] for f in files if f.parent != folder}))
    loose = [f.name for f in files if f.parent == folder]
    if classes and loose:
        raise InputError(
            f"'{folder}' has images ('{loose[0]}') beside sub-folders ('{classes[0]}'); expected "
            "either one sub-folder a class, or images alone"
        )
    pictures = [_open(f) for f in files]
    if channels is None:
        channels = 1 if all(p.mode in ("1", "L") for p in pictures) else 3
    images = _decode(files, pictures, _height_width(size), channels)
    numbers = [classes.index(f.relative_to(folder).parts[0]) for f in files] if classes else None
    labels = None if numbers is None else np.array(numbers, np.int64)
    how = "" if size is None else "; resized by Pillow BILINEAR (antialiased)"
    return _dataset(path, split, images, labels, classes, how)


READERS: Mapping[str, Callable[..., Dataset]] = {"npz": read_npz, "folder": read_folder}


def _dataset(
    path: Path, split: str, images: Array, labels: Array | None, classes: tuple[str, ...], how: str
) -> Dataset:
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
        licence=NOT_OURS,
        source=f"read from {path.name}{how}",
        note="a set of the user's own: budgets are multiples of 1/255, to be judged anew",
    )


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
            return {key: archive[key] for key in archive.files}
    except ValueError as error:
        raise InputError(
            f"'{path}' cannot be read: {error}; expected plain arrays, since objects would run "
            "code on loading: save them as numbers"
        ) from error
    except (OSError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"'{path}' is damaged ({error}); fetch or write it again") from error


def _key(
    arrays: Mapping[str, Array], asked: str | None, split: str, usual: tuple[str, str], path: Path
) -> str | None:
    """Return the key that holds what is asked for, or ``None``."""
    if asked is not None:
        if asked not in arrays:
            raise InputError(f"'{path}' has no array '{asked}'; it holds {', '.join(arrays)}")
        return asked
    candidates = [f"{usual[0]}_{split}", *(usual if split == "test" else ())]
    return next((key for key in candidates if key in arrays), None)


def _channels_first(images: Array, path: Path) -> Array:
    """Return images as ``(N, C, H, W)`` with C = 1 or 3; floats become float32."""
    shape = images.shape
    if images.ndim == 3:
        images = images[:, None]
    elif images.ndim == 4 and shape[1] not in (1, 3) and shape[3] in (1, 3):
        images = images.transpose(0, 3, 1, 2)
    elif images.ndim != 4 or shape[1] not in (1, 3):
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
    return labels.astype(np.int64)


def _image_files(folder: Path) -> list[Path]:
    files = [f for f in folder.rglob("*") if f.suffix.lower() in SUFFIXES and f.is_file()]
    if not files:
        raise InputError(
            f"'{folder}' holds no images; expected files ending in {' '.join(sorted(SUFFIXES))}"
        )
    key = {f: f.relative_to(folder).as_posix() for f in files}
    return sorted(files, key=lambda f: hashlib.sha256(key[f].encode()).digest())


def _open(file: Path) -> Image.Image:
    try:
        picture = Image.open(file)
        picture.load()  # and closes the file
    except (OSError, SyntaxError, ValueError) as error:  # what Pillow raises for broken files
        raise InputError(f"'{file}' is not a readable image: {error}") from error
    if picture.mode[0] in "IF":
        raise InputError(f"'{file}' has pixels of mode '{picture.mode}'; expected 8 bits a channel")
    return picture


def _height_width(size: int | Sequence[int] | None) -> tuple[int, int] | None:
    if size is None:
        return None
    pair = [size, size] if isinstance(size, int) else list(size)
    if len(pair) != 2 or not all(type(v) is int and v > 0 for v in pair):
        raise InputError(f"size={size!r}; expected pixels, as 32 or [height, width]")
    return pair[0], pair[1]


def _decode(
    files: list[Path], pictures: list[Image.Image], size: tuple[int, int] | None, channels: Any
) -> Array:
    """Return ``(N, C, H, W)`` uint8."""
    if channels not in (1, 3):
        raise InputError(f"channels={channels!r}; expected 1 (grey) or 3 (RGB)")
    first = size or (pictures[0].height, pictures[0].width)
    rows = []
    for file, picture in zip(files, pictures, strict=True):
        picture = picture.convert("L" if channels == 1 else "RGB")
        if size is not None:
            picture = picture.resize((size[1], size[0]), Image.Resampling.BILINEAR)
        if (picture.height, picture.width) != first:
            raise InputError(
                f"'{file}' is {picture.height}x{picture.width} and '{files[0]}' "
                f"{first[0]}x{first[1]}; all images must have one size: add '?size={first[0]}'"
            )
        rows.append(np.asarray(picture).reshape(*first, channels))
    return np.ascontiguousarray(np.stack(rows).transpose(0, 3, 1, 2))
