"""Models that are random without saying so, e.g. with dropout that stays on in eval mode.

RobustBench and AutoAttack test the same way: some passes at one input must agree.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bench.noise import Noise
from bench.preserving import preserved, seeded

# On the CPU equal passes give equal bits; kernels elsewhere may add in another order, which moves
# logits by some 1e-6 of the largest one.
_TOLERANCE = 1e-5


def detect_stochastic(model: nn.Module, x: Tensor, passes: int = 5) -> bool:
    """Say whether ``passes`` forward passes at ``x``, in eval mode, disagree.

    On the CPU any difference counts, elsewhere one above 1e-5 of the largest logit. The model's
    flags and the global random state are left as they were.
    """
    with preserved(model), torch.no_grad():
        first = model(x)
        tolerance = 0.0 if x.device.type == "cpu" else _TOLERANCE * float(first.abs().max())
        others = [model(x) for _ in range(passes - 1)]
        # NaN differs from itself: a model that returns it is broken, not random.
        return any(bool(((other - first).abs() > tolerance).any()) for other in others)


class Announced(nn.Module):
    """A model that draws from the global generators, made to draw from keyed noise.

    The global generators are seeded from the noise of the batch's first image for the time of a
    pass. So the draws belong to the micro-batch rather than to the image. A model may make one draw
    for a whole batch (noisy weights, a random resize), so the samples of an expectation are passes
    of their own.
    """

    stochastic = True
    one_draw_a_pass = True

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """Return the model's logits for whatever the global generators give."""
        logits: Tensor = self.model(x)
        return logits

    def sample_logits(self, x: Tensor, noise: Noise) -> Tensor:
        """Return the logits ``(B, K)`` of one draw."""
        with seeded(int(noise.at("announced").integers(1 << 62, 1)[0])):
            return self.forward(x)
