"""Any `nn.Module` as a model of the benchmark, and the checks of a model's answers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bench.errors import InputError, ModelError
from bench.noise import Noise
from bench.refinement import draw_logits


class Wrapped(nn.Module):
    """A module behind the normalisation it was trained with: module((x - mean) / std)."""

    mean: Tensor
    std: Tensor

    def __init__(self, module: nn.Module, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.module = module
        self.register_buffer("mean", mean.view(-1, 1, 1))
        self.register_buffer("std", std.view(-1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits ``(B, K)`` of images in [0, 1]."""
        logits: Tensor = self.module((x - self.mean) / self.std)
        return logits


def wrap(
    module: nn.Module,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
) -> nn.Module:
    """Return ``module`` as a model that takes float32 images in [0, 1].

    Args:
        module: Returns logits ``(B, K)`` for normalised images.
        mean: What to subtract, a number or one a channel.
        std: What to divide by, a number or one a channel.

    Raises:
        InputError: ``std`` is not positive, or the two differ in length.
    """
    if mean is None and std is None:
        return module
    means = torch.as_tensor(0.0 if mean is None else mean, dtype=torch.float32).reshape(-1)
    stds = torch.as_tensor(1.0 if std is None else std, dtype=torch.float32).reshape(-1)
    if not bool((stds > 0).all()):
        raise InputError(f"std = {stds.tolist()}; expected positive numbers")
    if len(means) != len(stds) and min(len(means), len(stds)) != 1:
        raise InputError(
            f"mean has {len(means)} numbers and std {len(stds)}; expected one, or one a channel"
        )
    return Wrapped(module, means, stds)


def checked_logits(
    model: nn.Module, x: Tensor, noise: Noise, num_classes: int | None = None
) -> Tensor:
    """Return one draw of the logits ``(B, K)``, float32, or say what is wrong with them.

    Args:
        model: The model.
        x: ``(B, C, H, W)`` in [0, 1].
        noise: Bound to the images; its ids name the images in messages.
        num_classes: How many classes the data set has, where it has any.

    Raises:
        ModelError: The model raised, or returned the wrong shape, NaN or infinity, or
            probabilities.
    """
    try:
        logits = draw_logits(model, x, noise)
    except Exception as error:  # whatever a model raises is the model's failure, not ours
        shape = "x".join(str(n) for n in x.shape[1:])
        raise ModelError(
            f"the model raised {type(error).__name__} on {len(x)} images of {shape}, numbers "
            f"{_numbers(noise.image_ids)}: {_first_line(error)}"
        ) from error
    check_logits(logits, len(x), noise.image_ids, num_classes)
    return logits.float()


def check_logits(
    logits: object, batch: int, image_ids: Tensor, num_classes: int | None = None
) -> None:
    """Raise `ModelError` unless these are finite logits ``(batch, num_classes)``."""
    check_form(logits, batch, num_classes)
    assert isinstance(logits, Tensor)
    finite = torch.isfinite(logits).all(dim=1)
    if not bool(finite.all()):
        bad = image_ids[~finite]
        raise ModelError(
            f"the model returned NaN or infinity for {len(bad)} of {batch} images, numbers "
            f"{_numbers(bad)}; expected finite logits: check its arithmetic on these images"
        )


def check_form(logits: object, batch: int, num_classes: int | None = None) -> None:
    """Raise `ModelError` unless these look like logits ``(batch, num_classes)``, finite or not."""
    if not isinstance(logits, Tensor):
        raise ModelError(
            f"the model returned {type(logits).__name__}; expected a tensor of logits (batch, "
            "classes): return the logits alone"
        )
    if not logits.is_floating_point():
        raise ModelError(
            f"the model returned {logits.dtype}; expected logits in floating point: an answer that "
            "is rounded, or a class alone, has no gradient"
        )
    if logits.ndim != 2 or len(logits) != batch:
        raise ModelError(
            f"the model returned shape {tuple(logits.shape)} for {batch} images; expected logits "
            f"({batch}, {num_classes or 'classes'})"
        )
    if num_classes is not None and logits.shape[1] != num_classes:
        raise ModelError(
            f"the model has {logits.shape[1]} classes, the data set {num_classes}; use a model "
            "trained on this data set, or --dataset with the one it was trained on (an npz file "
            "can name its classes with the key 'classes')"
        )
    if batch > 1 and logits.shape[1] > 1 and _look_like_probabilities(logits):
        raise ModelError(
            "the model returned probabilities (rows are in [0, 1] and sum to 1); expected logits: "
            "remove its softmax, or return their logarithm"
        )


def _look_like_probabilities(logits: Tensor) -> bool:
    logits = logits.detach().float()
    sums = logits.sum(dim=1)
    return bool((logits >= 0).all() and torch.allclose(sums, torch.ones_like(sums), atol=1e-3))


def _numbers(ids: Tensor) -> str:
    listed = ids.tolist()
    return ", ".join(map(str, listed[:5])) + (f" and {len(listed) - 5} more" if listed[5:] else "")


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else "(no message)"
