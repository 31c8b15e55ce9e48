"""`load_dataset`: names, options, limits, and the tensor a model gets."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from bench.data import load_dataset, take, to_tensor
from bench.errors import InputError, UnknownName, Unsupported
from bench.types import Dataset


def user_set(split: str) -> Dataset:
    images = np.random.default_rng(0).random((9, 1, 8, 8), np.float32)
    return Dataset(name="mine", split=split, images=images)


def test_unknown_names_get_suggestions() -> None:
    with pytest.raises(UnknownName, match="did you mean 'digits'"):
        load_dataset("digit")
    with pytest.raises(UnknownName, match="did you mean 'digits'"):
        load_dataset("uniform", like="digitz")
    with pytest.raises(UnknownName, match="option of data set"):
        load_dataset("digits", colour=True)


def test_options_in_the_name_are_arguments() -> None:
    by_name = load_dataset("uniform?like=digits&n=7&seed=3")
    by_argument = load_dataset("uniform", like="digits", n=7, seed=3)
    assert by_name.sha256 == by_argument.sha256
    assert len(by_name) == 7


def test_limit_keeps_the_first_images() -> None:
    whole, part = load_dataset("digits"), load_dataset("digits", limit=11)
    assert whole.labels is not None
    assert part.labels is not None
    assert np.array_equal(part.images, whole.images[:11])
    assert np.array_equal(part.labels, whole.labels[:11])
    assert load_dataset("digits", limit=501).sha256 == whole.sha256
    ood = load_dataset("photo-patches", like="digits", n=20, limit=8)
    assert ood.clusters is not None
    assert len(ood) == len(ood.clusters) == 8
    assert take(whole, 600) is whole


@pytest.mark.parametrize("wrong", [0, -1, 2.0, True, "3"])
def test_counts_must_be_whole(wrong: object) -> None:
    with pytest.raises(InputError, match="whole number"):
        load_dataset("digits", limit=wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="whole number"):
        load_dataset("uniform", like="digits", n=wrong)  # type: ignore[arg-type]


def test_made_sets_need_like() -> None:
    with pytest.raises(InputError, match="like='digits'"):
        load_dataset("constant")


def test_a_set_of_the_users_own_as_like() -> None:
    validation = user_set("validation")
    assert len(load_dataset("inverted", like=validation)) == 9
    test = user_set("test")
    assert load_dataset("constant", like=test, n=3).shape == test.shape
    with pytest.raises(InputError, match="pass that split"):
        load_dataset("inverted", like=test)


def test_missing_files_say_how_to_get_them(tmp_path: object) -> None:
    with pytest.raises(Unsupported, match=r"--data-root.*--download"):
        load_dataset("cifar10", root=str(tmp_path))


def test_to_tensor_scales_bytes_and_copies() -> None:
    images = np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16)
    tensor = to_tensor(images, "cpu")
    assert tensor.dtype == torch.float32
    assert np.array_equal(tensor.numpy(), images / np.float32(255))
    floats = load_dataset("digits", limit=2).images
    copy = to_tensor(floats)
    assert np.array_equal(copy.numpy(), floats)
    copy.zero_()
    assert floats.max() == 1
    with pytest.raises(InputError, match="float64"):
        to_tensor(floats.astype(np.float64))


def test_import_does_not_bring_torch() -> None:
    code = "import sys, bench.data; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
