"""Measure and task: adversarial images of the unrefined network, shown to the refined model.

JEM (Grathwohl et al. 2019, arXiv 1912.03263), section 5.3 and Appendix G, attack JEM-0 and show
what they find to JEM-1 and JEM-10. Nothing is searched again, so this is what refinement does to
images that never heard of it: an upper bound on robustness, beside suite ``robustness``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch

from bench.attacking.inputs import plan as plan_attack
from bench.attacking.sweeping import Sweep
from bench.attacking.verifying import distances
from bench.context import Context
from bench.errors import Unsupported
from bench.models import LoadedModel
from bench.preserving import preserved
from bench.refinement import is_stochastic, unrefined
from bench.registry import ATTACKS
from bench.tasks.base import (
    Arrays,
    Batch,
    DataRef,
    Failure,
    Measure,
    Reduction,
    Results,
    Row,
    arrays_of,
    first_failure,
)
from bench.tasks.draws import draw_classes, mean_interval
from bench.tasks.logits import probe, require_logits
from bench.types import Norm

NOTES = {
    True: "images made against the unrefined network, not adapted: an upper bound on robustness",
    False: "the network that was attacked; refined ones come with --refine-steps 0,1,10",
}


@dataclass(frozen=True, kw_only=True)
class Transferred:
    """Classes that a model gives to adversarial images of the network behind its refinement.

    Attributes:
        data: The images.
        attack: Name in the registry.
        eps: Budgets, increasing, in units of the [0, 1] pixel range.
        options: Of the attack.
        draws: How often a stochastic model is asked for each image.
        images_per_shard: Size of a shard.
    """

    data: DataRef
    attack: str
    eps: tuple[float, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    draws: int = 20
    images_per_shard: int = 100

    @property
    def name(self) -> str:
        """The noise is the attack's and the data set's: every N meets the same images."""
        return f"transfer/{self.attack}/{self.data.title}"

    @property
    def uses_model(self) -> str:
        """The model with its refinement."""
        return "full"

    def settings(self) -> Mapping[str, Any]:
        """Return attack, budgets, options and draws."""
        return {
            "attack": self.attack,
            "eps": list(self.eps),
            "options": dict(self.options),
            "draws": self.draws,
        }

    def code(self) -> Sequence[Any]:
        """Return what determines the numbers."""
        return [Transferred, ATTACKS[self.attack]]

    def __call__(self, model: LoadedModel | None, batch: Batch, context: Context) -> Arrays:
        """Return one row an image; budgets are the second axis.

        ``label`` (B,), ``x_adv`` (B, E, C, H, W), ``l0 l2 linf`` (B, E), and the classes in R draws
        of the model: ``drawn`` (B, E, R) and ``clean_drawn`` (B, R). A deterministic model has
        one draw.
        """
        assert model is not None
        if batch.y is None:
            raise Unsupported(f"data set '{self.data.spec}' has no labels")
        require_logits(model.module, model.name)
        probe(model.module, batch, context)
        source = unrefined(model.module)
        if is_stochastic(source):
            raise Unsupported(
                f"{model.name} is stochastic and has no deterministic network behind it, from "
                "which images could be transferred"
            )
        x_adv = self._candidates(source, batch, context)
        draws = self.draws if is_stochastic(model.module) else 1
        clean, _ = draw_classes(model.module, batch.x, draws, context)
        each = [draw_classes(model.module, images, draws, context)[0] for images in x_adv]
        far = [distances(batch.x, images) for images in x_adv]
        return {
            "label": batch.y.cpu().numpy(),
            "x_adv": x_adv.transpose(0, 1).contiguous().cpu().numpy(),
            "clean_drawn": clean,
            "drawn": np.stack(each, axis=1),
            **{n.value: torch.stack([d[n] for d in far], dim=1).numpy() for n in Norm},
        }

    def _candidates(self, source: torch.nn.Module, batch: Batch, context: Context) -> torch.Tensor:
        """Return what the attack finds at each budget, ``(E, B, C, H, W)``.

        Every image is attacked to the end, whatever the network says of it: one that only just
        breaks the network transfers badly, and one that is wrong there may be right here.
        """
        assert batch.y is not None
        work = plan_attack(self.attack, self.eps, dict(self.options)).varied(early_stop=False)
        parts = []
        with preserved(source):
            for rows in torch.split(torch.arange(len(batch.x)), context.micro_batch):
                rows = rows.to(batch.x.device)
                local = Context(noise=context.noise.select(rows), micro_batch=context.micro_batch)
                sweep = Sweep(work, source, batch.x[rows], batch.y[rows], local)
                every = torch.arange(len(rows), device=rows.device)
                parts.append(torch.stack([sweep.at(e, every) for e in range(len(self.eps))]))
        return torch.cat(parts, dim=1)


@dataclass(frozen=True)
class Transfer:
    """Mean accuracy over draws on transferred images, at every budget of one norm.

    Attributes:
        norm: Of the attack.
        measure: What is measured.
        refine_steps: N of JEM-N; 0 is the network that was attacked.
    """

    norm: Norm
    measure: Transferred
    refine_steps: int = 0

    needs_model: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """E.g. ``transfer/pgd-linf``."""
        return f"transfer/{self.measure.attack}"

    @property
    def measures(self) -> Sequence[Measure]:
        """The one."""
        return (self.measure,)

    def _settings(self, eps: float) -> dict[str, Any]:
        return {
            "attack": self.measure.attack,
            "norm": self.norm.value,
            "eps": eps,
            **self.measure.options,
            "gradient": "static",
            "scoring_draws": self.measure.draws,
            "refine_steps": self.refine_steps,
        }

    def missing(self, failure: Failure) -> Iterator[Row]:
        """Yield a row for each budget, with the reason in place of the number."""
        for eps in (0.0, *self.measure.eps):
            yield Row(
                metric="transfer_accuracy",
                status=failure.status,
                note=failure.reason,
                settings=self._settings(eps),
            )

    def rows(self, results: Results, reduction: Reduction) -> Iterator[Row]:
        """Yield rows by budget; eps 0 is the clean accuracy in the same draws."""
        failure = first_failure(self.measures, results)
        if failure is not None:
            yield from self.missing(failure)
            return
        arrays = arrays_of(self.measure, results)
        columns = [arrays["clean_drawn"], *arrays["drawn"].transpose(1, 0, 2)]
        for eps, classes in zip((0.0, *self.measure.eps), columns, strict=True):
            right = classes == arrays["label"][:, None]
            low, high, method = mean_interval(right, reduction)
            yield Row(
                metric="transfer_accuracy",
                value=float(right.mean()),
                low=low,
                high=high,
                interval=method,
                n=len(right),
                settings=self._settings(eps),
                details={"draws": classes.shape[1]},
                note=NOTES[self.refine_steps > 0],
            )
