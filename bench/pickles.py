"""Files written by ``torch.save``, read without running the code that they may hold."""

from __future__ import annotations

import argparse
import io
import pickle
import pickletools
import re
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.errors import CheckpointError

_CVE_FIXED = (2, 10)  # CVE-2026-24747: weights_only=True could be escaped before
_ZIP, _PICKLE = b"PK\x03\x04", b"\x80"


def read_pickle(path: Path, head: bytes, trust: bool) -> Any:
    """Return what a ``torch.save`` file holds, on the CPU.

    NumPy scalars and `argparse.Namespace`, which research code leaves in its checkpoints, are
    read; anything else that would run code is refused.

    Args:
        path: The file.
        head: Its first bytes.
        trust: Whether the file may run code.

    Raises:
        CheckpointError: It is cut off or foreign, or would run code and is not trusted.
    """
    zipped = head.startswith(_ZIP)
    if not zipped and not head.startswith(_PICKLE):
        raise CheckpointError(
            f"{path} is no file of weights (it starts with {head[:8]!r}); expected a "
            ".safetensors file or one written by torch.save"
        )
    if zipped and not zipfile.is_zipfile(path):
        raise CheckpointError(
            f"{path} is cut off ({path.stat().st_size} bytes; its table of contents is missing); "
            "download or train it again"
        )
    if not trust:
        _warn_if_unsafe(path)
    try:
        with torch.serialization.safe_globals(_harmless()), warnings.catch_warnings():
            # Another pickle protocol gets a warning, and then an error if it cannot be read.
            warnings.filterwarnings("ignore", "Detected pickle protocol")
            return torch.load(path, "cpu", weights_only=not trust, mmap=zipped or None)
    except pickle.UnpicklingError as error:
        raise CheckpointError(_refusal(path, error)) from error
    except (RuntimeError, EOFError, ValueError, KeyError, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(
            f"{path} is damaged or foreign ({reason}); download or train it again"
        ) from error


def _warn_if_unsafe(path: Path) -> None:
    version = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2])
    if version < _CVE_FIXED:
        warnings.warn(
            f"torch {torch.__version__} can be made to run code by a hostile .pt file "
            f"(CVE-2026-24747): read {path.name} only if you trust its source, or update to "
            "torch 2.10",
            stacklevel=3,
        )


def _harmless() -> list[Any]:
    """Return what may be rebuilt besides tensors: NumPy scalars and arrays, a Namespace."""
    scalar = np.float64(0).__reduce__()[0]
    array = np.zeros(0).__reduce__()[0]
    kinds = {type(np.dtype(code)) for code in np.typecodes["AllInteger"] + "?efdFD"}
    # Old and new NumPy name the module differently.
    renamed: list[Any] = [
        (function, f"numpy.{core}.multiarray.{name}")
        for core in ("core", "_core")
        for function, name in ((scalar, "scalar"), (array, "_reconstruct"))
    ]
    return [*renamed, np.ndarray, np.dtype, *kinds, argparse.Namespace]


def _refusal(path: Path, error: Exception) -> str:
    names = ", ".join(_globals_in(path))
    if names:
        return (
            f"{path} would run code when it is read: it asks for {names}; none of it was run. If "
            "you trust its source, give --trust; better, save model.state_dict() instead"
        )
    return f"{path} is damaged or foreign ({str(error).splitlines()[0]}); download it again"


def _globals_in(path: Path) -> list[str]:
    """Return the names a file asks for beyond tensors, as far as they can be told unread."""
    found = dict.fromkeys(name for file in _pickles(path) for name in _globals_of(file))
    allowed = re.compile(r"torch\._utils\._rebuild|torch\.\w*Storage|collections\.OrderedDict")
    return [name for name in found if not allowed.match(name)]


def _pickles(path: Path) -> Iterator[io.BytesIO]:
    if not zipfile.is_zipfile(path):
        yield io.BytesIO(path.read_bytes())
        return
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if name.endswith(".pkl"):
                yield io.BytesIO(archive.read(name))


def _globals_of(file: io.BytesIO) -> Iterator[str]:
    """Yield the names in pickles that follow each other, up to bytes that are none."""
    texts: list[str] = []
    try:
        while True:
            for code, argument, _ in pickletools.genops(file):
                if code.name == "GLOBAL":
                    yield str(argument).replace(" ", ".")
                elif code.name == "STACK_GLOBAL":
                    yield ".".join(texts[-2:])
                elif isinstance(argument, str):
                    texts.append(argument)
    except ValueError:  # the end, or the numbers after the last pickle
        return
