"""Find, build and load the model that a text names.

jem                              registered, with weights that ship or were trained here
ckpt:NETWORK@FILE?mean=..&std=.. a registered network with a file of weights
py:PACKAGE.MODULE:FACTORY        a factory in an importable module
py:PATH/FILE.py:FACTORY          a factory in a file; this runs the file
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bench.announcing import Announced, detect_stochastic, keeps_company
from bench.data import load_dataset, to_tensor
from bench.digest import canonical_json
from bench.errors import CheckpointError, InputError, ModelError, UnknownName
from bench.fingerprints import answers_digest, model_digest
from bench.preserving import preserved
from bench.refinement import Refined, is_stochastic
from bench.registry import MODELS, NETWORKS
from bench.specs import Spec, check_options, parse_spec
from bench.types import Dataset
from bench.usercode import call_factory, import_file, import_module
from bench.weights import (
    find_weights,
    load_into,
    read_card,
    read_weights,
    weights_name,
    weights_sha256,
)
from bench.wrapping import check_form, wrap

SCHEMES = ("ckpt", "py")
CKPT_SCALE = 0.5  # mean and std of ckpt: models where none are given: z = 2x - 1, as in the papers
PROBED = 8  # images shown to a foreign model when it is loaded


@dataclass(frozen=True)
class ModelRef:
    """Which model: enough to load it in another process.

    Attributes:
        spec: A text as above, or the module itself.
        dataset: Name of the data set whose weights are meant.
        network: Architecture, for a registered model; ``None``: its default.
        checkpoint: A file of weights instead of those found by name.
        refine_steps: N of JEM-N; 0: no refinement.
        input_noise: Standard deviation of the protocol's input noise, x units. A refined model
            adds it to each chain.
        folders: Where `bench train` left weights.
        trust: Whether files that run code may be loaded.
        title: What to call a module in memory.
    """

    spec: str | nn.Module
    dataset: str
    network: str | None = None
    checkpoint: str | None = None
    refine_steps: int = 0
    input_noise: float = 0.0
    folders: tuple[str, ...] = ()
    trust: bool = False
    title: str = ""

    @property
    def name(self) -> str:
        """What to call the model."""
        return self.spec if isinstance(self.spec, str) else self.title


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to run, and what a record says of it.

    ``digest`` is of the model as it is attacked and asked for logits; ``plain_digest`` of the
    classifier behind the refinement, which the scores use. ``passed_over`` are weights trained here
    in whose place the ones that ship were taken; ``answers`` a digest of a foreign model's logits
    for a few images, which tells apart what its attributes do not.
    """

    module: nn.Module
    name: str
    label: str
    variant: Mapping[str, Any]
    network: str | None
    weights_sha256: str
    digest: str
    plain_digest: str
    card: Mapping[str, Any] = field(default_factory=dict)
    passed_over: Path | None = None
    answers: str = ""

    @property
    def stochastic(self) -> bool:
        """Whether the logits depend on noise."""
        return is_stochastic(self.module)


def load(ref: ModelRef, dataset: Dataset) -> LoadedModel:
    """Return the model of ``ref`` for the images of ``dataset``, in evaluation mode, on the CPU.

    Raises:
        UnknownName: No such model, network, scheme or option.
        CheckpointError: There are no weights, or they do not fit.
        ModelError: A factory of the user's raised, or returned no `nn.Module`.
    """
    origin: list[Any] = []
    card: Mapping[str, Any] = {}
    network: str | None = None
    if isinstance(ref.spec, nn.Module):
        plain = copy.deepcopy(ref.spec).cpu()  # the caller's stays on its device, with its flags
    else:
        spec = parse_spec(ref.spec, SCHEMES, "model")
        build = {"": _registered, "ckpt": _from_checkpoint, "py": _from_factory}[spec.scheme]
        plain, network, card = build(spec, ref, dataset, origin)
    plain.eval()
    ours = isinstance(ref.spec, str) and type(plain).__module__.startswith("bench.")
    answers = "" if ours else _probe(plain, dataset)
    if not ours and answers == RANDOM:
        plain = Announced(plain).eval()
    asked = "" if isinstance(ref.spec, nn.Module) else canonical_json(dict(spec.options))
    plain_digest = model_digest(plain, origin, asked)
    module, digest = plain, plain_digest
    if ref.refine_steps or ref.input_noise:
        module = Refined(plain, steps=ref.refine_steps, input_noise=ref.input_noise).eval()
        digest = model_digest(module, origin, asked)
    variant: dict[str, Any] = {"refine_steps": ref.refine_steps}
    return LoadedModel(
        module=module,
        name=ref.name,
        label=label_of(ref, weights_sha256(plain)),
        variant=variant,
        network=network,
        weights_sha256=weights_sha256(plain),
        digest=digest,
        plain_digest=plain_digest,
        card=card,
        passed_over=_passed_over(ref, network),
        answers=answers,
    )


def _passed_over(ref: ModelRef, network: str | None) -> Path | None:
    """Return weights of the same name that `bench train` left and that were not taken."""
    if network is None or ref.checkpoint is not None or ":" in ref.name:
        return None
    name = weights_name(ref.name.partition("?")[0], ref.dataset, network)
    taken = find_weights(ref.name.partition("?")[0], ref.dataset, network, [])
    here = [Path(folder) / name for folder in ref.folders if (Path(folder) / name).is_file()]
    return here[0] if taken is not None and here else None


RANDOM = "random"  # the answers of a model that gives others at every call


def _probe(model: nn.Module, dataset: Dataset) -> str:
    """Return a digest of a foreign model's answers to a few images, after some checks.

    A model that raises or returns no logits gets its rows with the reason when it is measured.

    Raises:
        ModelError: It changes its input in place, or an answer depends on the rest of the batch.
    """
    x = to_tensor(dataset.images[:PROBED])
    seen = x.clone()
    try:
        if is_stochastic(model):
            return ""
        with preserved(model), torch.no_grad():
            model(seen)
    except Exception:
        return ""
    if not torch.equal(seen, x):
        raise ModelError(
            "the model changes its input in place (x.sub_(...) or the like), so that whoever asks "
            "twice shows it other images; write x = (x - mean) / std"
        )
    try:
        if detect_stochastic(model, x):
            return RANDOM
        with preserved(model), torch.no_grad():
            logits = model(x)
        answers = answers_digest(logits)
    except Exception:
        return ""
    try:
        check_form(logits, len(x))
    except ModelError:
        return answers
    return RANDOM if keeps_company(model, x) else answers


def label_of(ref: ModelRef, weights: str = "") -> str:
    """Return the row label: ``jem``, or ``jem-10`` after ten refinement steps.

    A file of weights given by hand is another row than the weights found by name, so the digest
    of the weights stands in its label: ``jem@1a2b3c4d``.
    """
    # Options stay: two models that differ in nothing else are two rows.
    name, mark, options = ref.name.partition("?")
    if name.startswith("py:"):
        name = "py:" + Path(name[3:]).name
    elif name.startswith("ckpt:"):
        head, _, path = name.partition("@")
        name = f"{head}@{Path(path).name}"
    name += mark + options
    name += f"@{weights[:8]}" if ref.checkpoint is not None else ""
    return f"{name}-{ref.refine_steps}" if ref.refine_steps else name


Built = tuple[nn.Module, str | None, Mapping[str, Any]]


def _registered(spec: Spec, ref: ModelRef, dataset: Dataset, origin: list[Any]) -> Built:
    entry = MODELS.entry(spec.rest)
    if ref.network is not None:
        NETWORKS.entry(ref.network)
    network = ref.network or default_network(dataset)
    path: Path | None
    if ref.checkpoint is not None:
        path = Path(ref.checkpoint)
    else:
        path = find_weights(spec.rest, ref.dataset, network, [Path(f) for f in ref.folders])
    needs_weights = entry.facts.get("trainer") is not None
    if path is None and needs_weights:
        raise CheckpointError(
            f"there are no weights of model '{spec.rest}' for data set '{ref.dataset}' and "
            f"network '{network}'; train them with 'bench train --model {spec.rest} "
            f"--dataset {ref.dataset} --network {network}', or give --checkpoint FILE"
        )
    check_options("model", spec.rest, spec.options, entry.options)
    origin.append(entry.target)
    module = call_factory(
        entry.target,
        f"model '{spec.rest}'",
        {"dataset": dataset, "network": network, "checkpoint": path, "trust": ref.trust},
        spec.options,
    )
    return module, network if needs_weights else None, read_card(path) if path else {}


def default_network(dataset: Dataset) -> str:
    """Return the registered network that is the default for images of this size."""
    side = max(dataset.shape[1:])
    fitting = [e for e in NETWORKS.entries() if e.facts.get("default_up_to", 0) >= side]
    if not fitting:
        raise InputError(
            f"no network is the default for images of {dataset.shape}; name one with --network "
            "('bench list networks' shows all)"
        )
    return min(fitting, key=lambda e: int(e.facts["default_up_to"])).name


def _from_checkpoint(spec: Spec, ref: ModelRef, dataset: Dataset, origin: list[Any]) -> Built:
    network, at, file = spec.rest.partition("@")
    if not at or not network or not file:
        raise InputError(f"'{ref.spec}' is not ckpt:NETWORK@FILE")
    entry = NETWORKS.entry(network)
    options = dict(spec.options)
    mean = options.pop("mean", CKPT_SCALE)
    std = options.pop("std", CKPT_SCALE)
    check_options("network", network, options, entry.options)
    module: nn.Module = entry.target(dataset.shape, len(dataset.classes), **options)
    state, metadata = read_weights(Path(file), trust=ref.trust)
    if "model" in metadata:
        raise CheckpointError(
            f"'{file}' holds a whole model of 'bench train', not a bare network; use "
            f"'--model {metadata['model']} --checkpoint {file}'"
        )
    load_into(module, state, where=file)
    origin.append(entry.target)
    return wrap(module, mean, std), network, {}


def _from_factory(spec: Spec, ref: ModelRef, dataset: Dataset, origin: list[Any]) -> Built:
    place, colon, name = spec.rest.rpartition(":")
    if not colon or not place or not name:
        raise InputError(
            f"'{ref.spec}' is not py:PACKAGE.MODULE:FACTORY or py:PATH/FILE.py:FACTORY"
        )
    module = import_file(Path(place)) if place.endswith(".py") else import_module(place)
    factory = getattr(module, name, None)
    if not callable(factory):
        public = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise UnknownName(f"function of '{place}'", name, public)
    origin.append(factory)
    given = {"dataset": dataset, "network": ref.network, "checkpoint": ref.checkpoint}
    return call_factory(factory, f"'{ref.spec}'", given, spec.options), None, {}


def load_model(
    spec: str | nn.Module,
    *,
    dataset: str = "digits",
    network: str | None = None,
    checkpoint: str | Path | None = None,
    refine_steps: int = 0,
    data_root: str | Path | None = None,
    folders: Sequence[str | Path] = ("runs/weights",),
    trust: bool = False,
) -> nn.Module:
    """Return the model that ``spec`` names, in evaluation mode: the Python face of ``--model``.

    Args:
        spec: A registered name, ``ckpt:…``, ``py:…``, or a module.
        dataset: Which data set its weights are for.
        network: Its architecture; the default is chosen by the size of the images.
        checkpoint: A file of weights instead of those that ship or were trained here.
        refine_steps: N of JEM-N.
        data_root: Where data sets lie.
        folders: Where to look for weights that `bench train` left.
        trust: Whether a file that runs code may be loaded.
    """
    ref = ModelRef(
        spec=spec,
        dataset=dataset,
        network=network,
        checkpoint=None if checkpoint is None else str(checkpoint),
        refine_steps=refine_steps,
        folders=tuple(str(f) for f in folders),
        trust=trust,
        title="" if isinstance(spec, str) else type(spec).__name__,
    )
    root = None if data_root is None else Path(data_root)
    return load(ref, load_dataset(dataset, root=root)).module
