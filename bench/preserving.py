"""Leave a model and the global random state as they were, whatever happens in between."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import torch
from torch import Tensor, nn


@contextmanager
def preserved_rng() -> Iterator[None]:
    """Put the global generators of torch (CPU and CUDA), NumPy and Python back at the end."""
    python, legacy = random.getstate(), np.random.get_state()
    # Named, and only if in use: else torch warns where there are several, and wakes CUDA.
    awake = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    used = range(torch.cuda.device_count()) if awake else ()
    with torch.random.fork_rng(devices=used):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(legacy)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the global generators for the time being, and put them back at the end."""
    with preserved_rng():
        torch.manual_seed(seed)
        np.random.seed(seed % (1 << 32))
        random.seed(seed)
        yield


@contextmanager
def _gradients_to_input_only(model: nn.Module) -> Iterator[None]:
    """Freeze the weights, so that no gradient of theirs is computed, and keep their ``.grad``."""
    weights = [(p, p.requires_grad, p.grad) for p in model.parameters()]
    kept = [None if grad is None else grad.clone() for _, _, grad in weights]
    for weight, _, _ in weights:
        weight.requires_grad_(False)
    try:
        yield
    finally:
        for (weight, wanted, grad), values in zip(weights, kept, strict=True):
            weight.requires_grad_(wanted)
            if grad is not None and values is not None:
                grad.copy_(values)  # a backward pass adds to it in place
            weight.grad = grad


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Put the model in eval mode; give every sub-module its own flag and buffers back."""
    flags = [(module, module.training) for module in model.modules()]
    buffers: list[tuple[Tensor, Tensor]] = [(b, b.clone()) for b in model.buffers()]
    model.eval()
    try:
        yield
    finally:
        for module, training in flags:
            module.training = training  # train() would flip the sub-modules as well
        for buffer, values in buffers:
            buffer.copy_(values)


@contextmanager
def preserved(model: nn.Module) -> Iterator[None]:
    """Run a block with the model in eval mode, gradients on, and nothing of it kept.

    At the end, also after an exception, every sub-module's train/eval flag, the buffers (batch
    norm's statistics), each weight's ``.grad`` and ``requires_grad``, and the global generators
    are what they were. The block works inside the caller's `torch.no_grad` or
    `torch.inference_mode` too: attacks and refinement need gradients.
    """
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())  # for the clean-up
        stack.enter_context(preserved_rng())
        stack.enter_context(_gradients_to_input_only(model))
        stack.enter_context(_evaluating(model))
        stack.enter_context(torch.enable_grad())
        yield
