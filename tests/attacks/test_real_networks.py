"""The loader of real networks gives what their sources say of them."""

from __future__ import annotations

import pytest
import torch

from tests.attacks.real import cifar, network


# Share right of the first 300 test images, as measured by other code (data/README.md).
@pytest.mark.parametrize(
    ("name", "percent"), [("resnet2b", 69.3), ("resnet20", 91.3), ("cnn-a-mix", 76.3)]
)
def test_clean_accuracy_is_the_published_one(name: str, percent: float) -> None:
    x, y = cifar(300)
    with torch.no_grad():
        right = (network(name)(x).argmax(dim=1) == y).double().mean()
    assert float(right) == pytest.approx(percent / 100, abs=0.0005)
