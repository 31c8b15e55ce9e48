"""One training, from names to a file of weights with its card; what ``bench train`` runs."""

from __future__ import annotations

import dataclasses
import inspect
import json
import platform
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from bench.context import resolve_device
from bench.data import load_dataset, to_tensor
from bench.errors import BenchError, CheckpointError, InputError
from bench.models import default_network
from bench.registry import MODELS, NETWORKS, TRAINERS
from bench.specs import check_options
from bench.training import Event, TrainContext, Trained, Trainer
from bench.types import Dataset
from bench.weights import (
    card_path,
    read_card,
    read_weights,
    weights_name,
    weights_sha256,
    write_bytes,
    write_weights,
)

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True, kw_only=True)
class TrainJob:
    """What to train, and where to leave it.

    Attributes:
        model: A registered model that names its trainer.
        dataset: A data set with the splits train, validation and test.
        seed: The source of every random draw.
        out: Folder for weights and card.
        network: A registered network; ``None``: the default for the images' size.
        options: Options of the trainer; the rest keep their defaults.
        device: As `bench.context.resolve_device` takes it.
        threads: CPU threads; another number can give other last digits.
        data_root: Where data sets lie.
        fresh: Start anew, and replace what another training left under the same name.
    """

    model: str
    dataset: str = "digits"
    seed: int = 0
    out: Path
    network: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    device: str = "auto"
    threads: int = 1
    data_root: Path | None = None
    fresh: bool = False

    def run(self, events: Callable[[Event], None] = lambda event: None) -> Path:
        """Train, or finish a training that was interrupted; return the path of the weights.

        Raises:
            UnknownName: No such model, network, data set or option.
            InputError: Another training's results are in the way, or an option is of another type.
            Diverged: The training could not be kept finite; the last good weights are saved.
        """
        data = {split: self._load(split) for split in SPLITS}
        network = self.network or default_network(data["train"])
        name, trainer = self._trainer()
        request = self._request(name, trainer, network, data)
        weights = self.out / weights_name(self.model, self.dataset, network)
        partial = weights.with_suffix(".partial")
        if self.fresh:
            shutil.rmtree(partial, ignore_errors=True)
        elif is_done(weights, request):
            return weights
        refuse_another(partial / "request.json", request)
        device = resolve_device(self.device)
        write_bytes(partial / "request.json", as_json(request))
        with one_setting(self.threads, self.seed, device):
            model = self._fresh_model(data["train"], network).to(device)
            context = TrainContext(
                model=model, seed=self.seed, device=device, out=partial, events=events
            )
            trained = trainer(data["train"], data["validation"], context)
            card = make_card(request, trained, data, device, self.threads)
        state = trained.model.state_dict()
        write_weights(
            weights, state, {key: request[key] for key in ("model", "dataset", "network")}
        )
        write_bytes(card_path(weights), as_json(card))
        shutil.rmtree(partial)
        return weights

    def _fresh_model(self, dataset: Dataset, network: str) -> nn.Module:
        factory = MODELS[self.model]
        given = {"dataset": dataset, "network": network, "checkpoint": None}
        taken = inspect.signature(factory).parameters
        model: nn.Module = factory(**{k: v for k, v in given.items() if k in taken})
        return model

    def _load(self, split: str) -> Dataset:
        return load_dataset(self.dataset, split, root=self.data_root)

    def _trainer(self) -> tuple[str, Trainer]:
        """Return the model's trainer with the options of this job, and its name."""
        name = MODELS.entry(self.model).facts.get("trainer")
        if name is None:
            known = ", ".join(e.name for e in MODELS.entries() if "trainer" in e.facts)
            raise InputError(f"model '{self.model}' names no trainer; these do: {known}")
        entry = TRAINERS.entry(name)
        check_options("trainer", name, self.options, entry.options)
        options = {
            key: _typed(f"{name}.{key}", value, entry.options[key])
            for key, value in self.options.items()
        }
        return name, entry.target(**options)

    def _request(
        self, trainer_name: str, trainer: Trainer, network: str, data: Mapping[str, Dataset]
    ) -> dict[str, Any]:
        """Return all that determines the result, as plain data."""
        NETWORKS.entry(network)
        changed = "".join(f" --set {trainer_name}.{k}={v}" for k, v in sorted(self.options.items()))
        return {
            "model": self.model,
            "dataset": self.dataset,
            "network": network,
            "seed": self.seed,
            "trainer": trainer_name,
            "objective": TRAINERS.entry(trainer_name).summary,
            "options": dataclasses.asdict(trainer),  # type: ignore[call-overload]
            "data_sha256": {split: data[split].sha256 for split in SPLITS},
            "command": f"bench train --model {self.model} --dataset {self.dataset} "
            f"--network {network} --seed {self.seed}{changed}",
        }


def _typed(name: str, value: Any, default: Any) -> Any:
    """Return an option in the type of its default; a whole number is a float as well."""
    if isinstance(default, float) and type(value) is int:
        return float(value)
    if default is not None and type(value) is not type(default):
        raise InputError(
            f"{name}={value!r} is a {type(value).__name__}; expected a "
            f"{type(default).__name__}, as in {name}={default!r}"
        )
    return value


@contextmanager
def one_setting(threads: int, seed: int, device: torch.device) -> Iterator[None]:
    """Fix threads and the global random state, and put the caller's back."""
    before = torch.get_num_threads()
    devices = [device] if device.type == "cuda" else []
    torch.set_num_threads(threads)
    try:
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(seed)
            yield
    finally:
        torch.set_num_threads(before)


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
    found = json.loads(path.read_text(encoding="utf-8"))
    wanted = json.loads(as_json(request))
    # Options are compared one by one; the command is only another way to write all of it.
    found, wanted = (
        {**r, **r.get("options", {}), "options": 0, "command": 0} for r in (found, wanted)
    )
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
