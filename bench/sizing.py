"""How many images to send through a model at once, where the user does not say."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bench.preserving import preserved

ON_CPU = 128  # larger ones leave the caches and are no faster
LARGEST = 8192
_PROBE = 8
_SHARE = 0.5  # of the free memory: an attack holds points and gradients beside the pass


def micro_batch_for(model: nn.Module | None, x: Tensor) -> int:
    """Return a micro-batch for the device of ``x``, ``(B, C, H, W)``.

    On CUDA the memory of one forward and backward pass over a few images is measured, and the
    largest power of two is taken that fits into half of what is free. What does not fit after all
    is halved when it happens (`bench.batching`).
    """
    if x.device.type != "cuda" or model is None:
        return ON_CPU
    per_image = _bytes_per_image(model, x[:_PROBE])
    free, _ = torch.cuda.mem_get_info(x.device)
    return fitting(per_image, int(free))


def fitting(per_image: float, free: int) -> int:
    """Return the largest power of two of images that half of ``free`` bytes hold, 1 to 8192."""
    count = int(_SHARE * free / max(per_image, 1.0))
    return min(LARGEST, 1 << max(0, count.bit_length() - 1))


def _bytes_per_image(model: nn.Module, x: Tensor) -> float:
    """Return the peak memory of a forward and backward pass, an image."""
    before = torch.cuda.memory_allocated(x.device)
    torch.cuda.reset_peak_memory_stats(x.device)
    with preserved(model):
        x = x.clone().requires_grad_()
        out = model(x)
        if isinstance(out, Tensor) and out.requires_grad:
            torch.autograd.grad(out.sum(), x, allow_unused=True)
    return (torch.cuda.max_memory_allocated(x.device) - before) / len(x)
