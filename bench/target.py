"""What a gradient attack differentiates: the logits of a model, or of draws of a stochastic one.

A refining model can be differentiated in several ways, and none is always the strongest:

``static``            the network behind the refinement: a transfer attack;
``straight-through``  the draws, the refinement passed over in the backward pass (Athalye et al.
                      2018, section 4.1); of a model that refines nothing, its draws as they are;
``surrogate``         all of a refinement of fewer steps (Lee and Kim 2023, arXiv 2303.09051);
``full``              all of the refinement, its noise replayed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor, nn

from bench.errors import InputError, Unsupported
from bench.noise import Noise
from bench.refinement import is_refining, is_stochastic, many_draws, unrefined

Gradient = Literal["static", "straight-through", "surrogate", "full"]
Average = Literal["logits", "losses"]


@dataclass(frozen=True)
class Target:
    """A model as an attack sees it: a callable of points and noise.

    Attributes:
        model: Whose logits they are.
        samples: Draws behind each gradient, run as one batch; 1 for a deterministic model. An
            image's passes are counted in these.
        gradient: How a refining model is differentiated.
        average: What is averaged over the chains of a draw: the ``logits``, as the model does
            itself, or, by whatever loss the attack has, the ``losses``.
    """

    model: nn.Module
    samples: int
    gradient: Gradient = "straight-through"
    average: Average = "logits"

    @property
    def stochastic(self) -> bool:
        """Whether the logits depend on the noise."""
        return is_stochastic(self.model)

    @property
    def rows(self) -> int:
        """Images through the network at once for each image: draws times chains."""
        return self.samples * (self.model.n_chains if is_refining(self.model) else 1)

    def __call__(self, x: Tensor, noise: Noise) -> Tensor:
        """Return the logits of the points ``(B, C, H, W)``, in float32 whatever the model's type.

        ``(B, samples, classes)``; with ``average="losses"`` every chain is an entry of its own:
        ``(B, samples * chains, classes)``.
        """
        if not self.stochastic:
            value: Tensor = self.model(x)
            return value[:, None].float()
        if not is_refining(self.model):
            return many_draws(self.model, x, noise, self.samples).float()
        copies = x.repeat_interleave(self.samples, dim=0)
        chains = self.model.chain_logits(copies, noise.expand(self.samples), self.gradient).float()
        if self.average == "logits":
            chains = chains.mean(dim=1)
        return chains.view(len(x), -1, chains.shape[-1])


def not_applicable(model: nn.Module, gradient: Gradient) -> str:
    """Say why a model cannot be differentiated so, or nothing if it can."""
    name = type(model).__name__
    if not is_stochastic(model):
        return ""  # all gradients are its own
    if not is_refining(model):
        if gradient == "straight-through":
            return ""
        return (
            f"'{gradient}' needs a refinement, and {name} names no network behind its draws; use "
            "'straight-through'"
        )
    if gradient == "static":
        if is_stochastic(model.base):
            return f"'static' needs a deterministic network, and the one behind {name} is not"
        return ""
    if gradient not in model.gradients:
        return f"'{gradient}' is none of the gradients of this {name}: {', '.join(model.gradients)}"
    return ""


def target(
    model: nn.Module,
    gradient: Gradient = "straight-through",
    samples: int = 1,
    average: Average = "logits",
) -> Target:
    """Return what an attack on the model differentiates.

    Args:
        model: The model under attack.
        gradient: See the list above; of a deterministic model all are the same.
        samples: Draws behind each gradient (expectation over transformation, Athalye et al. 2018);
            a deterministic model has one.
        average: Over the chains of a draw, the ``logits`` or the ``losses``.

    Raises:
        InputError: There is no such gradient or average, or no sample.
        Unsupported: The model cannot be differentiated so.
    """
    if gradient not in get_args(Gradient) or average not in get_args(Average) or samples < 1:
        raise InputError(
            f"gradient='{gradient}', average='{average}', samples={samples}: expected a gradient "
            f"out of {', '.join(get_args(Gradient))}, an average out of "
            f"{', '.join(get_args(Average))} and at least 1 sample"
        )
    reason = not_applicable(model, gradient)
    if reason:
        raise Unsupported(reason)
    if gradient == "static":
        model = unrefined(model)
    if not is_stochastic(model):
        return Target(model, 1)
    return Target(model, samples, gradient, average)
