"""Out-of-distribution sets: what they are made of, and that they are always the same."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from bench.data import load_dataset
from bench.errors import InputError, Unsupported
from bench.registry import DATASETS
from bench.types import Array, Dataset

DIGITS = (
    "interp",
    "letters",
    "constant",
    "uniform",
    "gaussian",
    "inverted",
    "pixel-permuted",
    "photo-patches",
    "rot90",
)
# Sets that are exact in every NumPy; fonts, photographs and the normal quantile may differ in the
# last bit between versions of FreeType, Pillow and SciPy.
SHA256 = {
    "interp": "2db4a8487a0d621d420b5ee92f6c0ba59d2ced7e38d6ec4030838135af351952",
    "constant": "2baa439d3dddded9b735bbf8b3a374eae5c17d0d4e7301b14cdaf9a322d725af",
    "uniform": "f92039d47ee80c8c5b1783ed059c74a1c5cea24d3d22ad1aad9e1408f2e89819",
    "inverted": "b58965d0b27f0e6fef514f34d2bd4257dc55dd2277a3bb8420a26064a325a6b8",
    "pixel-permuted": "24bea3758a670a8606b065e2b5bbe3986580f6e2892f104d933ea41ab649696a",
    "rot90": "b26a87bc0daee316cca24eb94e9b3d43a3fb8099e9bbe293346582df262818cc",
}


@cache
def digits(split: str) -> Dataset:
    return load_dataset("digits", split)


def like(shape: tuple[int, int, int], count: int = 12, labelled: bool = True) -> Dataset:
    """Return a made-up validation split, uint8, of three classes."""
    images = np.random.default_rng(0).integers(0, 256, (count, *shape), dtype=np.uint8)
    labels = np.arange(count, dtype=np.int64) % 3 if labelled else None
    return Dataset(name="made-up", split="validation", images=images, labels=labels)


def rows(images: Array) -> set[bytes]:
    return {image.tobytes() for image in images}


@pytest.mark.parametrize("name", SHA256)
def test_set_has_the_committed_digest(name: str) -> None:
    assert load_dataset(name, like=digits("validation"), n=50, seed=0).sha256 == SHA256[name]


@pytest.mark.parametrize("name", DIGITS)
class TestEveryMadeSet:
    def test_first_images_do_not_depend_on_n(self, name: str) -> None:
        few = load_dataset(name, like=digits("validation"), n=7)
        many = load_dataset(name, like=digits("validation"), n=150)
        assert len(many) == 150
        assert np.array_equal(few.images, many.images[:7])

    def test_seed_decides(self, name: str) -> None:
        one, again, other = (
            load_dataset(name, like=digits("validation"), n=30, seed=s) for s in (1, 1, 2)
        )
        assert one.sha256 == again.sha256
        assert one.sha256 != other.sha256

    def test_says_what_it_is(self, name: str) -> None:
        data = load_dataset(name, like=digits("validation"), n=5)
        assert (data.name, data.split, data.labels) == (name, "test", None)
        assert all((data.source, data.licence))
        assert DATASETS.entry(name).facts["ood"] in ("near", "far", "synthetic", "shifted")

    @pytest.mark.parametrize("shape", [(1, 11, 11), (3, 16, 16)])
    def test_fits_any_shape(self, name: str, shape: tuple[int, int, int]) -> None:
        data = load_dataset(name, like=like(shape), n=4)
        assert data.images.shape == (4, *shape)
        assert data.images.dtype == np.float32

    def test_no_training_or_validation_split(self, name: str) -> None:
        with pytest.raises(Unsupported, match="test split only"):
            load_dataset(name, "train", like=digits("validation"))

    def test_never_holds_a_test_image(self, name: str) -> None:
        found = load_dataset(name, like="digits", n=300).images
        assert not rows(found) & rows(digits("test").images)


def test_made_from_validation_whatever_split_is_given() -> None:
    for name in ("interp", "inverted", "letters"):
        expected = load_dataset(name, like=digits("validation"), n=20).sha256
        assert load_dataset(name, like="digits", n=20).sha256 == expected
        assert load_dataset(name, like=digits("test"), n=20).sha256 == expected
        assert load_dataset(name, like=digits("train"), n=20).sha256 == expected


def test_sets_of_one_seed_share_no_draws() -> None:
    uniform = load_dataset("uniform", like="digits", n=5).images
    constant = load_dataset("constant", like="digits", n=320).images[:, 0, 0, 0]
    assert not set(uniform.ravel().tolist()) & set(constant.tolist())


def test_interp_is_the_mean_of_two_classes() -> None:
    source = digits("validation")
    assert source.labels is not None
    data = load_dataset("interp", like=source, n=500)
    sums = {}
    for i in range(len(source)):
        for j in range(i):
            mean = np.rint((source.images[i] + source.images[j]) / 2 * 16) / 16
            sums[mean.astype(np.float32).tobytes()] = (i, j)
    found = [sums[image.tobytes()] for image in data.images]  # KeyError: no such pair
    assert all(source.labels[i] != source.labels[j] for i, j in found)
    assert len(set(found)) == 500
    check_clusters(data, found)


def test_interp_keeps_to_the_grey_levels_of_its_sources() -> None:
    levels = np.arange(17, dtype=np.float32) / 16
    assert set(np.unique(load_dataset("interp", like="digits").images)) <= set(levels)
    fine = like((1, 4, 4), 10)
    assert fine.images.dtype == np.uint8
    pixels = load_dataset("interp", like=fine).images * 255
    assert np.abs(pixels - np.rint(pixels)).max() < 1e-4


def check_clusters(data: Dataset, pairs: list[tuple[int, int]]) -> None:
    """Two means have one number exactly if a chain of shared sources joins them."""
    group: dict[int, int] = {}
    for i, j in pairs:
        a, b = group.setdefault(i, i), group.setdefault(j, j)
        group = {k: a if g == b else g for k, g in group.items()}
    assert data.clusters is not None
    by_hand = [group[i] for i, _ in pairs]
    assert len(set(zip(by_hand, data.clusters.tolist(), strict=True))) == len(set(by_hand))
    assert len(set(data.clusters.tolist())) == len(set(by_hand))


def test_interp_uses_each_image_once_while_it_can() -> None:
    data = load_dataset("interp", like="digits", n=110)
    assert data.clusters is not None
    assert len(set(data.clusters.tolist())) == 110


def test_interp_of_one_class_has_no_pairs() -> None:
    alike = like((1, 4, 4))
    alike = replace(alike, labels=np.zeros(len(alike), np.int64))
    with pytest.raises(InputError, match="'interp' cannot be made"):
        load_dataset("interp", like=alike)


def test_interp_without_labels_mixes_any_two() -> None:
    assert len(load_dataset("interp", like=like((1, 4, 4), 10, labelled=False))) == 20


def test_constant_is_one_colour_an_image() -> None:
    images = load_dataset("constant", like=like((3, 5, 5)), n=400).images
    assert np.ptp(images, axis=(2, 3)).max() == 0
    colours = images[:, :, 0, 0]
    assert abs(np.corrcoef(colours.T)[np.triu_indices(3, 1)]).max() < 0.2
    assert np.allclose(colours.mean(0), 0.5, atol=0.06)


def test_noise_has_the_moments_it_claims() -> None:
    uniform = load_dataset("uniform", like="digits", n=400).images
    assert uniform.mean() == pytest.approx(0.5, abs=0.01)
    assert uniform.std() == pytest.approx(12**-0.5, abs=0.01)
    gaussian = load_dataset("gaussian", like="digits", n=400).images
    assert gaussian.mean() == pytest.approx(0.5, abs=0.01)
    # Clipping at two standard deviations on both sides leaves .9589 of the spread:
    # E[min(z^2, 4)] = 1 - 2 * 2 * phi(2) - 2 * Q(2) + 8 * Q(2) = 0.9205.
    assert gaussian.std() == pytest.approx(0.25 * 0.9205**0.5, abs=0.005)
    assert (gaussian == 0).mean() == pytest.approx(0.0228, abs=0.005)
    assert abs(np.corrcoef(gaussian.reshape(400, -1)[:, :2].T)[0, 1]) < 0.2


def test_transformed_images_go_back_to_their_sources() -> None:
    sources = rows(digits("validation").images)
    inverted = load_dataset("inverted", like="digits").images
    assert rows(1 - inverted) == sources
    turned = load_dataset("rot90", like="digits").images
    assert rows(np.ascontiguousarray(np.rot90(turned, -1, axes=(2, 3)))) == sources
    permuted = load_dataset("pixel-permuted", like="digits").images
    histograms = rows(np.sort(digits("validation").images.reshape(-1, 64), axis=1))
    assert rows(np.sort(permuted.reshape(-1, 64), axis=1)) == histograms
    assert not rows(permuted) & sources


def test_permuted_pixels_keep_their_colour() -> None:
    source = like((3, 8, 8), count=1)
    (permuted,) = load_dataset("pixel-permuted", like=source).images
    before = {tuple(p) for p in (source.images[0].reshape(3, -1).T / np.float32(255)).tolist()}
    assert {tuple(p) for p in permuted.reshape(3, -1).T.tolist()} == before


def test_each_image_has_a_permutation_of_its_own() -> None:
    ramp = np.tile(np.arange(64, dtype=np.uint8).reshape(1, 1, 8, 8), (5, 1, 1, 1))
    source = Dataset(name="ramp", split="validation", images=ramp)
    assert len(rows(load_dataset("pixel-permuted", like=source).images)) == 5


def test_fewer_images_than_asked_for_are_noted() -> None:
    for name in ("inverted", "pixel-permuted", "rot90"):
        data = load_dataset(name, like="digits", n=500)
        assert len(data) == 297
        assert "297" in data.note


def test_rot90_wants_square_images() -> None:
    with pytest.raises(Unsupported, match="4x6"):
        load_dataset("rot90", like=like((1, 4, 6)))


def test_photo_patches_are_clustered_by_cell() -> None:
    data = load_dataset("photo-patches", like=like((3, 8, 8)), n=400)
    assert data.clusters is not None
    assert 40 <= len(set(data.clusters.tolist())) <= 48
    assert data.images.std(axis=(2, 3)).mean() > 0.02  # photographs, not flat colours
    within = [data.images[data.clusters == c].mean(axis=(1, 2, 3)) for c in set(data.clusters)]
    spread = data.images.mean(axis=(1, 2, 3)).std()
    assert np.mean([w.std() for w in within]) < 0.6 * spread  # crops of a cell are alike


def test_letters_have_the_ink_and_the_box_of_digits() -> None:
    data, reference = load_dataset("letters", like="digits", n=500), digits("validation")
    assert data.images.mean() == pytest.approx(reference.images.mean(), abs=0.01)
    assert data.images.std() == pytest.approx(reference.images.std(), abs=0.03)
    column = [(d.images.sum(axis=(1, 2)) > 0).mean(axis=0) for d in (data, reference)]
    assert np.abs(column[0] - column[1]).max() < 0.12


def test_letters_look_like_their_letter() -> None:
    data = load_dataset("letters", like="digits", n=500)
    assert data.clusters is not None
    mean = {c: data.images[data.clusters == c].mean(axis=0)[0] for c in set(data.clusters)}
    letters = "AEFHKLMNRVWXfhkmnrt"
    assert len(mean) == len(letters)
    ell, aitch = mean[letters.index("L")], mean[letters.index("H")]
    assert ell[-1, 2:6].mean() > 0.5 > 0.2 > ell[:5, 4:7].mean()  # a foot and an empty corner
    assert aitch[3:5, 3:5].mean() > aitch[[0, -1], 3:5].mean() + 0.2  # a bar between two posts
    left, right = aitch[:, :4].mean(), aitch[:, 4:].mean()
    assert left == pytest.approx(right, abs=0.12)


def test_letters_have_no_ink_where_there_is_none_to_borrow() -> None:
    black = Dataset(name="b", split="validation", images=np.zeros((3, 1, 8, 8), np.uint8))
    assert load_dataset("letters", like=black, n=3).images.max() == 0
