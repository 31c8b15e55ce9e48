"""Data sets by name: registered ones, files, and sets made in the likeness of another.

For example:

    load_dataset("digits", split="train")
    load_dataset("constant", like="digits", n=500, seed=0)
    load_dataset("folder:photos?size=32", like="cifar10", root=Path("data"))
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.data.imagefolder import read_folder
from bench.data.npzfile import read_npz
from bench.errors import InputError, UnknownName, Unsupported
from bench.registry import DATASETS
from bench.specs import Spec, check_options, parse_spec
from bench.types import Array, Dataset

if TYPE_CHECKING:
    import torch
    from torch import Tensor

READERS: dict[str, Callable[..., Dataset]] = {"npz": read_npz, "folder": read_folder}
SPLITS = ("train", "validation", "test")
MADE = ("like", "n", "seed")  # what every out-of-distribution factory takes, given by name only


def load_dataset(
    name: str,
    split: str = "test",
    *,
    root: Path | str | None = None,
    like: str | Dataset | None = None,
    n: int | None = None,
    seed: int = 0,
    limit: int | None = None,
    download: bool = False,
    **options: Any,
) -> Dataset:
    """Return the data set of that name.

    Args:
        name: A registered name, ``npz:FILE`` or ``folder:DIR``; options may follow as
            ``?key=value&key=value``, with values typed as in TOML (a bare word is a string).
        split: ``train``, ``validation`` or ``test``.
        root: Folder with downloaded data sets (``--data-root``).
        like: The in-distribution data set of an out-of-distribution one, a name or a `Dataset`.
            Images are made from its *validation* split, so that none of its test images is used.
        n: How many images of an out-of-distribution set; ``None``: the set's own default.
        seed: Seed of a set that is drawn.
        limit: Keep the first ``limit`` images.
        download: Fetch missing files, where the set knows from where.
        **options: Options of the set; they win over those in ``name``.

    Raises:
        UnknownName: Nothing is registered under that name.
        InputError: An option, a file or a shape is not what it must be.
        Unsupported: Files are missing, or the set lacks the split that is asked for.
    """
    spec = parse_spec(name, READERS, "data set")
    options = {**spec.options, **options}
    like = options.pop("like", like)
    n = _whole(name, "n", options.pop("n", n), 1)
    limit = _whole(name, "limit", limit, 1)
    seed = _whole(name, "seed", options.pop("seed", seed), 0) or 0
    if split not in SPLITS:
        raise InputError(f"'{name}' has no split '{split}'; expected one of {', '.join(SPLITS)}")
    root = None if root is None else Path(root)
    if spec.scheme:
        reference = _reference(like, root, download, must_have_validation=False)
        dataset = _from_files(spec, name, split, reference, options)
    else:
        entry = DATASETS.entry(spec.rest)
        check_options("data set", name, options, _takes(entry.target, options))
        reuses = "ood" in entry.facts and entry.facts.get("reuses_images", True)
        reference = _reference(like, root, download, must_have_validation=reuses)
        if "ood" in entry.facts:
            options |= _ood_arguments(name, reference, n, seed)
        if "download" in _takes(entry.target):
            options.setdefault("download", download)
        dataset = entry.target(split, root, **options)
        if spec.options:  # so that the name finds the other splits of the same set
            dataset = replace(dataset, name=name)
    if reference is not None:
        _check_shape(dataset, reference)
    return take(dataset, min(n or len(dataset), limit or len(dataset)))


def take(dataset: Dataset, count: int) -> Dataset:
    """Return the data set with its first ``count`` images; all of them if it has fewer."""
    if count >= len(dataset):
        return dataset
    return replace(
        dataset,
        images=dataset.images[:count],
        labels=None if dataset.labels is None else dataset.labels[:count],
        clusters=None if dataset.clusters is None else dataset.clusters[:count],
    )


def to_tensor(images: Array, device: torch.device | str | None = None) -> Tensor:
    """Return images as a float32 NCHW tensor in [0, 1]; uint8 is divided by 255.

    Raises:
        InputError: The images are neither uint8 nor float32.
    """
    import torch

    if images.dtype not in (np.uint8, np.float32):
        raise InputError(
            f"images are {images.dtype}; expected uint8 in 0..255 or float32 in [0, 1]"
        )
    tensor = torch.tensor(images, device=device)  # a copy: the data set is never written to
    return tensor.float().div_(255) if images.dtype == np.uint8 else tensor


def _whole(name: str, what: str, value: Any, least: int) -> int | None:
    """Return a count or seed, or refuse what is not a whole number."""
    if value is None:
        return None
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
        raise InputError(
            f"'{name}' was asked for with {what}={value!r}; expected a whole number, "
            f"{least} or more"
        )
    return int(value)


def _from_files(
    spec: Spec, name: str, split: str, like: Dataset | None, options: dict[str, Any]
) -> Dataset:
    reader = READERS[spec.scheme]
    known = _takes(reader)
    check_options("data set", name, options, known)
    if like is not None and "channels" in known:
        options = {"channels": like.shape[0], **options}
    return replace(reader(Path(spec.rest), split, **options), name=name)


def _takes(factory: Callable[..., Dataset], options: Iterable[str] = ()) -> list[str]:
    """Return the names of a factory's options; with ``**options`` it takes whatever is given."""
    parameters = inspect.signature(factory).parameters.values()
    named = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in MADE]
    return named + [o for o in options if any(p.kind is p.VAR_KEYWORD for p in parameters)]


def _ood_arguments(name: str, like: Dataset | None, n: int | None, seed: int) -> dict[str, Any]:
    if like is None:
        raise InputError(
            f"data set '{name}' is made in the likeness of another one; say which, "
            "e.g. load_dataset('" + name + "', like='digits')"
        )
    return {"like": like, "seed": seed} | ({} if n is None else {"n": n})


def _reference(
    like: str | Dataset | None, root: Path | None, download: bool, must_have_validation: bool
) -> Dataset | None:
    """Return the validation split of ``like``.

    A set that takes nothing but shape and statistics from it may see the test split where there
    is no validation split.
    """
    if like is None:
        return None
    if isinstance(like, Dataset) and like.split == "validation":
        return like
    name = like.name if isinstance(like, Dataset) else like
    try:
        return load_dataset(name, "validation", root=root, download=download)
    except (Unsupported, UnknownName) as error:
        if not must_have_validation:
            if isinstance(like, Dataset):
                return like
            return load_dataset(like, "test", root=root, download=download)
        if isinstance(like, Dataset) and isinstance(error, UnknownName):
            raise InputError(
                f"like= is the {like.split} split of '{name}', which is not registered; this set "
                "is made from validation images: pass that split, Dataset(split='validation', ...)"
            ) from error
        raise


def _check_shape(dataset: Dataset, like: Dataset) -> None:
    if dataset.shape != like.shape:
        c, h, w = like.shape
        raise InputError(
            f"images of '{dataset.name}' have shape {dataset.shape}, those of '{like.name}' "
            f"{like.shape} (channels, height, width), and a model must see both: convert the "
            f"files, or read a folder with '?channels={c}&size=[{h},{w}]'"
        )
