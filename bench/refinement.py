"""JEM-N: a classifier that refines its input with N steps of SGLD before it answers.

JEM (Grathwohl et al. 2019, arXiv 1912.03263), section 5.3 and the authors' attack code: each
input is copied ``n_chains`` times, noise is added, every copy takes N steps of SGLD on log p(x),
and the *logits* of the copies are averaged.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeGuard

from torch import Tensor, arange, nn, stack

from bench.energy import NOISE_STD, STEP_SIZE, log_density, sgld
from bench.errors import InputError
from bench.noise import Noise, bound


class Refining(Protocol):
    """A stochastic model that says how its draws can be differentiated.

    `Refined` is one; your own model is another if it has these. An attack then runs with every
    gradient that is named, and on the network behind the refinement.

    Attributes:
        base: The deterministic classifier behind the refinement.
        n_chains: How many chains a draw has.
        gradients: Which gradients ``chain_logits`` knows, out of ``straight-through``,
            ``surrogate`` and ``full``.
    """

    base: nn.Module
    n_chains: int

    @property
    def gradients(self) -> tuple[str, ...]:
        """The names of the gradients."""
        ...

    def chain_logits(self, x: Tensor, noise: Noise, gradient: str) -> Tensor:
        """Return the logits of every chain of one draw, ``(B, n_chains, K)``.

        Their mean over the chains is ``sample_logits(x, noise)``, whatever the gradient; only
        ``surrogate`` may be another, cheaper function.
        """
        ...


class Refined(nn.Module):
    """A classifier behind N refinement steps; stochastic.

    Its draws can be differentiated in three ways (`chain_logits`). By default gradients pass
    straight through the refinement: the backward pass sees the identity, evaluated at the refined
    points (the papers' attack; BPDA of Athalye et al. 2018, section 4.1).

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

    @property
    def gradients(self) -> tuple[str, ...]:
        """The gradients that differ: all are one at 0 steps; a surrogate needs at least 2."""
        return ("straight-through", "full", "surrogate")[: min(self.steps, 2) + 1]

    def refine(
        self, x: Tensor, steps: int, noise: Noise, *, differentiable: bool = False
    ) -> Tensor:
        """Return ``x`` after ``steps`` of SGLD; one chain an image.

        Detached, unless ``differentiable``: then with the derivative through every step.
        """
        shape = x.shape[1:]
        return sgld(
            self.base,
            x,
            steps,
            lambda k: noise.at("sgld", k).normal(*shape),
            self.step_size,
            self.noise_std,
            differentiable=differentiable,
        )

    def chain_logits(self, x: Tensor, noise: Noise, gradient: str = "straight-through") -> Tensor:
        """Return the logits of every chain of one draw, ``(B, n_chains, K)``.

        Args:
            x: ``(B, C, H, W)``.
            noise: Bound to the images. Every gradient meets the same noise.
            gradient: ``straight-through`` skips the refinement in the backward pass, ``full`` goes
                back through all its steps, ``surrogate`` through a refinement of a fifth of the
                steps, whose logits these then are (Lee and Kim 2023, arXiv 2303.09051).
        """
        chains = noise.expand(self.n_chains)
        start = copies = x.repeat_interleave(self.n_chains, dim=0)
        if self.input_noise:
            start = start + self.input_noise * chains.at("input").normal(*x.shape[1:])
        if gradient == "straight-through":
            refined = self.refine(start.detach(), self.steps, chains)
            # The value of `refined`, the gradient of the identity.
            point = copies + (refined - copies).detach()
        else:
            steps = max(1, self.steps // 5) if gradient == "surrogate" else self.steps
            point = self.refine(start, steps, chains, differentiable=True)
        logits: Tensor = self.base(point)
        return logits.view(len(x), self.n_chains, -1)

    def sample_logits(self, x: Tensor, noise: Noise) -> Tensor:
        """Return the logits ``(B, K)`` of one draw: the mean over the chains."""
        return self.chain_logits(x, noise).mean(dim=1)

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


def is_refining(model: Any) -> TypeGuard[Refining]:
    """Say whether a model has what `Refining` names.

    By `hasattr`: from Python 3.12 on `isinstance` would not see the sub-module ``base``.
    """
    names = ("base", "n_chains", "gradients", "chain_logits")
    return all(hasattr(model, name) for name in names)


def unrefined(model: nn.Module) -> nn.Module:
    """Return the classifier behind the refinement, or the model itself."""
    return model.base if is_refining(model) else model


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


def many_draws(model: nn.Module, x: Tensor, noise: Noise, count: int) -> Tensor:
    """Return the logits of ``count`` independent draws, ``(B, count, K)``.

    Draw d is that of ``noise.expand(count)`` in lane d, whatever the count. All run as one batch,
    except where a model says ``one_draw_a_pass``: there the images of a pass may share a draw.
    """
    lanes, copies = noise.expand(count), x.repeat_interleave(count, dim=0)
    if not getattr(model, "one_draw_a_pass", False):
        return draw_logits(model, copies, lanes).view(len(x), count, -1)
    one_each = arange(0, len(copies), count, device=x.device)
    passes = [draw_logits(model, x, lanes.select(one_each + d)) for d in range(count)]
    return stack(passes, dim=1)


class OneDraw(nn.Module):
    """A stochastic model held at one draw of keyed noise: an ordinary model for a score."""

    def __init__(self, model: nn.Module, noise: Noise) -> None:
        super().__init__()
        self.model, self._noise = model, noise

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits ``(B, K)`` of the draw."""
        return draw_logits(self.model, x, self._noise)


class KeyedForward(nn.Module):
    """A stochastic model whose plain forward pass draws keyed noise too, every call anew.

    For attacks that call ``model(x)`` and know of no noise. A call on as many images as there is
    noise for takes them to be those images; any other draws by the places in its batch.
    """

    stochastic = True

    def __init__(self, model: nn.Module, noise: Noise) -> None:
        super().__init__()
        self.model, self._noise, self._calls = model, noise, 0
        self.one_draw_a_pass = getattr(model, "one_draw_a_pass", False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits ``(B, K)`` of the next draw."""
        self._calls += 1
        noise = self._noise.at("call", self._calls)
        if len(x) != len(noise):
            places = arange(len(x), device=x.device)
            noise = Noise(noise.key, places, places * 0)
        return draw_logits(self.model, x, noise)

    def sample_logits(self, x: Tensor, noise: Noise) -> Tensor:
        """Return the logits ``(B, K)`` of one draw."""
        return draw_logits(self.model, x, noise)
