"""A classifier read as an energy model, and the Langevin steps on its density.

JEM (Grathwohl et al. 2019, arXiv 1912.03263), section 3: log p(x) = LSE_y f(x)[y] - log Z.

Scale. The papers work in z = 2x - 1; images here are x in [0, 1]. The same chain has
step_x = step_z / 4 and noise_x = noise_z / 2, since the gradient in x is twice that in z. The
papers' step 1 and noise 0.01 in z are `STEP_SIZE` and `NOISE_STD` in x.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from bench.types import DensityModel

STEP_SIZE = 1.0 / 4.0
NOISE_STD = 0.01 / 2.0


def log_density(model: Any, x: Tensor) -> Tensor:
    """Return log p(x) up to a constant, ``(B,)``, differentiable in ``x``.

    A model's own ``log_density`` comes first; otherwise the logsumexp of its logits.
    """
    if isinstance(model, DensityModel):
        return model.log_density(x)
    return torch.logsumexp(model(x), dim=1)


def density_gradient(model: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return log p(x) ``(B,)`` and its gradient in ``x``, both detached.

    Only the gradient to the input is computed: weights keep their ``.grad``.
    """
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        value = log_density(model, x)
        (gradient,) = torch.autograd.grad(value.sum(), x)
    return value.detach(), gradient


def _drift(model: Any, x: Tensor, step_size: float) -> Tensor:
    """Return x + step_size * grad log p(x) with the graph of both derivatives."""
    value = log_density(model, x)
    (gradient,) = torch.autograd.grad(value.sum(), x, create_graph=True)
    return x + step_size * gradient


class _DriftAnew(torch.autograd.Function):
    """The same, keeping only ``x``: the backward pass computes the step a second time.

    Checkpointing (Chen et al. 2016, arXiv 1604.06174) by hand, since torch's own cannot hold a
    derivative that is taken inside the step.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, model: Any, step_size: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.model, ctx.step_size = model, step_size  # type: ignore[attr-defined]
        return x + step_size * density_gradient(model, x)[1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            (through,) = torch.autograd.grad(_drift(ctx.model, x, ctx.step_size), x, upstream)
        return through, None, None


def sgld(
    model: Any,
    x: Tensor,
    steps: int,
    draw: Callable[[int], Tensor],
    step_size: float = STEP_SIZE,
    noise_std: float = NOISE_STD,
    *,
    differentiable: bool = False,
    recompute: bool | None = None,
) -> Tensor:
    """Return ``x`` after ``steps`` of x + step_size * grad log p(x) + noise_std * draw(k).

    No step is clamped (JEM's code, PROTOCOL `refinement`), so the result can leave [0, 1].

    Args:
        model: A classifier or a density.
        x: ``(B, C, H, W)``.
        steps: How many steps.
        draw: Step number to standard normal noise of the shape of ``x``.
        step_size: Factor of the gradient, in x units.
        noise_std: Standard deviation of the noise of a step, in x units.
        differentiable: Keep the derivative of the result in ``x`` through every step; else the
            result is detached.
        recompute: Of a differentiable chain: keep the points alone and compute each step a second
            time in the backward pass, in the memory of one step. ``None``: from 3 steps on.
    """
    if not (differentiable and torch.is_grad_enabled() and x.requires_grad):
        x = x.detach()
        for k in range(steps):
            x = x + step_size * density_gradient(model, x)[1] + noise_std * draw(k)
        return x
    anew = steps > 2 if recompute is None else recompute
    for k in range(steps):
        moved = _DriftAnew.apply(x, model, step_size) if anew else _drift(model, x, step_size)
        x = moved + noise_std * draw(k)
    return x
