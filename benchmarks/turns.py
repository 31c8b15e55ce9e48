"""Time contenders that take turns, so that a change of the machine's load meets all of them."""

from __future__ import annotations

import contextlib
import io
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch


@dataclass
class Timing:
    """What one contender took in every round, and what it returned in the last one.

    Attributes:
        cpu: Process CPU seconds; on a shared machine the wall clock measures the neighbours.
        wall: Seconds on the wall.
        result: What the last call returned.
        failure: Why it has no result.
    """

    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    result: Any = None
    failure: str | None = None


def take_turns(contenders: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, Timing]:
    """Call every contender once a round, every other round in reverse order."""
    timings = {name: Timing() for name in contenders}
    for r in range(rounds):
        for name in list(contenders)[:: 1 if r % 2 == 0 else -1]:
            timing = timings[name]
            if timing.failure is not None:
                continue
            torch.manual_seed(r)  # the peers draw from the global generators
            np.random.seed(r)
            _call(contenders[name], timing)
    return timings


def _call(work: Callable[[], Any], timing: Timing) -> None:
    cpu, wall = time.process_time(), time.perf_counter()
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            timing.result = work()
    except Exception as error:  # a peer that fails is a row of the table
        timing.failure = f"{type(error).__name__}: {error}".splitlines()[0][:160]
        return
    timing.cpu.append(time.process_time() - cpu)
    timing.wall.append(time.perf_counter() - wall)
