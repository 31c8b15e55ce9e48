"""Data sets by name: registered ones, files, and sets made in the likeness of another.

load_dataset("digits", split="train")
load_dataset("constant", like="digits", n=500, seed=0)
load_dataset("folder:photos?size=32", like="cifar10", root=Path("data"))
"""

from __future__ import annotations

import inspect
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.errors import InputError, UnknownName, Unsupported
from bench.imagefiles import READERS
from bench.registry import DATASETS
from bench.types import Array, Dataset

if TYPE_CHECKING:
    import torch
    from torch import Tensor


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
    stem, found = parse_spec(name)
    options = {**found, **options}
    n, seed = options.pop("n", n), options.pop("seed", seed)
    _check_count(name, "n", n)
    _check_count(name, "limit", limit)
    root = None if root is None else Path(root)
    scheme, colon, rest = stem.partition(":")
    if colon and scheme in READERS:
        reference = _reference(like, root, download, must_have_validation=False)
        if scheme == "folder" and reference is not None:
            options.setdefault("channels", reference.shape[0])
        dataset = READERS[scheme](Path(rest), split, **_known(name, READERS[scheme], options))
        dataset = replace(dataset, name=name)
    else:
        facts = DATASETS.entry(stem).facts
        reuses = bool(facts.get("ood") and facts.get("reuses_images", True))
        reference = _reference(like, root, download, must_have_validation=reuses)
        factory = DATASETS[stem]
        given = _known(name, factory, options)
        if facts.get("ood"):
            given |= _ood_arguments(name, reference, n, seed)
        if "download" in inspect.signature(factory).parameters:
            given.setdefault("download", download)
        dataset = factory(split, root, **given)
    if reference is not None:
        _check_shape(dataset, reference)
    return take(dataset, min(n or len(dataset), limit or len(dataset)))


def parse_spec(spec: str) -> tuple[str, dict[str, Any]]:
    """Split ``name?key=value&...`` into the name and its options, typed as TOML values."""
    stem, mark, query = spec.partition("?")
    options: dict[str, Any] = {}
    for pair in query.split("&") if mark else ():
        key, equals, text = pair.partition("=")
        if not (equals and key.isidentifier()):
            raise InputError(
                f"'{pair}' in '{spec}' is not an option; expected 'name?key=value&key=value'"
            )
        try:
            options[key] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            options[key] = text
    return stem, options


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


def _check_count(name: str, what: str, value: Any) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise InputError(
            f"'{name}' was asked for with {what}={value}; expected a whole number >= 1"
        )


def _known(name: str, factory: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options, or refuse one that the factory does not take."""
    parameters = inspect.signature(factory).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return dict(options)
    own = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    known = [k for k in own if k not in ("like", "n", "seed")]
    for key in options:
        if key not in known:
            takes = f"it takes {', '.join(known)}" if known else "it takes none"
            raise InputError(f"data set '{name}' has no option '{key}'; {takes}")
    return dict(options)


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
