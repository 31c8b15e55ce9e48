"""Maximum likelihood of log p(x) by persistent Langevin chains, the JEM term.

JEM (Grathwohl et al. 2019, arXiv 1912.03263), equation 6 and algorithm 1: the gradient of
-log p(x) is that of E(x) - E(x~), with x~ from SGLD chains that live in a replay buffer. As in
the authors' code, the network is in eval mode while it samples, no gradient passes through the
chains, nothing is clamped, and a chain starts anew with a small probability.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bench.energy import sgld

from .objectives import Step, Unhealthy


@dataclass(frozen=True, kw_only=True)
class SamplerOptions:
    """Options of the chains; sizes are in z = 2x - 1, the papers' scale.

    Attributes:
        sgld_steps: Steps a training step.
        sgld_step_size: Factor of the gradient of log p(z).
        sgld_noise: Standard deviation of a step's noise.
        buffer_size: Chains kept.
        restart_probability: Chance that a chain starts anew from uniform noise.
        max_energy_gap: Mean energies of data and chains further apart than this are a divergence;
            a healthy training keeps them within about 1.
    """

    sgld_steps: int = 20
    sgld_step_size: float = 1.0
    sgld_noise: float = 0.01
    buffer_size: int = 2_000
    restart_probability: float = 0.05
    max_energy_gap: float = 10.0


@contextmanager
def sampling(network: nn.Module) -> Iterator[None]:
    """Put the network in eval mode with frozen weights, and back as it was."""
    training = [module for module in network.modules() if module.training]
    learning = [weight for weight in network.parameters() if weight.requires_grad]
    network.eval()
    for weight in learning:
        weight.requires_grad_(False)
    try:
        yield
    finally:
        for module in training:
            module.training = True
        for weight in learning:
            weight.requires_grad_(True)


class LogDensity:
    """E(x) - E(x~) for x of the data and x~ of the chains; E(x) = -LSE_y f(x)[y].

    Args:
        options: Of the chains.
        shape: ``(C, H, W)`` of an image.
        generator: Fills the buffer, uniform on [-1, 1], on its device.
    """

    def __init__(
        self, options: SamplerOptions, shape: tuple[int, int, int], generator: torch.Generator
    ) -> None:
        self.options = options
        size = (options.buffer_size, *shape)
        buffer = 2.0 * torch.rand(size, generator=generator, device=generator.device) - 1.0
        self.memory = {"buffer": buffer}

    def __call__(self, step: Step) -> Tensor:
        """Return the scalar difference of mean energies; chains advance by ``sgld_steps``."""
        samples = self.sample(step)
        data = step.network(step.unlabelled).logsumexp(dim=1).mean()
        gap: Tensor = step.network(samples).logsumexp(dim=1).mean() - data
        if not abs(float(gap.detach())) <= self.options.max_energy_gap:  # also true for NaN
            raise Unhealthy(
                f"the energies of data and chains are {float(gap.detach()):.3g} apart, beyond "
                f"{self.options.max_energy_gap:g}"
            )
        return gap

    def sample(self, step: Step) -> Tensor:
        """Advance as many chains as the batch has images; return them and write them back."""
        options, generator = self.options, step.generator
        buffer, device = self.memory["buffer"], generator.device
        count = min(len(step.z), len(buffer))
        rows = torch.randperm(len(buffer), generator=generator, device=device)[:count]
        start = buffer[rows]
        fresh = 2.0 * torch.rand(start.shape, generator=generator, device=device) - 1.0
        anew = torch.rand(count, generator=generator, device=device) < options.restart_probability
        start = torch.where(anew[:, None, None, None], fresh, start)
        with sampling(step.network):
            end = sgld(
                step.network,
                start,
                options.sgld_steps,
                lambda k: torch.randn(start.shape, generator=generator, device=device),
                options.sgld_step_size * step.caution,
                options.sgld_noise,
            )
        buffer[rows] = end
        return end
