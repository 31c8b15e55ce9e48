"""The words of training: what a trainer is given, what it tells, and what it returns.

A trainer is a registered frozen dataclass of options; called with data and a `TrainContext`, it
trains ``context.model`` and returns it as `Trained`. ``bench train`` looks it up by the fact
``trainer`` of the model's registration, and writes the weights and their card.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from bench.types import Dataset


@dataclass(frozen=True)
class Event:
    """Something a user who watches a training wants to know.

    Attributes:
        kind: ``epoch``, ``restart`` or ``resume``.
        epoch: Epochs done.
        epochs: Epochs asked for.
        values: Numbers of this epoch, e.g. ``loss`` and ``validation_accuracy``.
        message: What happened, for all but ``epoch``.
    """

    kind: str
    epoch: int
    epochs: int
    values: Mapping[str, float] = field(default_factory=dict)
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class TrainContext:
    """What surrounds a training.

    Attributes:
        model: The model to train, on ``device``, with fresh weights drawn from ``seed``.
        seed: The source of every random draw.
        device: Where to train.
        out: A folder of this training alone, for what it needs to resume; it exists.
        events: Called with what happens.
        resume: Go on from what is in ``out``, if anything is; else start anew.
    """

    model: nn.Module
    seed: int
    device: torch.device
    out: Path
    events: Callable[[Event], None] = lambda event: None
    resume: bool = True


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A trained model.

    Attributes:
        model: The model with the weights to keep, in eval mode.
        epochs: Epochs done.
        best_epoch: The epoch whose weights were kept, from 1.
        restarts: One entry a recovery from divergence, as plain data: epoch, reason, what changed.
        seconds: Time spent, over all resumptions.
    """

    model: nn.Module
    epochs: int
    best_epoch: int
    restarts: tuple[Mapping[str, Any], ...] = ()
    seconds: float = 0.0


class Trainer(Protocol):
    """A frozen dataclass of options that trains ``context.model``."""

    def __call__(self, train: Dataset, validation: Dataset, context: TrainContext) -> Trained:
        """Train; raise `bench.errors.Diverged` when the training cannot be kept finite."""
        ...
