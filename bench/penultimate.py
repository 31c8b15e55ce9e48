"""The features under a classifier's last linear layer, caught in the pass that gives its logits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from bench.errors import Unsupported


class Caught:
    """What went into and came out of the linear layer that ran last."""

    def __init__(self) -> None:
        self._into: Tensor | None = None
        self._out: Tensor | None = None

    def hook(self, layer: nn.Module, into: tuple[Any, ...], out: Tensor) -> None:
        """Keep a call of a linear layer."""
        self._into, self._out = into[0].detach(), out.detach()

    def features(self, logits: Tensor) -> Tensor:
        """Return the features ``(B, D)`` of these logits.

        Raises:
            Unsupported: The logits are not what a linear layer returned.
        """
        into, out = self._into, self._out
        if into is None or out is None or out.shape != logits.shape or not out.equal(logits):
            raise Unsupported(
                "the model's logits are not the output of a linear layer (torch.nn.Linear) of its "
                "own, so that it has no features under one"
            )
        return into


@contextmanager
def catching(model: nn.Module) -> Iterator[Caught]:
    """Watch the linear layers of a model for the calls inside the block."""
    caught = Caught()
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    handles = [layer.register_forward_hook(caught.hook) for layer in layers]
    try:
        yield caught
    finally:
        for handle in handles:
            handle.remove()
