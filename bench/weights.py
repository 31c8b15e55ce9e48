"""Weight files: read without running code, written whole or not at all, found by name.

A ``.safetensors`` file cannot hold code. A ``.pt`` file is a pickle, as a rule inside a zip
archive: it is read with PyTorch's restricted unpickler (``weights_only=True``), and a file that
would run code is refused unless the caller trusts it.
"""

from __future__ import annotations

import hashlib
import importlib.resources
import io
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from bench.errors import CheckpointError
from bench.pickles import read_pickle

StateDict = dict[str, Tensor]

_WRAPPERS = ("model_state_dict", "state_dict")
_METADATA = "bench"  # all under one key: safetensors writes several in random order
_NAMED = 5  # how many keys an error names before it counts


def read_weights(path: Path | str, trust: bool = False) -> tuple[StateDict, dict[str, Any]]:
    """Return the tensors of a file of weights, on the CPU, and what else it says of itself.

    Args:
        path: A ``.safetensors`` file, or one written by ``torch.save``.
        trust: Whether a file that runs code when it is read may do so.

    Raises:
        CheckpointError: The file is missing, empty, cut off, foreign, or would run code.
    """
    path = Path(path)
    head = _head(path)
    if head[8:9] == b"{":
        return _read_safetensors(path)
    if path.suffix == ".safetensors":
        raise CheckpointError(f"{path} is not in safetensors format; rename it if it is a .pt file")
    return _tensors(read_pickle(path, head, trust), str(path))


def _head(path: Path) -> bytes:
    """Return the first bytes, or say why they cannot be those of weights."""
    if not path.is_file():
        raise CheckpointError(
            f"there is no file '{path}'; expected a .safetensors or .pt file of weights"
        )
    with path.open("rb") as file:
        head = file.read(64)
    if not head:
        raise CheckpointError(f"{path} is empty (0 bytes); download or train it again")
    start = head.lstrip().lower()
    if start.startswith((b"<!doctype", b"<html", b"<?xml", b"<head")):
        raise CheckpointError(
            f"{path} is a web page, not weights: the link asked for a log-in or a confirmation; "
            "download the file itself"
        )
    if start.startswith(b"version https://git-lfs"):
        raise CheckpointError(f"{path} is a Git LFS pointer, not weights; run 'git lfs pull'")
    return head


def _read_safetensors(path: Path) -> tuple[StateDict, dict[str, Any]]:
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = dict(file.metadata() or {})
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        size = path.stat().st_size
        raise CheckpointError(
            f"{path} is cut off or damaged ({size} bytes; {error}); download or train it again"
        ) from error
    ours = metadata.pop(_METADATA, None)
    return state, {**metadata, **(json.loads(ours) if ours else {})}


def _tensors(loaded: object, where: str) -> tuple[StateDict, dict[str, Any]]:
    """Return the tensors of what a file holds, unwrapped, and the rest."""
    if isinstance(loaded, nn.Module):  # only from a trusted file
        return dict(loaded.state_dict()), {}
    if not isinstance(loaded, Mapping):
        raise CheckpointError(
            f"{where} holds a {type(loaded).__name__}; expected a state dict of named tensors"
        )
    rest = {k: v for k, v in loaded.items() if not isinstance(v, Tensor)}
    for key in _WRAPPERS:
        if isinstance(loaded.get(key), Mapping):
            state, _ = _tensors(loaded[key], where)
            return state, {k: v for k, v in rest.items() if k != key}
    state = {str(k): v for k, v in loaded.items() if isinstance(v, Tensor)}
    if not state:
        raise CheckpointError(
            f"{where} holds no tensors under {', '.join(map(str, loaded)) or 'any key'}; expected "
            f"a state dict, by itself or under one of {', '.join(_WRAPPERS)}"
        )
    return state, rest


def load_into(module: nn.Module, state_dict: Mapping[str, Any], where: Path | str) -> None:
    """Copy weights into ``module``; every key must fit.

    Wrapped state dicts are unwrapped, and the ``module.`` that DataParallel adds is taken off.

    Args:
        module: What to load into.
        state_dict: Named tensors.
        where: Where they come from, for the message.

    Raises:
        CheckpointError: Keys are missing, left over, or of another shape.
    """
    state, _ = _tensors(state_dict, str(where))
    if all(name.startswith("module.") for name in state):
        state = {name.removeprefix("module."): value for name, value in state.items()}
    own = module.state_dict()
    shapes = [
        f"{name} is {tuple(state[name].shape)}, not {tuple(own[name].shape)}"
        for name in own
        if name in state and state[name].shape != own[name].shape
    ]
    problems = {
        "missing": [name for name in own if name not in state],
        "unexpected": [name for name in state if name not in own],
        "of another shape": shapes,
    }
    told = [f"{len(names)} {what} ({_some(names)})" for what, names in problems.items() if names]
    if told:
        raise CheckpointError(
            f"the weights in {where} do not fit {type(module).__name__} of {len(own)} tensors: "
            f"{'; '.join(told)}; check the network, the data set and the number of classes"
        )
    module.load_state_dict(state)


def _some(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f", and {more} more" if more > 0 else "")


def write_weights(
    path: Path, state_dict: Mapping[str, Tensor], metadata: Mapping[str, Any]
) -> None:
    """Write a ``.safetensors`` file, whole or not at all; equal input gives equal bytes.

    Args:
        path: Where to; its folder is made.
        state_dict: Named tensors.
        metadata: Plain data, kept as JSON.
    """
    state = {name: value.detach().cpu().contiguous() for name, value in state_dict.items()}
    text = json.dumps(metadata, sort_keys=True)
    write_bytes(path, safetensors.torch.save(state, {_METADATA: text}))


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file, whole or not at all: temporary file, fsync, rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write nested plain data with tensors in it, as of a training, whole or not at all."""
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    write_bytes(path, buffer.getvalue())


def read_state(path: Path) -> dict[str, Any]:
    """Return what `write_state` wrote, on the CPU.

    Raises:
        CheckpointError: The file is missing, damaged, or something else.
    """
    state = read_pickle(path, _head(path), trust=False)
    if not isinstance(state, dict):
        raise CheckpointError(f"{path} holds a {type(state).__name__}; remove it to start anew")
    return state


def weights_name(model: str, dataset: str, network: str) -> str:
    """Return the file name of weights: what `find_weights` looks for."""
    return f"{model}-{dataset}-{network}.safetensors"


def find_weights(model: str, dataset: str, network: str, folders: Sequence[Path]) -> Path | None:
    """Return the weights that ship, or else the first in ``folders``; ``None``: there are none."""
    name = weights_name(model, dataset, network)
    shipped = Path(str(importlib.resources.files("bench.baselines"))) / "weights"
    for folder in (shipped, *folders):
        if (folder / name).is_file():
            return folder / name
    return None


def card_path(weights: Path) -> Path:
    """Return where the card of a file of weights lies: beside it."""
    return weights.with_suffix(".json")


def read_card(weights: Path) -> dict[str, Any]:
    """Return what is known of a file of weights; empty where it has no card.

    Raises:
        CheckpointError: The card is not a JSON object.
    """
    path = card_path(weights)
    if not path.is_file():
        return {}
    try:
        card = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path} is not JSON ({error}); remove it or train again") from error
    if not isinstance(card, dict):
        raise CheckpointError(f"{path} holds a {type(card).__name__}; expected a JSON object")
    return card


def weights_sha256(weights: nn.Module | Mapping[str, Tensor]) -> str:
    """Return a digest over names, dtypes, shapes and bytes, in the order of names."""
    state = weights.state_dict() if isinstance(weights, nn.Module) else weights
    digest = hashlib.sha256()
    for name in sorted(state):
        value = state[name].detach().cpu().contiguous()
        digest.update(f"{name};{value.dtype};{tuple(value.shape)};".encode())
        digest.update(value.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
