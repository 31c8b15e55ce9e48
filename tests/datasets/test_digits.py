"""The embedded data set: its split is fixed by its pixels."""

from __future__ import annotations

import hashlib
import sys

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.utils import Bunch

from bench.data import load_dataset
from bench.errors import InputError
from bench.registry import DATASETS

SHA256 = {
    "test": "e959f5698086055e0e7ea920e5323dc75de41ebbceb6b8459648e18ee77aa2ca",
    "validation": "55b36e24612279e063a7ae48309bca14622d0f3dbd25754c444c700a0bf646ba",
    "train": "3dfb720572b4beeaf710a9d647b54ebb7d4a5a596331bd7c589a52ca81d63d72",
}


@pytest.mark.parametrize("split", SHA256)
def test_split_has_the_committed_digest(split: str) -> None:
    assert load_dataset("digits", split).sha256 == SHA256[split]


def test_splits_are_the_hash_order_of_the_source() -> None:
    counts = load_digits().images.astype(np.uint8)
    ordered = sorted(hashlib.sha256(image.tobytes()).hexdigest() for image in counts)
    found = [
        hashlib.sha256((image * 16).astype(np.uint8).tobytes()).hexdigest()
        for split in ("test", "validation", "train")
        for image in load_dataset("digits", split).images
    ]
    assert found == ordered
    assert len(set(found)) == len(counts) == 1797  # so no image is in two splits


def test_every_image_keeps_its_label() -> None:
    bunch = load_digits()
    label = {
        (image / 16).astype(np.float32).tobytes(): t
        for image, t in zip(bunch.images, bunch.target, strict=True)
    }
    for split, size in (("test", 500), ("validation", 297), ("train", 1000)):
        data = load_dataset("digits", split)
        assert data.labels is not None
        assert len(data) == size
        assert [label[image[0].tobytes()] for image in data.images] == data.labels.tolist()


@pytest.fixture
def asks_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is not where it usually lies, so that scikit-learn's own loader is asked."""
    module = sys.modules[DATASETS["digits"].__module__]
    monkeypatch.setattr(module, "find_spec", lambda name: None)


@pytest.mark.usefixtures("asks_scikit_learn")
@pytest.mark.parametrize("split", SHA256)
@pytest.mark.parametrize("fault", ["pixels", "labels"])
def test_other_contents_are_refused(
    fault: str, split: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bunch = load_digits()
    images, target = bunch.images, bunch.target
    if fault == "pixels":
        images = images.copy()
        images[:, 3, 3] = (images[:, 3, 3] + 1) % 17
    else:
        target = (target + 1) % 10
    monkeypatch.setattr("sklearn.datasets.load_digits", lambda: Bunch(images=images, target=target))
    with pytest.raises(InputError, match="install scikit-learn"):
        load_dataset("digits", split)


@pytest.mark.usefixtures("asks_scikit_learn")
def test_shuffled_source_gives_the_same_split(monkeypatch: pytest.MonkeyPatch) -> None:
    bunch = load_digits()
    order = np.random.default_rng(3).permutation(len(bunch.images))
    other = Bunch(images=bunch.images[order], target=bunch.target[order])
    monkeypatch.setattr("sklearn.datasets.load_digits", lambda: other)
    assert load_dataset("digits").sha256 == SHA256["test"]


def test_suites_find_what_they_need() -> None:
    data = load_dataset("digits")
    assert data.classes == tuple("0123456789")
    for budgets in data.eps.values():
        assert list(budgets) == sorted(budgets)
        assert min(budgets) > 0
    assert all((data.licence, data.source, data.note))
    for names in data.ood.values():
        for name in names:
            assert load_dataset(name, like="digits", n=2).shape == data.shape


def test_unknown_split_is_refused() -> None:
    with pytest.raises(InputError, match=r"'tset'.*validation"):
        load_dataset("digits", "tset")
