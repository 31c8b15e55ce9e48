"""Sets that torchvision reads, on tiny files of the real formats; checksums are replaced."""

from __future__ import annotations

import gzip
import hashlib
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
from torchvision import datasets as tv

from bench.data import load_dataset
from bench.errors import InputError, Unsupported
from bench.registry import DATASETS
from bench.types import Array

RNG = np.random.default_rng(0)
TRAIN, TEST = 40, 10


def images(count: int, *shape: int) -> Array:
    return RNG.integers(0, 256, (count, *shape), dtype=np.uint8)


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()


def write_cifar(root: Path, base: Any, patch: pytest.MonkeyPatch) -> dict[str, Array]:
    """Write pickled batches and let torchvision expect their checksums; return the pixels."""
    folder = root / base.base_folder
    folder.mkdir(parents=True)
    label = "fine_labels" if base is tv.CIFAR100 else "labels"
    stored: dict[str, Array] = {}

    def write(name: str, entry: dict[str, Any]) -> str:
        (folder / name).write_bytes(pickle.dumps(entry))
        return md5(folder / name)

    for part, files, count in (("train", base.train_list, TRAIN), ("test", base.test_list, TEST)):
        size = count // len(files)
        batches = [images(size, 3072) for _ in files]
        stored[part] = np.concatenate(batches).reshape(-1, 3, 32, 32)
        sums = [
            [f[0], write(f[0], {"data": b, label: [int(v) % 10 for v in b[:, 0]]})]
            for f, b in zip(files, batches, strict=True)
        ]
        patch.setattr(base, f"{part}_list", sums)
    names = [f"class {k}" for k in range(10)]
    total = write(base.meta["filename"], {base.meta["key"]: names})
    patch.setattr(base, "meta", base.meta | {"md5": total})
    return stored


def jem_split(count: int) -> tuple[list[int], list[int]]:
    """Return validation and train numbers as the papers' scripts draw them."""
    state = np.random.get_state()
    numbers = list(range(count))
    np.random.seed(1234)
    np.random.shuffle(numbers)
    np.random.set_state(state)
    return numbers[: count // 10], numbers[count // 10 :]


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = write_cifar(tmp_path, getattr(tv, name.upper()), monkeypatch)
    test = load_dataset(name, root=tmp_path)
    assert np.array_equal(test.images, stored["test"])
    validation, train = jem_split(TRAIN)
    for split, numbers in (("validation", validation), ("train", train)):
        data = load_dataset(name, split, root=tmp_path)
        assert np.array_equal(data.images, stored["train"][numbers])
        assert data.labels is not None
        assert np.array_equal(data.labels, data.images[:, 0, 0, 0].astype(np.int64) % 10)
    assert test.classes[3] == "class 3"
    inverted = load_dataset("inverted", like=name, root=tmp_path).images
    assert {i.tobytes() for i in inverted} == {
        (1 - i / np.float32(255)).tobytes() for i in stored["train"][validation]
    }


def test_cifar_validation_is_5000_of_50000() -> None:
    module = __import__("sys").modules[DATASETS["cifar10"].__module__]
    tags = np.arange(50_000)
    found, labels = module.part("validation", tags, tags)
    assert found.tolist() == labels.tolist() == jem_split(50_000)[0]
    assert len(found) == 5_000


def test_damaged_cifar_is_unsupported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cifar(tmp_path, tv.CIFAR10, monkeypatch)
    (tmp_path / "cifar-10-batches-py" / "test_batch").write_bytes(b"cut")
    with pytest.raises(Unsupported, match=r"cifar-10-batches-py/.*--download"):
        load_dataset("cifar10", root=tmp_path)


def test_svhn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = {}
    sums = dict(tv.SVHN.split_list)
    for part, count in (("train", TRAIN), ("test", TEST)):
        path = tmp_path / f"{part}_32x32.mat"
        stored[part] = images(count, 3, 32, 32)
        labels = stored[part][:, 0, 0, 0] % 10
        labels[labels == 0] = 10  # the file's name for the digit 0
        scipy.io.savemat(path, {"X": stored[part].transpose(2, 3, 1, 0), "y": labels[:, None]})
        sums[part] = [sums[part][0], path.name, md5(path)]
    monkeypatch.setattr(tv.SVHN, "split_list", sums)
    test = load_dataset("svhn", root=tmp_path)
    assert np.array_equal(test.images, stored["test"])
    assert test.labels is not None
    assert np.array_equal(test.labels, test.images[:, 0, 0, 0].astype(np.int64) % 10)
    data = load_dataset("svhn", "validation", root=tmp_path)
    assert np.array_equal(data.images, stored["train"][jem_split(TRAIN)[0]])


def write_idx(path: Path, array: Array) -> None:
    """Write an idx file: two zero bytes, type 8 (uint8), dimensions, big-endian sizes, data."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sizes = b"".join(n.to_bytes(4, "big") for n in array.shape)
    content = bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()
    path.write_bytes(content)
    path.with_suffix(".gz").write_bytes(gzip.compress(content))


@pytest.mark.parametrize(
    ("name", "folder"), [("mnist", "MNIST"), ("fashion-mnist", "FashionMNIST")]
)
def test_mnist(name: str, folder: str, tmp_path: Path) -> None:
    stored = {}
    for part, count in (("train", TRAIN), ("t10k", TEST)):
        raw = tmp_path / folder / "raw"
        stored[part] = images(count, 28, 28)
        write_idx(raw / f"{part}-images-idx3-ubyte", stored[part])
        write_idx(raw / f"{part}-labels-idx1-ubyte", stored[part][:, 0, 0] % 10)
    test = load_dataset(name, root=tmp_path)
    assert np.array_equal(test.images, stored["t10k"][:, None])
    validation, train = jem_split(TRAIN)
    for split, numbers in (("validation", validation), ("train", train)):
        data = load_dataset(name, split, root=tmp_path)
        assert np.array_equal(data.images[:, 0], stored["train"][numbers])
        assert data.labels is not None
        assert np.array_equal(data.labels, data.images[:, 0, 0, 0].astype(np.int64) % 10)
    images_file = tmp_path / folder / "raw" / "t10k-images-idx3-ubyte"
    images_file.write_bytes(images_file.read_bytes()[:50])
    with pytest.raises(Unsupported, match=f"{folder}/raw/"):
        load_dataset(name, root=tmp_path)


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "svhn", "mnist", "fashion-mnist"])
def test_missing_files_and_splits(name: str, tmp_path: Path) -> None:
    for split in ("train", "validation", "test"):
        with pytest.raises(Unsupported, match="--data-root"):
            load_dataset(name, split, root=tmp_path)
    with pytest.raises(InputError, match="'extra'"):
        DATASETS[name]("extra", tmp_path)
    assert not list(tmp_path.iterdir())  # nothing was fetched


def test_download_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def refuse(self: object) -> None:
        asked.append(type(self).__name__)
        raise OSError("no network")

    monkeypatch.setattr(tv.CIFAR10, "download", refuse)
    with pytest.raises(Unsupported, match="no network"):
        load_dataset("cifar10", root=tmp_path, download=True)
    with pytest.raises(Unsupported, match="no network"):
        load_dataset("interp", like="cifar10", root=tmp_path, download=True)
    assert asked == ["CIFAR10", "CIFAR10"]
