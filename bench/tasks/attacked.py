"""Measure: what an attack does to every image, with the adversarial images themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from bench.attacking import AttackResult, attack
from bench.context import Context
from bench.errors import Unsupported
from bench.models import LoadedModel
from bench.preserving import preserved
from bench.registry import ATTACKS
from bench.tasks.base import Arrays, Batch, DataRef
from bench.tasks.logits import probe, require_logits
from bench.types import Array, Norm


@dataclass(frozen=True, kw_only=True)
class Attacked:
    """Outcomes of one attack over a grid of budgets.

    Attributes:
        data: The images.
        attack: Name in the registry.
        eps: Budgets, increasing, in units of the [0, 1] pixel range.
        options: Options of the attack, and draws of the protocol for stochastic models.
        images_per_shard: Size of a shard.
    """

    data: DataRef
    attack: str
    eps: tuple[float, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    images_per_shard: int = 100

    @property
    def name(self) -> str:
        """The noise is the attack's and the data set's."""
        return f"robustness/{self.attack}/{self.data.title}"

    @property
    def uses_model(self) -> str:
        """The model with its refinement."""
        return "full"

    def settings(self) -> Mapping[str, Any]:
        """Return attack, budgets and options."""
        return {"attack": self.attack, "eps": list(self.eps), "options": dict(self.options)}

    def code(self) -> Sequence[Any]:
        """Return what determines the numbers."""
        return [Attacked, ATTACKS[self.attack]]

    def __call__(self, model: LoadedModel | None, batch: Batch, context: Context) -> Arrays:
        """Return one row an image; budgets are the second axis.

        Of every model: ``label`` (B,), ``clean_pred`` (B,), ``x_adv`` (B, E, C, H, W), ``margin``
        (B, E), ``l0 l2 linf`` (B, E), ``queries`` (B,). Of a deterministic one ``broken`` (B, E)
        and ``smallest_eps`` (B,), infinite where no budget breaks it, and ``flat`` (B,), whether
        the gradient at the clean image is zero. Of a stochastic one the
        classes of the scoring draws, ``drawn`` (B, E, R) and ``clean_drawn`` (B, R), and which
        gradient won, ``source`` (B, E).
        """
        assert model is not None
        if batch.y is None:
            raise Unsupported(f"data set '{self.data.spec}' has no labels")
        require_logits(model.module, model.name)
        probe(model.module, batch, context)
        result = attack(
            self.attack,
            model.module,
            batch.x,
            batch.y,
            eps=list(self.eps),
            context=context,
            **self._options_for(model),
        )
        arrays = _arrays(result, batch.y.cpu().numpy(), self.eps)
        if result.draws is None:
            arrays["flat"] = flat_images(model.module, batch, context)
        return arrays

    def _options_for(self, model: LoadedModel) -> dict[str, Any]:
        """Return the options, without those that only a stochastic model has."""
        if model.stochastic:
            return dict(self.options)
        return {k: v for k, v in self.options.items() if k not in STOCHASTIC_OPTIONS}


STOCHASTIC_OPTIONS = ("selection_draws", "scoring_draws")  # of the protocol, not the attack


def flat_images(module: nn.Module, batch: Batch, context: Context) -> Array:
    """Say of each image ``(B,)`` whether the logits have no gradient in it at all.

    There a gradient attack walks at random, and what it leaves unbroken says nothing (Athalye et
    al. 2018: shattered gradients).
    """
    parts = []
    for x in torch.split(batch.x, context.micro_batch):
        with preserved(module):
            x = x.clone().requires_grad_()
            logits = module(x)
            top = logits.gather(1, logits.argmax(dim=1, keepdim=True))[:, 0]
            gaps = (top[:, None] - logits).sum()
            gradient = torch.zeros_like(x)
            if gaps.requires_grad:
                (found,) = torch.autograd.grad(gaps, x, allow_unused=True)
                gradient = gradient if found is None else found
        parts.append((gradient == 0).flatten(1).all(dim=1))
    return torch.cat(parts).cpu().numpy()


def _arrays(result: AttackResult, labels: Any, eps: tuple[float, ...]) -> dict[str, Array]:
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
        first = np.where(broken.any(axis=1), broken.argmax(axis=1), len(eps))
        smallest = np.append(np.asarray(eps, dtype=np.float64), np.inf)[first]
        # Wrong when clean is broken at 0, whatever the smallest budget of the grid is.
        smallest[arrays["clean_pred"] != labels] = 0.0
        return {**arrays, "broken": broken, "smallest_eps": smallest}
    return {
        **arrays,
        "drawn": draws.predictions.transpose(0, 1).cpu().numpy().astype(np.int16),
        "clean_drawn": draws.clean_predictions.cpu().numpy().astype(np.int16),
        "source": draws.source.T.cpu().numpy().astype(np.int8),
    }
