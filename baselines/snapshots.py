"""All that a training needs to go on: kept in memory after each healthy epoch, and on disk.

Random numbers are no part of it: each epoch draws from a generator that is named by the seed, the
epoch and the number of restarts, so a resumed training draws what the uninterrupted one would.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bench.errors import CheckpointError
from bench.weights import read_state, write_state

from .objectives import Term


@dataclass
class Progress:
    """How far a training is.

    Attributes:
        epoch: Healthy epochs done.
        best_epoch: The one of the best weights, from 1; 0: none yet.
        best_accuracy: On the validation images, then.
        best_nll: Mean negative log-likelihood on the validation images, then.
        restarts: One entry a recovery from divergence.
        seconds: Time spent so far.
    """

    epoch: int = 0
    best_epoch: int = 0
    best_accuracy: float = 0.0
    best_nll: float = math.inf
    restarts: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0


@dataclass(frozen=True)
class Snapshot:
    """A healthy moment; nothing in it is shared with the running training."""

    epoch: int
    model: dict[str, Tensor]
    optimizer: dict[str, Any]
    terms: dict[str, dict[str, Tensor]]


def capture(
    epoch: int, model: nn.Module, optimizer: torch.optim.Optimizer, terms: Mapping[str, Term]
) -> Snapshot:
    """Return a copy of all that changes in training, after ``epoch`` epochs."""
    return copy.deepcopy(
        Snapshot(
            epoch=epoch,
            model=dict(model.state_dict()),
            optimizer=optimizer.state_dict(),
            terms={name: term.memory for name, term in terms.items()},
        )
    )


def restore(
    snapshot: Snapshot,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    terms: Mapping[str, Term],
) -> None:
    """Put everything back as it was at the capture; the snapshot stays good."""
    model.load_state_dict(snapshot.model)
    optimizer.load_state_dict(copy.deepcopy(snapshot.optimizer))
    for name, term in terms.items():
        term.memory = {
            key: snapshot.terms[name][key].to(value.device, copy=True)
            for key, value in term.memory.items()
        }


def save(
    path: Path, good: Sequence[Snapshot], progress: Progress, best: Mapping[str, Tensor]
) -> None:
    """Write everything to ``path``; a kill at any moment leaves the old file or the new one."""
    state = {
        "good": [vars(snapshot) for snapshot in good],
        "progress": asdict(progress),
        "best": dict(best),
    }
    write_state(path, state)


def load(path: Path) -> tuple[list[Snapshot], Progress, dict[str, Tensor]]:
    """Return what `save` wrote.

    Raises:
        CheckpointError: The file is damaged, or something else.
    """
    state = read_state(path)
    try:
        good = [Snapshot(**fields) for fields in state["good"]]
        return good, Progress(**state["progress"]), state["best"]
    except (KeyError, TypeError) as error:
        raise CheckpointError(
            f"{path} does not hold the state of a training ({error}); remove it to start anew"
        ) from error
