"""Options that all trainers of this room share, so that a table compares objectives alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from bench.errors import InputError

MAY_BE_ZERO = frozenset(
    {
        "warmup_steps",
        "input_noise_std",
        "shift",
        "max_restarts",
        "sgld_noise",
        "restart_probability",
    }
)


@dataclass(frozen=True, kw_only=True)
class LoopOptions:
    """Options of the training loop; noise is in z = 2x - 1, the papers' scale.

    Attributes:
        epochs: Passes over the training images.
        batch_size: Images a step.
        learning_rate: Adam's; times 0.3 after 80 % and again after 90 % of the epochs, as JEM.
        warmup_steps: Steps over which the learning rate rises from 0.
        input_noise_std: Standard deviation of the noise on training images.
        shift: Largest random shift of a training image, in pixels.
        flip: Mirror half of the training images.
        max_restarts: Recoveries from divergence before giving up.
        restart_factor: Factor on learning rate and sampler step for each recovery.
        max_loss: A term of the loss beyond this, either way, is a divergence.
        max_accuracy_drop: So is validation accuracy this far below the best.

    Raises:
        InputError: A number is negative or not finite, or zero where that makes no sense.
    """

    epochs: int = 60
    batch_size: int = 64
    learning_rate: float = 1e-3
    warmup_steps: int = 100
    input_noise_std: float = 0.1
    shift: int = 0
    flip: bool = False
    max_restarts: int = 5
    restart_factor: float = 0.5
    max_loss: float = 100.0
    max_accuracy_drop: float = 0.2

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            if isinstance(value, bool):
                continue
            lowest = "at least 0" if option.name in MAY_BE_ZERO else "above 0"
            if not math.isfinite(value) or value < 0 or (value == 0 and lowest == "above 0"):
                raise InputError(f"{option.name}={value}: expected a finite number {lowest}")
