"""Scores without a model: what they compute, and which sets they separate from digits."""

from __future__ import annotations

import io
from functools import cache

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import roc_auc_score

from bench.data import load_dataset, to_tensor
from bench.registry import SCORES

TRIVIAL = ("border-ink", "mean-intensity", "total-variation", "png-size")


@cache
def auroc(score: str, ood: str) -> float:
    """Return scikit-learn's AUROC, digits test (positive) against a set of 500."""
    sides = load_dataset("digits"), load_dataset(ood, like="digits", n=500, seed=0)
    scores = [SCORES[score](None, to_tensor(d.images)).numpy() for d in sides]
    labels = np.repeat([1, 0], [len(s) for s in scores])
    return float(roc_auc_score(labels, np.concatenate(scores)))


@pytest.mark.parametrize("name", TRIVIAL)
def test_is_marked_and_per_image(name: str) -> None:
    assert SCORES.entry(name).facts["trivial"] is True
    x = torch.rand(6, 3, 9, 9, generator=torch.Generator().manual_seed(0))
    scores = SCORES[name](None, x)
    assert scores.shape == (6,)
    assert torch.equal(scores[2:4], SCORES[name](None, x[2:4]))


def test_values_worked_by_hand() -> None:
    x = torch.tensor([[[[1.0, 0.5, 0.25], [0.0, 0.5, 0.75]]]])
    assert SCORES["border-ink"](None, x).item() == -(1.0 + 0.0 + 0.25 + 0.75)
    assert SCORES["mean-intensity"](None, x).item() == -0.5
    down, across = 1.0 + 0.0 + 0.5, 0.5 + 0.25 + 0.5 + 0.25
    assert SCORES["total-variation"](None, x).item() == -(down + across)


@pytest.mark.parametrize("channels", [1, 3])
def test_png_size_is_that_of_the_file(channels: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (2, channels, 12, 10), dtype=np.uint8)
    scores = SCORES["png-size"](None, to_tensor(pixels))
    for image, score in zip(pixels, scores.tolist(), strict=True):
        file = io.BytesIO()
        Image.fromarray(image.transpose(1, 2, 0).squeeze()).save(file, format="PNG")
        assert score == -len(file.getvalue())


def test_png_size_takes_any_number_of_channels() -> None:
    assert SCORES["png-size"](None, torch.rand(2, 4, 5, 5)).max() < 0


def test_border_ink_separates_what_puts_ink_on_the_border() -> None:
    for name in ("rot90", "inverted", "pixel-permuted", "uniform", "gaussian", "photo-patches"):
        assert auroc("border-ink", name) >= 0.999
    assert auroc("border-ink", "constant") == pytest.approx(0.996, abs=0.001)


def test_near_sets_have_the_border_and_the_ink_of_digits() -> None:
    for name in ("interp", "letters"):
        assert 0.45 < auroc("border-ink", name) < 0.6
        assert 0.45 < auroc("mean-intensity", name) < 0.55


def test_each_trivial_score_separates_something() -> None:
    assert auroc("mean-intensity", "inverted") > 0.999
    assert auroc("total-variation", "uniform") > 0.98
    assert auroc("png-size", "uniform") > 0.999
    assert auroc("total-variation", "constant") < 0.001  # the direction was wrong: it shows
