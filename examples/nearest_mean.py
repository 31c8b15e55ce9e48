"""A model in one file: the nearest class mean, which is also a mixture of Gaussians.

With one mean a class and one variance for all, log p(x, y) = -||x - mean_y||^2 / (2 var) + const.
These are the logits; their logsumexp is the log-density of the mixture, as in JEM.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import bench
from bench.data import to_tensor
from bench.types import Dataset


class NearestMean(nn.Module):
    """Logits are minus the squared distances to the class means, over twice the variance."""

    means: Tensor  # (K, C*H*W)

    def __init__(self, means: Tensor, variance: float) -> None:
        super().__init__()
        self.register_buffer("means", means)
        self.variance = variance

    def forward(self, x: Tensor) -> Tensor:
        """Return logits ``(B, K)`` of float32 images ``(B, C, H, W)`` in [0, 1]."""
        differences = x.flatten(1)[:, None] - self.means
        return -differences.square().sum(dim=2) / (2 * self.variance)


def make(dataset: Dataset, variance: float = 1.0) -> nn.Module:
    """Return the model, fitted to the training split of ``dataset``.

    Args:
        dataset: The images that the run is about; what ``--dataset`` names.
        variance: Of each pixel, in units of the [0, 1] range; an option of the model.
    """
    train = bench.load_dataset(dataset.name, split="train")
    x, y = to_tensor(train.images).flatten(1), torch.as_tensor(train.labels)
    means = [x[y == k].mean(dim=0) for k in range(len(dataset.classes))]
    return NearestMean(torch.stack(means), variance)
