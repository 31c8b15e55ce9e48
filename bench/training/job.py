"""One training, from names to a file of weights with its card; what ``bench train`` runs."""

from __future__ import annotations

import dataclasses
import inspect
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bench.context import resolve_device
from bench.data import load_dataset
from bench.errors import InputError
from bench.models import default_network
from bench.registry import MODELS, NETWORKS, TRAINERS
from bench.specs import check_options
from bench.training import Event, TrainContext, Trainer
from bench.training.card import SPLITS, as_json, is_done, make_card, refuse_another
from bench.types import Dataset
from bench.weights import card_path, weights_name, write_bytes, write_weights


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
