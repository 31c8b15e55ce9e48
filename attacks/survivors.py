"""Which images of a batch an attack goes on with, found out without making a GPU wait."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_LAG = 3  # steps a GPU is given to answer; it works on them meanwhile
_WORTH = 16  # an answer counts when it concerns at least this part of the batch


class Survivors:
    """The active set of an attack that takes steps.

    On a GPU the host runs ahead and only queues work. Asking which images are broken makes it wait
    for all that is queued, so the answer is copied in the background and looked at some steps
    later; until then the broken images just come along. With any lag the same images leave in the
    same state, only later.

    Args:
        lag: Steps between question and answer; by default 0 on the CPU and some on a GPU.
    """

    def __init__(self, lag: int | None = None) -> None:
        self._lag = lag
        self._asked: Callable[[], Tensor] | None = None
        self._wait = 0

    def after(self, state: Tensor) -> Tensor | None:
        """Return the states of an earlier call, on the host, or ``None``: nothing to do now.

        Args:
            state: Of every image of the batch, ``(B,)`` on the device; not zero (or true) asks for
                something to be done, and must remain so until it is. The batch may only change
                after an answer.
        """
        if self._asked is None:
            lag = self._lag if self._lag is not None else 0 if state.device.type == "cpu" else _LAG
            self._asked, self._wait = _copied(state), lag
        if self._wait > 0:
            self._wait -= 1
            return None
        answer = self._asked()
        self._asked = None
        count = int(torch.count_nonzero(answer))
        return None if count * _WORTH < len(answer) else answer


def _copied(state: Tensor) -> Callable[[], Tensor]:
    """Begin to copy a tensor to the host; return what waits for it and gives it."""
    if state.device.type != "cuda":
        host = state.cpu()
        return lambda: host
    pinned = torch.empty(state.shape, dtype=state.dtype, pin_memory=True)
    pinned.copy_(state, non_blocking=True)
    event = torch.cuda.current_stream(state.device).record_event()

    def wait() -> Tensor:
        event.synchronize()
        return pinned

    return wait


def places(mask: Tensor, device: torch.device) -> Tensor:
    """Return where a mask on the host is true, ``(b,)`` int64 on a device that is not made wait."""
    found = mask.nonzero()[:, 0]
    if device.type == "cuda":
        found = found.pin_memory()
    return found.to(device, non_blocking=True)


def possibly(mask: Tensor) -> bool:
    """Say whether a mask may be true anywhere: on the CPU whether it is, elsewhere always.

    For work that is rarely needed: a GPU does it needlessly in less time than an answer takes.
    """
    return mask.device.type != "cpu" or bool(mask.any())
