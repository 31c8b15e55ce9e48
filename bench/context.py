"""What surrounds a computation: device, micro-batch, and the noise bound to its images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bench.errors import InputError
from bench.noise import Noise


@dataclass(frozen=True, kw_only=True)
class Context:
    """What an attack or a score may know besides the model and the images.

    Attributes:
        noise: The source of every random draw, bound to the images of the call (`bench.noise`).
        micro_batch: How many images to send through the model at once.
        progress: Called with the number of steps just done, for the progress bar.
        spent: Called with forward passes, ``(B,)``, by an attack that does not spend the same on
            every image it was given; one that never calls it is charged evenly.
        out_of_time: Whether the time budget is used up: an attack asks between steps and then
            returns the best it has.
    """

    noise: Noise
    micro_batch: int = 128
    progress: Callable[[int], None] = lambda done: None
    spent: Callable[[Tensor], None] = lambda passes: None
    out_of_time: Callable[[], bool] = lambda: False


def resolve_device(name: str) -> torch.device:
    """Return the device called ``name``; ``auto`` takes CUDA, then MPS, then the CPU.

    Raises:
        InputError: The device does not exist here.
    """
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        if torch.backends.mps.is_available():
            return torch.device("mps")
        return torch.device("cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(
            f"device '{name}' cannot be used here ({str(error).splitlines()[0]}); "
            "use 'auto', 'cpu', 'cuda' or 'cuda:N'"
        ) from error
    return device
