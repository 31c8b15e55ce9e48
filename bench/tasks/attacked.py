"""Measure: what an attack does to every image, with the adversarial images themselves."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import torch

from bench.attacking import AttackResult, attack
from bench.attacking.inputs import Plan as AttackPlan
from bench.attacking.inputs import minimises
from bench.attacking.inputs import plan as plan_attack
from bench.attacking.watching import Watch
from bench.context import Context
from bench.errors import MissingExtra, Unsupported
from bench.models import LoadedModel
from bench.registry import ATTACKS
from bench.tasks.base import Arrays, Batch, DataRef
from bench.tasks.logits import probe, require_logits
from bench.types import Array, Norm

# Of the protocol for stochastic models, not of the attack.
STOCHASTIC_OPTIONS = ("gradients", "by_gradient", "selection_draws", "scoring_draws")


@dataclass(frozen=True, kw_only=True)
class Attacked:
    """Outcomes of one attack over a grid of budgets.

    Attributes:
        data: The images.
        attack: Name in the registry.
        eps: Budgets, increasing, in units of the [0, 1] pixel range. An attack that looks for the
            nearest adversarial image needs none.
        options: Options of the attack, and of the protocol for stochastic models.
        seconds_per_image: How long the search may take; ``None``: as long as it takes.
        images_per_shard: Size of a shard.
    """

    data: DataRef
    attack: str
    eps: tuple[float, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    seconds_per_image: float | None = None
    images_per_shard: int = 100

    @property
    def name(self) -> str:
        """The noise is the attack's and the data set's."""
        return f"robustness/{self.attack}/{self.data.title}"

    @property
    def uses_model(self) -> str:
        """The model with its refinement."""
        return "full"

    @property
    def plan(self) -> AttackPlan:
        """The attack with its options.

        Raises:
            BenchError: It cannot be made with them, or not here.
        """
        own = {k: v for k, v in self.options.items() if k not in STOCHASTIC_OPTIONS}
        return plan_attack(self.attack, self.eps or None, own)

    @property
    def title(self) -> str:
        """What to call the attack, which may be other than what it was asked for by."""
        try:
            return str(getattr(self.plan.attacks[0], "title", self.attack))
        except (MissingExtra, Unsupported):  # its rows say so
            return self.attack

    @property
    def nearest(self) -> bool:
        """Whether it looks for the nearest adversarial image, and so has distances."""
        return not self.eps or minimises(ATTACKS[self.attack])

    @property
    def kinds(self) -> list[Any]:
        """The class of the attack, and those of its parts."""
        whole = ATTACKS[self.attack]
        return [whole, *(ATTACKS[name] for name in getattr(whole, "parts", ()))]

    def settings(self) -> Mapping[str, Any]:
        """Return attack, budgets, options, time, and versions of the libraries attacks are from."""
        libraries = sorted({str(getattr(kind, "library", "")) for kind in self.kinds} - {""})
        return {
            "attack": self.title,
            "eps": list(self.eps),
            "options": dict(self.options),
            **({"seconds_per_image": self.seconds_per_image} if self.seconds_per_image else {}),
            **({"libraries": {n: _version(n) for n in libraries}} if libraries else {}),
        }

    def code(self) -> Sequence[Any]:
        """Return what determines the numbers."""
        return [Attacked, *self.kinds]

    def __call__(self, model: LoadedModel | None, batch: Batch, context: Context) -> Arrays:
        """Return one row an image; budgets are the second axis.

        Where the attack is `nearest` there is one column more: without a budget.

        Of every model: ``label`` (B,), ``clean_pred`` (B,), ``x_adv`` (B, E, C, H, W), ``margin``
        (B, E), ``l0 l2 linf`` (B, E), ``queries`` (B,), ``unfinished`` (B,), whether time ran out,
        ``changed`` (B,), how many flags, buffers, weights and gradients of the model differ
        afterwards. Of a deterministic one ``broken`` (B, E) and ``smallest_eps`` (B,), infinite
        where no budget breaks it. Of a stochastic one the classes of the scoring draws, ``drawn``
        (B, E, R) and ``clean_drawn`` (B, R); ``rank`` (B, E) of the winners on the selection
        draws, and whether at most half of these are right, ``found`` (B, E); which source won,
        ``source`` (B, E); evaluations by source, ``spent_<source>`` (B,).
        """
        assert model is not None
        if batch.y is None:
            raise Unsupported(f"data set '{self.data.spec}' has no labels")
        require_logits(model.module, model.name)
        probe(model.module, batch, context)
        watch, started, parts = Watch(model.module), time.monotonic(), []
        size = len(batch.x) if self.seconds_per_image is None else context.micro_batch
        for rows in torch.split(torch.arange(len(batch.x), device=batch.x.device), size):
            # What earlier images left of their time is for later ones.
            until = started + (self.seconds_per_image or math.inf) * (int(rows[-1]) + 1)
            parts.append(self._some(model, batch, rows, context, Clock(until)))
        arrays = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        return {**arrays, "changed": np.full(len(batch.x), watch.changes())}

    def _some(
        self, model: LoadedModel, batch: Batch, rows: torch.Tensor, context: Context, clock: Clock
    ) -> dict[str, Array]:
        """Return the arrays of some images."""
        assert batch.y is not None
        y = batch.y[rows]
        result = attack(
            self.attack,
            model.module,
            batch.x[rows],
            y,
            eps=[*self.eps, math.inf] if self.nearest else list(self.eps),
            context=replace(context, noise=context.noise.select(rows), out_of_time=clock),
            **self._options_for(model),
        )
        arrays = arrays_of_result(result, y.cpu().numpy())
        return {**arrays, "unfinished": np.full(len(rows), clock.rang)}

    def _options_for(self, model: LoadedModel) -> dict[str, Any]:
        """Return the options, without those that only a stochastic model has."""
        if model.stochastic:
            return dict(self.options)
        return {k: v for k, v in self.options.items() if k not in STOCHASTIC_OPTIONS}


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "absent"


class Clock:
    """Says whether a moment has passed, and remembers that it said so."""

    def __init__(self, until: float) -> None:
        self._until, self.rang = until, False

    def __call__(self) -> bool:
        """Return whether time is up."""
        self.rang = self.rang or time.monotonic() > self._until
        return self.rang


def arrays_of_result(result: AttackResult, labels: Array) -> dict[str, Array]:
    """Return an attack's result for a list of budgets as arrays with one row an image."""
    arrays: dict[str, Array] = {
        "label": labels,
        "clean_pred": result.clean_pred.cpu().numpy(),
        "x_adv": result.x_adv.transpose(0, 1).contiguous().cpu().numpy(),
        "margin": result.margin.T.cpu().double().numpy(),
        "queries": result.queries.cpu().numpy(),
        **{n.value: result.distances[n].T.cpu().numpy() for n in Norm},
    }
    draws = result.draws
    if draws is None:
        broken = result.success.T.cpu().numpy()
        assert isinstance(result.eps, tuple)
        smallest = smallest_eps(broken, result.eps, arrays["clean_pred"] != labels)
        return {**arrays, "broken": broken, "smallest_eps": smallest}
    known = {} if draws.fixed_noise is None else {"fixed_noise": draws.fixed_noise.T.cpu().numpy()}
    return {
        **arrays,
        **known,
        "drawn": draws.predictions.transpose(0, 1).cpu().numpy().astype(np.int16),
        "clean_drawn": draws.clean_predictions.cpu().numpy().astype(np.int16),
        "rank": draws.rank.T.cpu().numpy(),
        "found": draws.broken.T.cpu().numpy(),
        "source": draws.source.T.cpu().numpy().astype(np.int8),
        **{f"spent_{name}": spent.cpu().numpy() for name, spent in draws.spent.items()},
    }


def smallest_eps(broken: Array, eps: Sequence[float], wrong: Array) -> Array:
    """Return the smallest budget that breaks each image, infinite where none does.

    Args:
        broken: ``(B, E)`` bool.
        eps: Budgets, increasing.
        wrong: Whether the clean image is wrong, ``(B,)``: it is broken at 0, whatever the smallest
            budget of the grid is.
    """
    first = np.where(broken.any(axis=1), broken.argmax(axis=1), len(eps))
    smallest = np.append(np.asarray(eps, dtype=np.float64), np.inf)[first]
    return np.where(wrong, 0.0, smallest)
