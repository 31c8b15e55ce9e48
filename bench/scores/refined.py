"""Any score of an image after N steps of SGLD on log p(x), as JEM-N sees it.

JEM (Grathwohl et al. 2019, arXiv 1912.03263), section 5.3, refines an image before it is
classified; asked of the refined points, a score says whether refinement draws foreign images to the
data, and is then fooled by what it made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bench.errors import InputError
from bench.noise import Noise
from bench.registry import SCORES, Entry

from .refine import STEPS, refined

CHAINS = 5  # as JEM-N has


class AtRefinedPoints:
    """Mean of a score over the ends of 5 chains of N steps, for log p(x) as for any other."""

    def __init__(self, score: Callable[[Any, Tensor], Tensor]) -> None:
        self.score = score

    def __call__(self, model: Any, x: Tensor, noise: Noise, *, steps: int = STEPS) -> Tensor:
        """Return ``(B,)`` float64."""
        ends = (refined(model, x, noise.at("chain", c), steps) for c in range(CHAINS))
        return torch.stack([self.score(end, end.batch) for end in ends]).mean(dim=0)


@SCORES.scheme("refined")
def at_refined_points(name: str) -> Entry[Callable[..., Any]]:
    """Any score after N steps of refinement, the mean over 5 chains."""
    entry = SCORES.entry(name)
    needs = entry.facts.get("needs", ())
    needs = {needs} if isinstance(needs, str) else set(needs)
    if entry.facts.get("trivial") or "noise" in needs or hasattr(entry.target, "fit"):
        raise InputError(
            f"score '{name}' cannot be asked of refined images: it needs no model, refines by "
            "itself, or is fitted to images that are not; give one of a model's answer alone, e.g. "
            "'refined:log-density'"
        )
    needs |= {"gradient", "noise"}  # the first step takes the gradient of the pass of all
    facts = {"needs": tuple(sorted(needs)), "of": name}
    return Entry(f"refined:{name}", AtRefinedPoints(entry.target), __name__, facts)
