"""Images of a folder that somebody else made, read with Pillow."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from bench.data.imagefiles import own_dataset
from bench.errors import InputError, Unsupported
from bench.types import Array, Dataset

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}


def read_folder(
    path: Path,
    split: str,
    *,
    size: float | Sequence[float] | None = None,
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
    return own_dataset(path, split, images, labels, classes, how)


def _image_files(folder: Path) -> list[Path]:
    files = [f for f in _below(folder) if f.suffix.lower() in SUFFIXES and f.is_file()]
    if not files:
        raise InputError(
            f"'{folder}' holds no images; expected files ending in {' '.join(sorted(SUFFIXES))}"
        )
    key = {f: f.relative_to(folder).as_posix() for f in files}
    return sorted(files, key=lambda f: hashlib.sha256(key[f].encode()).digest())


def _below(folder: Path, above: frozenset[Path] = frozenset()) -> Iterator[Path]:
    """Yield what is in a folder and its sub-folders; links to folders count, loops end."""
    real = folder.resolve()
    if real in above:
        return
    try:
        entries = list(folder.iterdir())
    except OSError as error:
        raise InputError(f"folder '{folder}' cannot be read: {error.strerror}") from error
    for entry in entries:
        if entry.is_dir():
            yield from _below(entry, above | {real})
        else:
            yield entry


def _open(file: Path) -> Image.Image:
    try:
        picture = Image.open(file)
        picture.load()  # and closes the file
    except (OSError, SyntaxError, ValueError) as error:  # what Pillow raises for broken files
        raise InputError(f"'{file}' is not a readable image: {error}") from error
    if picture.mode[0] in "IF":
        raise InputError(f"'{file}' has pixels of mode '{picture.mode}'; expected 8 bits a channel")
    return picture


def _height_width(size: float | Sequence[float] | None) -> tuple[int, int] | None:
    if size is None:
        return None
    pair = list(size) if isinstance(size, Sequence) else [size, size]
    if len(pair) != 2 or not all(
        isinstance(v, int | float) and v >= 1 and v % 1 == 0 for v in pair
    ):
        raise InputError(f"size={size!r}; expected pixels, as 32 or 32,48 (height, width)")
    return int(pair[0]), int(pair[1])


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
