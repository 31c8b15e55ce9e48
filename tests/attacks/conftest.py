"""A small net trained on scikit-learn's digits, shared by the attack tests."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn


def small_net(width: int = 16) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, stride=2, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(width * 16, 10),
    )


@pytest.fixture(scope="session")
def digits() -> tuple[Tensor, Tensor]:
    """All digits in a fixed shuffled order: (1797, 1, 8, 8) in [0, 1], and labels."""
    bunch = load_digits()
    order = np.random.default_rng(0).permutation(len(bunch.target))
    images = torch.from_numpy(bunch.images[order] / 16).float()[:, None]
    return images, torch.from_numpy(bunch.target[order]).long()


@pytest.fixture(scope="session")
def trained_net(digits: tuple[Tensor, Tensor]) -> nn.Module:
    """A net of some 7,000 weights, at 97 % or so on the last 797 digits."""
    x, y = digits[0][:1000], digits[1][:1000]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = small_net()
        optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
        for _ in range(8):
            for rows in torch.split(torch.randperm(len(x)), 100):
                optimizer.zero_grad()
                nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        optimizer.zero_grad()
    return net.eval()


@pytest.fixture
def test_digits(digits: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return digits[0][1000:1064], digits[1][1000:1064]
