"""What a gradient attack differentiates: the logits of a model, or of draws of a stochastic one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from bench.errors import Unsupported
from bench.noise import Noise
from bench.refinement import draw_logits, is_stochastic, unrefined

Gradient = Literal["static", "straight-through"]


@dataclass(frozen=True)
class Target:
    """A model as an attack sees it: a callable of points and noise.

    Attributes:
        model: Whose logits they are.
        samples: Draws behind each gradient, run as one batch; 1 for a deterministic model.
    """

    model: nn.Module
    samples: int

    @property
    def stochastic(self) -> bool:
        """Whether the logits depend on the noise."""
        return is_stochastic(self.model)

    def __call__(self, x: Tensor, noise: Noise) -> Tensor:
        """Return the logits of the points ``(B, C, H, W)``: ``(B, samples, classes)``."""
        if not self.stochastic:
            value: Tensor = self.model(x)
            return value[:, None]
        copies = x.repeat_interleave(self.samples, dim=0)
        draws = draw_logits(self.model, copies, noise.expand(self.samples))
        return draws.view(len(x), self.samples, -1)


def target(model: nn.Module, gradient: Gradient = "straight-through", samples: int = 1) -> Target:
    """Return what an attack on the model differentiates.

    Args:
        model: The model under attack.
        gradient: ``static`` takes the network behind a refinement, ``straight-through`` the draws.
        samples: Draws behind each gradient (expectation over transformation, Athalye et al. 2018);
            a deterministic model has one.

    Raises:
        Unsupported: ``static`` was asked for and the model is not a refinement of another.
    """
    if gradient == "static":
        model = unrefined(model)
        if is_stochastic(model):
            raise Unsupported(
                f"{type(model).__name__} is stochastic and has no network behind a refinement to "
                "attack; use gradient='straight-through'"
            )
    return Target(model, samples if is_stochastic(model) else 1)
