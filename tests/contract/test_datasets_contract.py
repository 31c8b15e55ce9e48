"""What every registered data set must keep to; those that need files must say how to get them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench.data import load_dataset, to_tensor
from bench.errors import InputError, Unsupported
from bench.registry import DATASETS
from bench.types import Dataset, Norm

FETCHED = [e.name for e in DATASETS.entries() if "download" in e.options]
EMBEDDED = [e.name for e in DATASETS.entries() if "ood" not in e.facts and e.name not in FETCHED]
MADE = [e.name for e in DATASETS.entries() if "ood" in e.facts and e.name not in FETCHED]
SPLITS = ("train", "validation", "test")
GROUPS = ("near", "far", "synthetic", "shifted")


def hashes(dataset: Dataset) -> set[bytes]:
    """Return the images as bytes, rounded so that equal pictures are equal in any format."""
    rounded = np.rint(to_tensor(dataset.images).numpy() * 4080).astype(np.int16)
    return {image.tobytes() for image in rounded}


def check(dataset: Dataset) -> None:
    """Check what the constructor of `Dataset` does not."""
    assert dataset.licence
    assert dataset.source
    assert dataset.images.flags.c_contiguous
    x = to_tensor(dataset.images[:50])
    assert float(x.min()) >= 0
    assert float(x.max()) <= 1
    assert float(x.std()) > 0


@pytest.mark.parametrize("name", FETCHED)
def test_missing_files_are_asked_for(name: str, tmp_path: Path) -> None:
    like = "digits" if "ood" in DATASETS.entry(name).facts else None
    with pytest.raises(Unsupported) as caught:
        load_dataset(name, root=tmp_path, like=like)
    for word in (name, str(tmp_path), "--data-root", "--download"):
        assert word in str(caught.value)


@pytest.mark.parametrize("name", EMBEDDED)
def test_in_distribution_set(name: str) -> None:
    splits = {split: load_dataset(name, split) for split in SPLITS}
    for split, dataset in splits.items():
        check(dataset)
        assert dataset.split == split
        assert dataset.sha256 == load_dataset(name, split).sha256
        assert dataset.labels is not None
        assert set(dataset.labels) == set(range(len(dataset.classes)))
        assert len(set(dataset.labels[:50])) > 1  # mixed, so that a limit keeps every class
    assert len({d.shape for d in splits.values()}) == 1
    for one, other in (("train", "test"), ("validation", "test"), ("train", "validation")):
        assert not hashes(splits[one]) & hashes(splits[other])
    with pytest.raises(InputError, match="split"):
        load_dataset(name, "training")


@pytest.mark.parametrize("name", EMBEDDED)
def test_what_suites_read_of_a_set(name: str) -> None:
    dataset = load_dataset(name)
    for norm, budgets in dataset.eps.items():
        assert Norm(norm)
        assert list(budgets) == sorted(set(budgets))
        assert budgets[0] > 0
    assert dataset.eps
    assert set(dataset.ood) <= set(GROUPS)
    names = [n for group in dataset.ood.values() for n in group]
    assert len(set(names)) == len(names)
    assert set(names) <= set(DATASETS)


@pytest.mark.parametrize("like", EMBEDDED)
@pytest.mark.parametrize("name", MADE)
def test_out_of_distribution_set(name: str, like: str) -> None:
    inside = load_dataset(like)
    dataset = load_dataset(name, like=like, n=60, seed=0)
    check(dataset)
    assert DATASETS.entry(name).facts["ood"] in GROUPS
    assert dataset.shape == inside.shape
    assert 0 < len(dataset) <= 60
    assert not hashes(dataset) & hashes(inside)
    again = load_dataset(name, like=like, n=60, seed=0)
    assert again.sha256 == dataset.sha256
    fewer = load_dataset(name, like=like, n=20, seed=0)
    assert np.array_equal(fewer.images, dataset.images[: len(fewer)])
    assert len(hashes(dataset)) > 0.9 * len(dataset)
    if dataset.clusters is not None:
        assert len(set(dataset.clusters)) > 1


@pytest.mark.parametrize("name", MADE)
def test_a_seed_makes_another_set(name: str) -> None:
    made = [load_dataset(name, like="digits", n=30, seed=seed) for seed in (0, 1)]
    assert made[0].sha256 != made[1].sha256
