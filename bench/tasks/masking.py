"""Measure: what the checks for masked gradients need to know, on a few fixed images."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bench.attacking.checks import all_checks
from bench.attacking.evidence import BLACK, RANDOM, WHITE, Scene, TimeIsUp, Trials
from bench.attacking.watching import Watch
from bench.context import Context
from bench.errors import Unsupported
from bench.models import LoadedModel
from bench.registry import ATTACKS
from bench.tasks.attacked import Clock
from bench.tasks.base import Arrays, Batch, DataRef
from bench.tasks.logits import probe, require_logits
from bench.types import Norm

IMAGES = 64


@dataclass(frozen=True, kw_only=True)
class Masking:
    """Evidence for the checks of `bench.attacking.checks`, in one norm.

    Attributes:
        data: The images, `IMAGES` or fewer.
        norm: Of the attacks; one without a white-box attack has only what needs none.
        eps: The budgets of the row, increasing; attacks are compared at the middle one.
        grid_steps: Steps of the white-box attack at each budget.
        queries: Of the black-box attack.
        noise_draws: Random points an image.
        eot_samples: Draws behind a gradient of a stochastic model.
        seconds_per_image: How long the attacks may take; ``None``: as long as they take.
        images_per_shard: Size of a shard.
    """

    data: DataRef
    norm: Norm
    eps: tuple[float, ...]
    grid_steps: int = 20
    queries: int = 300
    noise_draws: int = 100
    eot_samples: int = 4
    seconds_per_image: float | None = None
    images_per_shard: int = IMAGES

    @property
    def name(self) -> str:
        """The noise is the norm's and the data set's."""
        return f"masking/{self.norm}/{self.data.title}"

    @property
    def uses_model(self) -> str:
        """The model with its refinement."""
        return "full"

    def settings(self) -> Mapping[str, Any]:
        """Return norm, budgets and what is spent."""
        return {
            "norm": self.norm.value,
            "eps": list(self.eps),
            "grid_steps": self.grid_steps,
            "queries": self.queries,
            "noise_draws": self.noise_draws,
            "eot_samples": self.eot_samples,
            **({"seconds_per_image": self.seconds_per_image} if self.seconds_per_image else {}),
        }

    def code(self) -> Sequence[Any]:
        """Return what determines the numbers."""
        names = [kind[self.norm] for kind in (WHITE, BLACK, RANDOM) if self.norm in kind]
        return [Masking, all_checks, *(ATTACKS[name] for name in names)]

    def __call__(self, model: LoadedModel | None, batch: Batch, context: Context) -> Arrays:
        """Return the arrays that `all_checks` reads, one row an image."""
        assert model is not None
        if batch.y is None:
            raise Unsupported(f"data set '{self.data.spec}' has no labels")
        require_logits(model.module, model.name)
        probe(model.module, batch, context)
        watch = Watch(model.module)
        clock = Clock(time.monotonic() + (self.seconds_per_image or math.inf) * len(batch.x))
        scene = Scene(model.module, batch.x, batch.y, replace(context, out_of_time=clock))
        found = {**scene.answers(), **scene.gradients(self.eot_samples)}
        with contextlib.suppress(TimeIsUp):
            for work in self._trials(scene):
                part = work()
                if clock():  # what was broken off says nothing
                    break
                found |= part
        arrays = {name: values.cpu().numpy() for name, values in found.items()}
        rest = {"changed": watch.changes(), "unfinished": clock.rang}
        return {**arrays, **{k: np.full(len(batch.x), v) for k, v in rest.items()}}

    def _trials(self, scene: Scene) -> Trials | tuple[()]:
        """Return the attacks, none where there is no white-box attack in the norm."""
        if self.norm not in WHITE or not self.eps:
            return ()
        return Trials(
            scene,
            self.norm,
            self.eps,
            grid_steps=self.grid_steps,
            queries=self.queries,
            noise_draws=self.noise_draws,
            eot_samples=self.eot_samples,
        )
