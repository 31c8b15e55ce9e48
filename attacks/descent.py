"""The loop that gradient attacks share: steps, the best point seen, and the active set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bench.noise import Noise

from .geometry import Ball, per_image
from .losses import margins

# A point counts as broken for the active set when its margin is below minus this share of the
# largest logit: another batch size changes logits by about 1e-6 of it, and the verdict, which is
# taken by a later pass, must not differ.
_SURE = 1e-5


@dataclass
class Best:
    """The best point seen so far of every image of a batch.

    Attributes:
        point: ``(B, C, H, W)``; the clean image before anything was seen.
        margin: ``(B,)``; the mean over draws of true logit minus best other.
        broken: ``(B,)``; whether the point is misclassified beyond rounding.
        passes: ``(B,)``; forward passes spent on each image.
    """

    point: Tensor
    margin: Tensor
    broken: Tensor
    passes: Tensor

    @classmethod
    def of(cls, x: Tensor) -> Best:
        """Return the state before the first pass."""
        none = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        return cls(x.clone(), torch.full_like(none, torch.inf, dtype=x.dtype), none.bool(), none)

    def forget(self, x: Tensor) -> None:
        """Start anew from the clean images; passes spent stay spent."""
        new = Best.of(x)
        self.point, self.margin, self.broken = new.point, new.margin, new.broken

    def see(self, rows: Tensor, point: Tensor, logits: Tensor, y: Tensor, freeze: bool) -> None:
        """Take up the points of some rows where they are better than what there was.

        With ``freeze`` a broken image keeps the point that broke it, and is charged no more.
        """
        each = margins(logits.detach(), y)
        margin = each.mean(dim=1)
        open_ = ~self.broken[rows] if freeze else torch.ones_like(self.broken[rows])
        better = (margin < self.margin[rows]) & open_
        self.point[rows] = torch.where(per_image(better, point), point, self.point[rows])
        self.margin[rows] = torch.where(better, margin, self.margin[rows])
        scale = logits.detach().abs().amax(dim=(1, 2))
        self.broken[rows] |= better & (margin < -_SURE * scale)
        self.passes[rows] += open_ * logits.shape[1]


@dataclass(frozen=True)
class Walk:
    """How one run from one starting point goes.

    Attributes:
        logits: (points, noise) to ``(B, K, classes)``, differentiable in the points.
        loss: (logits, y) to ``(B,)``, to be raised.
        steps: How many steps.
        step_size: Length of a step in the norm of the ball.
        momentum: Share of the last direction kept (Dong et al. 2018, equation 6); 0 is plain.
        early_stop: Whether a broken image leaves the batch.
        fresh: Whether each budget starts without the point of the one before: the margin of a few
            draws is no reason to prefer an older point.
        progress: Called with 1 after each step.
    """

    logits: Callable[[Tensor, Noise], Tensor]
    loss: Callable[[Tensor, Tensor], Tensor]
    steps: int
    step_size: float
    momentum: float
    early_stop: bool
    fresh: bool
    progress: Callable[[int], None]

    def run(
        self, best: Best, rows: Tensor, start: Tensor, y: Tensor, ball: Ball, noise: Noise
    ) -> None:
        """Walk uphill from ``start`` and note in ``best`` what is found.

        ``rows`` are the places in ``best`` of the images; ``start``, ``y``, ``ball`` and ``noise``
        have one row for each.
        """
        point, speed = start, torch.zeros_like(start)
        fallback = noise.at("flat").normal(*start.shape[1:])
        every = 1 if start.device.type == "cpu" else 4  # asking a GPU makes it wait
        for step in range(self.steps + 1):
            point = point.detach().requires_grad_()
            logits = self.logits(point, noise.at("step", step))
            best.see(rows, point.detach(), logits, y, self.early_stop)
            self.progress(1)
            if step == self.steps:
                return
            keep = ~best.broken[rows] if self.early_stop and step % every == every - 1 else None
            if keep is not None and not keep.any():
                return
            speed = self.momentum * speed + self._direction(logits, y, point)
            with torch.no_grad():
                point = ball.project(point + self.step_size * ball.steepest(speed, fallback))
            if keep is not None and not keep.all():
                rows, y, point, speed = rows[keep], y[keep], point[keep], speed[keep]
                ball, noise, fallback = ball.select(keep), noise.select(keep), fallback[keep]

    def _direction(self, logits: Tensor, y: Tensor, point: Tensor) -> Tensor:
        """Return the gradient of the loss, of mean absolute entry 1 an image so that speeds add."""
        loss = self.loss(logits, y).sum()
        if not loss.requires_grad:  # constant logits
            return torch.zeros_like(point)
        (gradient,) = torch.autograd.grad(loss, point, allow_unused=True, materialize_grads=True)
        gradient = torch.nan_to_num(gradient, nan=0.0, posinf=0.0, neginf=0.0)
        largest = gradient.flatten(1).abs().amax(dim=1).clamp(min=torch.finfo(gradient.dtype).tiny)
        gradient = gradient / per_image(largest, gradient)
        size = gradient.flatten(1).abs().mean(dim=1).clamp(min=torch.finfo(gradient.dtype).tiny)
        return gradient / per_image(size, gradient)
