"""The card of a file of weights: how it was made, and how good it is."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from bench.data import to_tensor
from bench.errors import BenchError, CheckpointError, InputError
from bench.training import Trained
from bench.types import Dataset
from bench.weights import card_path, read_card, read_weights, weights_sha256

SPLITS = ("train", "validation", "test")


def is_done(weights: Path, request: Mapping[str, Any]) -> bool:
    """Say whether these weights are the whole result of this request.

    Raises:
        InputError: They are of another one.
    """
    card = read_card(weights)
    if not weights.is_file() or not card:
        return False
    refuse_another(card_path(weights), request)
    try:
        return weights_sha256(read_weights(weights)[0]) == card.get("weights_sha256")
    except CheckpointError:  # an unreadable file is a missing one
        return False


def refuse_another(path: Path, request: Mapping[str, Any]) -> None:
    """Raise `InputError` if ``path`` tells of a training that differs from the request."""
    if not path.is_file():
        return
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(
            f"{path} is not JSON ({error}); give --fresh to replace it"
        ) from error
    wanted = json.loads(as_json(request))
    # Options are compared one by one; command and objective only tell the same in words.
    words = {"options": 0, "command": 0, "objective": 0}
    found, wanted = ({**r, **r.get("options", {}), **words} for r in (found, wanted))
    told = [f"{k}={found.get(k)}, not {v}" for k, v in wanted.items() if found.get(k) != v]
    if told:
        raise InputError(
            f"{path} is of another training ({'; '.join(told[:3])}); give another --out, or "
            "--fresh to replace it"
        )


def make_card(
    request: Mapping[str, Any],
    trained: Trained,
    data: Mapping[str, Dataset],
    device: torch.device,
    threads: int,
) -> dict[str, Any]:
    """Return what is to be known of the weights, as plain data without any path."""
    measured = {split: measure(trained.model, data[split], device) for split in SPLITS[1:]}
    return {
        **request,
        "weights_sha256": weights_sha256(trained.model),
        "epochs": trained.epochs,
        "best_epoch": trained.best_epoch,
        "restarts": list(trained.restarts),
        "accuracy": {split: accuracy for split, (accuracy, _) in measured.items()},
        "nll": {split: nll for split, (_, nll) in measured.items()},
        "seconds": round(trained.seconds, 1),
        "device": device.type,
        "threads": threads,
        "versions": {
            "bench": version("robust-ood-bench"),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
    }


@torch.no_grad()
def measure(model: nn.Module, dataset: Dataset, device: torch.device) -> tuple[float, float]:
    """Return accuracy and mean negative log-likelihood on clean images."""
    if dataset.labels is None:
        raise BenchError(f"data set '{dataset.name}' ({dataset.split}) has no labels")
    labels = torch.from_numpy(dataset.labels)
    parts = np.array_split(dataset.images, -(-len(dataset) // 256))
    logits = torch.cat([model(to_tensor(part, device)).double().cpu() for part in parts])
    nll = nn.functional.cross_entropy(logits, labels)
    return float((logits.argmax(dim=1) == labels).double().mean()), float(nll)


def as_json(value: Mapping[str, Any]) -> bytes:
    """Return readable JSON with a final newline."""
    return (json.dumps(value, indent=2) + "\n").encode()
