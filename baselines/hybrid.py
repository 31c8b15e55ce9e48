"""The model that every hybrid trainer trains: a classifier whose logits are also an energy.

JEM (Grathwohl et al. 2019, arXiv 1912.03263), section 3: p(y|x) is the softmax of the logits
f(x), and log p(x) = LSE_y f(x)[y] - log Z. The classifier alone defines both; what differs
between the baselines is the objective that trained it.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor, nn

from bench.errors import InputError, Unsupported
from bench.registry import NETWORKS
from bench.types import Dataset
from bench.weights import load_into, read_weights


class EnergyClassifier(nn.Module):
    """A network for z = 2x - 1 behind images x in [0, 1].

    Args:
        network: Maps ``(B, C, H, W)`` in [-1, 1] to logits ``(B, K)``.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        """Return logits ``(B, K)`` of images ``x``, float32 NCHW in [0, 1]."""
        logits: Tensor = self.network(2.0 * x - 1.0)
        return logits

    def features(self, x: Tensor) -> Tensor:
        """Return the features ``(B, D)`` under the last linear layer.

        Raises:
            Unsupported: The network has no ``features(z)``.
        """
        features = getattr(self.network, "features", None)
        if features is None:
            raise Unsupported(f"{type(self.network).__name__} has no features(z)")
        values: Tensor = features(2.0 * x - 1.0)
        return values


def build(dataset: Dataset, network: str, checkpoint: Path | None, trust: bool) -> nn.Module:
    """Return an `EnergyClassifier` for the images and classes of ``dataset``, in eval mode.

    Args:
        dataset: Says how large the images are and how many classes there are.
        network: A registered network.
        checkpoint: A file of weights; ``None`` leaves the fresh ones.
        trust: Whether a file that runs code may be loaded.

    Raises:
        InputError: The data set names no classes.
        CheckpointError: The file cannot be used, or belongs to another network.
    """
    if not dataset.classes:
        raise InputError(
            f"data set '{dataset.name}' names no classes; a classifier needs to know how many"
        )
    model = EnergyClassifier(NETWORKS[network](dataset.shape, len(dataset.classes)))
    if checkpoint is not None:
        state, _ = read_weights(checkpoint, trust)
        load_into(model, state, checkpoint)
    return model.eval()
