"""A small network whose logits and input gradient are written out in NumPy, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bench.types import Array

PIXELS, HIDDEN, CLASSES = 16, 7, 4


class Counting(nn.Module):
    """A network of one hidden layer that counts its passes, forwards and backwards."""

    def __init__(self, seed: int = 0, scale: float = 1.0) -> None:
        super().__init__()
        random = np.random.default_rng(seed)
        self.weights = [
            scale * random.normal(size=shape)
            for shape in ((HIDDEN, PIXELS), (HIDDEN,), (CLASSES, HIDDEN), (CLASSES,))
        ]
        for number, weight in enumerate(self.weights):
            self.register_buffer(f"weight_{number}", torch.from_numpy(weight).float())
        self.forwards = self.backwards = 0

    def forward(self, x: Tensor) -> Tensor:
        self.forwards += 1
        w, b, v, c = self.buffers()
        logits = torch.tanh(x.flatten(1) @ w.T + b) @ v.T + c
        if logits.requires_grad:
            logits.register_hook(self._went_back)  # type: ignore[no-untyped-call]
        return logits

    def _went_back(self, gradient: Tensor) -> None:
        self.backwards += 1


def logits_of(net: Counting, x: Any) -> Array:
    """Return the logits ``(B, K)``."""
    w, b, v, c = net.weights
    pixels = np.asarray(x, dtype=np.float64).reshape(len(x), -1)
    logits: Array = np.tanh(pixels @ w.T + b) @ v.T + c
    return logits


def softmax_of(logits: Array) -> Array:
    """Return the probabilities ``(B, K)``."""
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    p: Array = odds / odds.sum(axis=1, keepdims=True)
    return p


def density_of(logits: Array) -> Array:
    """Return log sum exp, ``(B,)``."""
    highest = logits.max(axis=1)
    value: Array = highest + np.log(np.exp(logits - highest[:, None]).sum(axis=1))
    return value


def gradient_of(net: Counting, x: Any) -> Array:
    """Return the gradient of log sum exp in the pixels, by the chain rule, ``(B, D)``."""
    w, b, v, _ = net.weights
    pixels = np.asarray(x, dtype=np.float64).reshape(len(x), -1)
    slope = 1 - np.tanh(pixels @ w.T + b) ** 2
    gradient: Array = ((softmax_of(logits_of(net, x)) @ v) * slope) @ w
    return gradient


def images(count: int = 12, seed: int = 1) -> Tensor:
    """Return random images ``(count, 1, 4, 4)``."""
    return torch.rand(count, 1, 4, 4, generator=torch.Generator().manual_seed(seed))
