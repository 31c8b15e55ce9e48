"""JEM-N: a classifier that refines its input with N steps of SGLD before it answers.

JEM (Grathwohl et al. 2019, arXiv 1912.03263), section 5.3 and the authors' attack code: each
input is copied ``n_chains`` times, noise is added, every copy takes N steps of SGLD on log p(x),
and the *logits* of the copies are averaged.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from bench.energy import NOISE_STD, STEP_SIZE, log_density, sgld
from bench.errors import InputError
from bench.noise import Noise, bound


class Refined(nn.Module):
    """A classifier behind N refinement steps; stochastic.

    Gradients pass straight through the refinement (the papers' attack; Athalye et al. 2018,
    BPDA): the backward pass sees the identity, evaluated at the refined points.

    Args:
        model: The classifier to refine for; its density drives the chains.
        steps: N. With 0 steps only the input noise and the averaging remain.
        n_chains: Copies of each input. Another number is another model.
        input_noise: Standard deviation of the noise on each copy before the first step, x units.
        step_size: SGLD step, x units; the papers' 1 in z = 2x - 1 is 1/4 here.
        noise_std: SGLD noise, x units; the papers' 0.01 in z is 0.005 here.
    """

    stochastic = True

    def __init__(
        self,
        model: nn.Module,
        steps: int,
        n_chains: int = 5,
        input_noise: float = 0.0,
        step_size: float = STEP_SIZE,
        noise_std: float = NOISE_STD,
    ) -> None:
        super().__init__()
        if steps < 0 or n_chains < 1 or input_noise < 0 or noise_std < 0 or step_size <= 0:
            raise InputError(
                f"refinement with steps={steps}, n_chains={n_chains}, input_noise={input_noise}, "
                f"step_size={step_size}, noise_std={noise_std}: steps and noises must not be "
                "negative, n_chains must be at least 1 and step_size positive"
            )
        self.base = model
        self.steps, self.n_chains, self.input_noise = steps, n_chains, input_noise
        self.step_size, self.noise_std = step_size, noise_std
        self._bound: Noise | None = None
        self._calls = 0

    def extra_repr(self) -> str:
        """Return the settings: they are part of the model."""
        return (
            f"steps={self.steps}, n_chains={self.n_chains}, input_noise={self.input_noise}, "
            f"step_size={self.step_size}, noise_std={self.noise_std}"
        )

    def log_density(self, x: Tensor) -> Tensor:
        """Return log p(x) of the *unrefined* input, ``(B,)``."""
        return log_density(self.base, x)

    def refine(self, x: Tensor, steps: int, noise: Noise) -> Tensor:
        """Return ``x`` after ``steps`` of SGLD, detached; one chain an image."""
        shape = x.shape[1:]
        return sgld(
            self.base,
            x,
            steps,
            lambda k: noise.at("sgld", k).normal(*shape),
            self.step_size,
            self.noise_std,
        )

    def sample_logits(self, x: Tensor, noise: Noise) -> Tensor:
        """Return the logits ``(B, K)`` of one draw: the mean over the chains."""
        batch = len(x)
        chains = noise.expand(self.n_chains)
        copies = x.repeat_interleave(self.n_chains, dim=0)
        start = copies.detach()
        if self.input_noise:
            start = start + self.input_noise * chains.at("input").normal(*x.shape[1:])
        refined = self.refine(start, self.steps, chains)
        # Straight-through: the value of `refined`, the gradient of the identity.
        logits: Tensor = self.base(copies + (refined - copies).detach())
        return logits.view(batch, self.n_chains, -1).mean(dim=1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of the next draw of the bound noise; every call is a new draw."""
        noise = self._bound
        if noise is None:
            noise = bound(0, "unbound", range(len(x)), device=x.device)
        self._calls += 1
        return self.sample_logits(x, noise.at("call", self._calls))

    @contextmanager
    def bind(self, noise: Noise) -> Iterator[None]:
        """Let ``forward`` draw from ``noise``, starting with its first draw."""
        before = self._bound, self._calls
        self._bound, self._calls = noise, 0
        try:
            yield
        finally:
            self._bound, self._calls = before


def unrefined(model: nn.Module) -> nn.Module:
    """Return the classifier behind the refinement, or the model itself."""
    return model.base if isinstance(model, Refined) else model


def is_stochastic(model: nn.Module) -> bool:
    """Say whether a model declares that its logits depend on noise."""
    return bool(getattr(model, "stochastic", False))


def draw_logits(model: nn.Module, x: Tensor, noise: Noise) -> Tensor:
    """Return the logits ``(B, K)`` of one draw; a deterministic model ignores the noise."""
    if is_stochastic(model):
        logits: Tensor = model.sample_logits(x, noise)  # type: ignore[operator]
        return logits
    logits = model(x)
    return logits


class OneDraw(nn.Module):
    """A stochastic model held at one draw of keyed noise: an ordinary model for a score."""

    def __init__(self, model: nn.Module, noise: Noise) -> None:
        super().__init__()
        self.model, self._noise = model, noise

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits ``(B, K)`` of the draw."""
        return draw_logits(self.model, x, self._noise)
