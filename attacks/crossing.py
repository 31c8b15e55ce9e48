"""The nearest point at which a linear function crosses zero, within the box of images.

Croce and Hein (2020), "Minimally distorted adversarial examples with a fast adaptive boundary
attack", arXiv 1907.02044, section 2.2, solved by Newton's method instead of sorting.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bench.types import Norm

from .geometry import per_image

_TINY = torch.finfo(torch.float32).tiny
_ITERATIONS = 12


def crossing(norm: Norm, x: Tensor, gradient: Tensor, gap: Tensor) -> Tensor:
    """Return the nearest points ``z`` in [0, 1] with ``gradient . (z - x) = gap``.

    Every entry moves along its gradient, in L-infinity all equally far, in L2 in proportion to the
    gradient, until it meets the box. What that gains is a concave, piecewise linear function of
    how far, so that Newton's method from below ends at the exact answer in a few steps.

    Args:
        norm: Which distance is smallest.
        x: Images, ``(B, C, H, W)``.
        gradient: Of the functions.
        gap: By how much each is to rise, ``(B,)``, at least 0. Where the box does not allow for
            it, the box's corner is returned.
    """
    size = gradient.abs()
    size = size / per_image(size.amax(dim=(1, 2, 3)).clamp(min=_TINY), size)
    largest = gradient.abs().amax(dim=(1, 2, 3)).clamp(min=_TINY)
    gap = gap / largest
    room = torch.where(gradient > 0, 1 - x, x)
    speed = (size > 0).float() if norm is Norm.LINF else size
    far = torch.zeros_like(gap)
    for _ in range(_ITERATIONS):
        wanted = per_image(far, x) * speed
        gain = (size * torch.minimum(wanted, room)).sum(dim=(1, 2, 3))
        rate = (size * speed * (wanted < room)).sum(dim=(1, 2, 3))
        far = far + torch.where(rate > 0, (gap - gain).clamp(min=0) / rate.clamp(min=_TINY), 0)
    moved = torch.minimum(per_image(far, x) * speed, room) * gradient.sign()
    return (x + moved).clamp(0, 1)
