"""Scores against the same formulas in float64, and where each must be infinite or tied."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from bench import metrics
from bench.registry import SCORES
from bench.types import Array
from tests.scores.closed_form import (
    Counting,
    density_of,
    gradient_of,
    images,
    logits_of,
    softmax_of,
)

NET = Counting()
X = images()


def png_bits(x: Tensor) -> Array:
    """Return the length of each image's PNG file in bits."""
    bits = []
    for image in np.rint(x.numpy()[:, 0] * 255).astype(np.uint8):
        file = io.BytesIO()
        Image.fromarray(image).save(file, format="PNG")
        bits.append(8 * len(file.getvalue()))
    return np.array(bits)


def expected(name: str) -> Array:
    logits = logits_of(NET, X)
    p = softmax_of(logits)
    length = np.sqrt((gradient_of(NET, X) ** 2).sum(axis=1))
    values: dict[str, Array] = {
        "log-density": density_of(logits),
        "log-joint": logits.max(axis=1),
        "max-softmax": np.log(p.max(axis=1)),
        "entropy": (p * np.log(p)).sum(axis=1),
        "approx-mass": -length,
        "approx-mass-log": -np.log(length),
        "complexity-corrected": density_of(logits) + np.log(2) * png_bits(X),
    }
    return values[name]


@pytest.mark.parametrize(
    "name",
    [
        *("log-density", "log-joint", "max-softmax", "entropy"),
        *("approx-mass", "approx-mass-log", "complexity-corrected"),
    ],
)
def test_as_by_hand(name: str) -> None:
    values = SCORES[name](NET, X).numpy()
    assert values == pytest.approx(expected(name), abs=2e-5)
    assert len(np.unique(values)) == len(X)


class Flat(nn.Module):
    """Constant where the first pixel is 0: its gradient is zero there."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, 0, 0, :1].square() * torch.tensor([1.0, -1.0])


def test_no_slope_is_the_most_typical_and_is_ranked() -> None:
    x = torch.zeros(3, 1, 4, 4)
    x[2, 0, 0, 0] = 0.5
    log_form, plain = (SCORES[name](Flat(), x) for name in ("approx-mass-log", "approx-mass"))
    assert torch.isposinf(log_form[:2]).all()
    assert torch.isfinite(log_form[2])
    assert (plain[:2] == 0).all()
    aurocs = [metrics.auroc(s[:2].numpy(), s[2:].numpy()) for s in (log_form, plain)]
    assert aurocs == [1.0, 1.0]


def test_both_forms_of_approximate_mass_rank_alike() -> None:
    plain, log_form = (SCORES[name](NET, X) for name in ("approx-mass", "approx-mass-log"))
    assert torch.equal(plain.argsort(), log_form.argsort())


class OwnDensity(Counting):
    """A classifier whose density is not the logsumexp of its logits."""

    def log_density(self, x: Tensor) -> Tensor:
        return -x.square().sum(dim=(1, 2, 3))


def test_the_joint_of_a_model_with_its_own_density() -> None:
    net = OwnDensity()
    density = -np.square(X.double().numpy()).sum(axis=(1, 2, 3))
    by_hand = density + np.log(softmax_of(logits_of(net, X)).max(axis=1))
    assert SCORES["log-joint"](net, X).numpy() == pytest.approx(by_hand, abs=2e-5)


def test_the_correction_takes_off_what_smooth_images_gain() -> None:
    """A density that likes what is smooth: constant images are above noise without correction."""
    smooth, noisy = torch.full((8, 1, 16, 16), 0.5), torch.rand(8, 1, 16, 16)

    class LikesSmooth(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            rough = x.diff(dim=3).abs().sum(dim=(1, 2, 3))
            return torch.stack([-rough, -rough], dim=1)

    plain, corrected = (
        [SCORES[name](LikesSmooth(), x).numpy() for x in (noisy, smooth)]
        for name in ("log-density", "complexity-corrected")
    )
    assert metrics.auroc(*plain) == 0.0
    assert metrics.auroc(*corrected) == 1.0


def test_entropy_of_certainty_and_of_none() -> None:
    class Given(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.tensor([[0.0, 0.0, 0.0, 0.0], [900.0, 0.0, 0.0, 0.0]])

    even, sure = SCORES["entropy"](Given(), torch.zeros(2, 1, 4, 4)).tolist()
    assert even == pytest.approx(-np.log(4), abs=1e-15)
    assert sure == 0.0
