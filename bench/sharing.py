"""One forward and one backward pass over a batch, for all that is asked about its images.

Scores are functions of a model and images, and each asks the model. A `Shared` model answers the
first of them by a pass and the others from memory: they need not know of each other.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from bench.energy import density_gradient
from bench.penultimate import Caught, catching
from bench.types import DensityModel

T = TypeVar("T")


class Shared(nn.Module):
    """A model that remembers its answers for one batch; other images go to the model itself.

    Make one by `shared`. What it hands out are copies: who writes into them harms nobody.

    Args:
        model: The model.
        x: The batch, ``(B, C, H, W)``.
        gradient: Whether the pass shall give the gradient of log p(x) in ``x`` too.
    """

    def __init__(self, model: Any, x: Tensor, *, gradient: bool) -> None:
        super().__init__()
        self.asked: Any = model
        self.training = getattr(model, "training", False)
        self._x, self._version = x, x._version
        self._gradient = gradient
        self._answers: dict[str, Tensor] = {}
        self._failure: Exception | None = None
        self._caught = Caught()
        self._made: dict[Hashable, Any] = {}

    def __getattr__(self, name: str) -> Any:
        """Return what else the model has, e.g. ``features``."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "asked":  # not there yet, or no longer
                raise
            return getattr(self.asked, name)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits ``(B, K)``, detached for the images of the batch."""
        if not self._is_batch(x):
            logits: Tensor = self.asked(x)
            return logits
        return self._answer("logits")

    def density_gradient(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return log p(x) ``(B,)`` and its gradient in ``x``, both detached."""
        if not (self._gradient and self._is_batch(x)):
            return density_gradient(self.asked, x)
        value = self._answer("log_density")
        if self._failure is not None:
            raise self._failure
        return value, self._answers["gradient"].clone()

    def features_under(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits ``(B, K)`` and the features ``(B, D)`` under them, detached.

        Raises:
            Unsupported: The logits are not what a linear layer returned.
        """
        if not self._is_batch(x):
            return _features(self.asked, x)
        logits = self._answer("logits")
        return logits, self._caught.features(logits).clone()

    def once(self, name: Hashable, make: Callable[[], T]) -> T:
        """Return what ``make`` returned when this name was first asked for."""
        if name not in self._made:
            self._made[name] = make()
        made: T = self._made[name]
        return made

    @property
    def batch(self) -> Tensor:
        """The images."""
        return self._x

    def _is_batch(self, x: Tensor) -> bool:
        """Say whether these are the images of the batch, and no derivative in them is wanted."""
        mine = self._x
        same = x.data_ptr() == mine.data_ptr() and x.shape == mine.shape
        unwritten = x._version == mine._version == self._version
        return same and x.stride() == mine.stride() and unwritten and not x.requires_grad

    def _answer(self, name: str) -> Tensor:
        if name not in self._answers:
            self._pass(name)
        return self._answers[name].clone()

    def _pass(self, name: str) -> None:
        """Ask the model once, and go back through it where the gradient is wanted.

        The graph is kept until then in any case: without one some layers take other kernels, and
        a score must not depend on which others are asked for.
        """
        with torch.enable_grad():
            x, asked = self._x.detach().requires_grad_(), self.asked
            own = isinstance(asked, DensityModel)
            if own and name == "logits":
                self._logits(x)
                return
            value = asked.log_density(x) if own else torch.logsumexp(self._logits(x), dim=1)
            self._answers["log_density"] = value.detach()
            if self._gradient and "gradient" not in self._answers:
                self._go_back(value, x)

    def _logits(self, x: Tensor) -> Tensor:
        """Return the logits with their graph, and keep them with the features under them."""
        with catching(self.asked) as caught:
            logits: Tensor = self.asked(x)
        self._answers["logits"], self._caught = logits.detach(), caught
        return logits

    def _go_back(self, value: Tensor, x: Tensor) -> None:
        """Keep the gradient, or why there is none: scores of the logits alone go on without."""
        try:
            (self._answers["gradient"],) = torch.autograd.grad(value.sum(), x)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            self._failure = error.with_traceback(None)  # whose frames would keep the graph


class SharedDensity(Shared):
    """The same of a model that has a density of its own."""

    def log_density(self, x: Tensor) -> Tensor:
        """Return log p(x) up to a constant, ``(B,)``, detached for the images of the batch."""
        if not self._is_batch(x):
            value: Tensor = self.asked.log_density(x)
            return value
        return self._answer("log_density")


def shared(model: Any, x: Tensor, *, gradient: bool) -> Shared:
    """Return a model that answers for ``x`` once and then from memory."""
    kind = SharedDensity if isinstance(model, DensityModel) else Shared
    return kind(model, x, gradient=gradient)


def gradient_at(model: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return log p(x) ``(B,)`` and its gradient in ``x``, from the pass of all where there is one.

    Both are detached; weights keep their ``.grad``.
    """
    if isinstance(model, Shared):
        return model.density_gradient(x)
    return density_gradient(model, x)


def features_at(model: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return logits ``(B, K)`` and the features ``(B, D)`` under the last linear layer, detached.

    From the pass of all where there is one.

    Raises:
        Unsupported: The logits are not what a linear layer returned.
    """
    if isinstance(model, Shared):
        return model.features_under(x)
    return _features(model, x)


def _features(model: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    with torch.no_grad(), catching(model) as caught:
        logits: Tensor = model(x)
    return logits, caught.features(logits)


def once(model: Any, name: Hashable, make: Callable[[], T]) -> T:
    """Return what ``make`` returns, made once for all scores of a batch where they share it."""
    return model.once(name, make) if isinstance(model, Shared) else make()
