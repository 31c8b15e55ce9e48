"""Fast gradient sign method, Goodfellow et al. (2015), section 4."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from bench.context import Context
from bench.registry import ATTACKS
from bench.types import Norm


@ATTACKS.register("fgsm-linf", norm=Norm.LINF)
@dataclass(frozen=True, kw_only=True)
class FGSM:
    """One signed gradient step of size ``eps``, in units of the [0, 1] pixel range."""

    eps: float
    norm: Norm = field(default=Norm.LINF, init=False)

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, context: Context) -> Tensor:
        """Return the perturbed images."""
        point = x.clone().requires_grad_()
        loss = cross_entropy(model(point), y, reduction="sum")
        (gradient,) = torch.autograd.grad(loss, point)
        moved = (x + self.eps * gradient.sign()).clamp(0, 1)
        # x + eps rounds to the nearest float; one that lies outside the ball goes a step back.
        outside = (moved - x).abs() > self.eps
        return torch.where(outside, torch.nextafter(moved, x), moved)
