"""Data sets from a user's own files, and everything that can be wrong with them."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from bench.data import load_dataset
from bench.errors import InputError, UnknownName, Unsupported
from bench.types import Array

RNG = np.random.default_rng(0)
GREY = RNG.integers(0, 256, (6, 8, 8), dtype=np.uint8)
COLOUR = RNG.integers(0, 256, (6, 5, 7, 3), dtype=np.uint8)


def write_npz(folder: Path, **arrays: Any) -> Path:
    path = folder / "own.npz"
    np.savez_compressed(path, **arrays)
    return path


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        (GREY, GREY[:, None]),
        (GREY[:, None], GREY[:, None]),
        (COLOUR, COLOUR.transpose(0, 3, 1, 2)),
        (COLOUR.transpose(0, 3, 1, 2), COLOUR.transpose(0, 3, 1, 2)),
        (GREY / 255, (GREY[:, None] / 255).astype(np.float32)),
    ],
)
def test_npz_layouts(tmp_path: Path, stored: Array, expected: Array) -> None:
    data = load_dataset(f"npz:{write_npz(tmp_path, x=stored)}")
    assert data.images.dtype == expected.dtype
    assert np.array_equal(data.images, expected)
    assert data.labels is None


def test_npz_labels_and_classes(tmp_path: Path) -> None:
    labels = np.array([0, 2, 1, 1, 0, 2], np.uint8)
    data = load_dataset(f"npz:{write_npz(tmp_path, images=GREY, labels=labels[:, None])}")
    assert data.labels is not None
    assert data.labels.tolist() == labels.tolist()
    assert data.classes == ("0", "1", "2")
    path = write_npz(tmp_path, x=GREY, y=labels, classes=np.array(["a", "b", "c"]))
    assert load_dataset(f"npz:{path}").classes == ("a", "b", "c")


def test_npz_keys_and_splits(tmp_path: Path) -> None:
    path = write_npz(tmp_path, other=GREY, x_train=GREY[:2], y_train=np.array([1, 0]))
    assert len(load_dataset(f"npz:{path}?x=other")) == 6
    train = load_dataset(f"npz:{path}", "train")
    assert len(train) == 2
    assert train.labels is not None
    assert train.labels.tolist() == [1, 0]
    with pytest.raises(Unsupported, match="x_validation"):
        load_dataset(f"npz:{path}?x=other", "validation")
    with pytest.raises(InputError, match=r"other, x_train.*'npz:FILE\?x=KEY'"):
        load_dataset(f"npz:{path}")
    with pytest.raises(InputError, match="no array 'z'"):
        load_dataset(f"npz:{path}?x=z")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": GREY[:0]}, "empty"),
        ({"x": GREY.astype(np.float32)}, r"expected float32 in \[0, 1\]"),
        ({"x": np.where(GREY > 250, np.nan, GREY / 255)}, "expected float32"),
        ({"x": GREY[0]}, r"shape \(8, 8\)"),
        ({"x": COLOUR[..., :2]}, "1 or 3 channels"),
        ({"x": GREY[:, :0]}, "shape"),
        ({"x": GREY.astype(np.int64)}, "int64"),
        ({"x": GREY, "y": np.arange(5)}, r"\(5,\)"),
        ({"x": GREY, "y": np.full(6, -1)}, "class numbers from 0"),
        ({"x": GREY, "y": np.ones(6)}, "float64"),
        ({"x": GREY, "y": np.arange(6), "classes": np.array(["a"])}, "0 to 0"),
    ],
)
def test_npz_with_wrong_arrays(tmp_path: Path, arrays: dict[str, Array], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_dataset(f"npz:{write_npz(tmp_path, **arrays)}")


class Trap:
    """An object whose unpickling would be seen."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return pytest.fail, ("a pickle was run",)


def test_npz_with_objects_is_refused_unrun(tmp_path: Path) -> None:
    path = write_npz(tmp_path, x=np.array([Trap()], dtype=object))
    with pytest.raises(InputError, match="run code"):
        load_dataset(f"npz:{path}")


def test_npz_that_is_no_archive(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no file"):
        load_dataset(f"npz:{tmp_path / 'none.npz'}")
    with pytest.raises(InputError, match="there is no file"):
        load_dataset(f"npz:{tmp_path}")
    page = tmp_path / "page.npz"
    page.write_text("\n<!DOCTYPE html><html><body>404</body></html>")
    with pytest.raises(InputError, match="web page"):
        load_dataset(f"npz:{page}")
    page.write_bytes(b"")
    with pytest.raises(InputError, match="truncated"):
        load_dataset(f"npz:{page}")
    with zipfile.ZipFile(page, "w") as archive:
        archive.writestr("x", "text")
    with pytest.raises(InputError, match="nothing"):
        load_dataset(f"npz:{page}")


def test_npz_cut_or_altered_anywhere_is_one_clear_error(tmp_path: Path) -> None:
    whole = write_npz(tmp_path, x=GREY).read_bytes()
    broken = tmp_path / "broken.npz"
    for length in range(0, len(whole), 23):
        broken.write_bytes(whole[:length])
        with pytest.raises(InputError, match=r"broken\.npz"):
            load_dataset(f"npz:{broken}")
    middle = len(whole) // 2
    broken.write_bytes(
        whole[:middle] + bytes(b ^ 255 for b in whole[middle : middle + 4]) + whole[middle + 4 :]
    )
    with pytest.raises(InputError, match=r"broken\.npz"):
        load_dataset(f"npz:{broken}")


def save(path: Path, pixels: Array) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def test_folder_of_classes(tmp_path: Path) -> None:
    for k, name in enumerate(("cat", "dog", "eel")):
        for i in range(4):
            save(tmp_path / name / f"{i}.png", GREY[0] // 2 + np.uint8(10 * k + i))
    (tmp_path / "cat" / "notes.txt").write_text("not an image")
    data = load_dataset(f"folder:{tmp_path}")
    assert data.classes == ("cat", "dog", "eel")
    assert data.shape == (1, 8, 8)
    assert data.labels is not None
    number = (data.images[:, 0, 0, 0] - GREY[0, 0, 0] // 2).tolist()
    assert sorted(number) == [0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23]
    assert [v // 10 for v in number] == data.labels.tolist()
    assert len(set(data.labels[:6].tolist())) > 1  # a prefix is a mixture


def test_flat_folder_in_colour_and_grey(tmp_path: Path) -> None:
    for i in range(3):
        save(tmp_path / f"{i}.png", COLOUR[i])
    data = load_dataset(f"folder:{tmp_path}")
    assert data.labels is None
    assert {i.tobytes() for i in data.images} == {
        np.ascontiguousarray(i.transpose(2, 0, 1)).tobytes() for i in COLOUR[:3]
    }
    grey = load_dataset(f"folder:{tmp_path}?channels=1")
    expected = {np.asarray(Image.fromarray(i).convert("L")).tobytes() for i in COLOUR[:3]}
    assert {i.tobytes() for i in grey.images} == expected


def test_folder_matches_the_channels_of_like(tmp_path: Path) -> None:
    save(tmp_path / "a.png", RNG.integers(0, 256, (8, 8, 3), dtype=np.uint8))
    assert load_dataset(f"folder:{tmp_path}").shape == (3, 8, 8)
    assert load_dataset(f"folder:{tmp_path}", like="digits").shape == (1, 8, 8)


def test_folder_splits(tmp_path: Path) -> None:
    save(tmp_path / "train" / "a" / "1.png", GREY[0])
    save(tmp_path / "test" / "a" / "1.png", GREY[1])
    assert load_dataset(f"folder:{tmp_path}", "train").images.tobytes() == GREY[0].tobytes()
    assert load_dataset(f"folder:{tmp_path}").images.tobytes() == GREY[1].tobytes()
    with pytest.raises(Unsupported, match="'validation'"):
        load_dataset(f"folder:{tmp_path}", "validation")


def test_folder_sizes(tmp_path: Path) -> None:
    save(tmp_path / "a.png", np.full((8, 8), 7, np.uint8))
    save(tmp_path / "b.png", np.full((9, 6), 7, np.uint8))
    with pytest.raises(InputError, match=r"one size: add '\?size="):
        load_dataset(f"folder:{tmp_path}")
    assert load_dataset(f"folder:{tmp_path}?size=4").shape == (1, 4, 4)
    data = load_dataset(f"folder:{tmp_path}?size=4,5")
    assert data.shape == (1, 4, 5)
    assert np.all(data.images == 7)
    for wrong in ("0", "2.5", "big", "1,2,3"):
        with pytest.raises(InputError, match="pixels"):
            load_dataset(f"folder:{tmp_path}?size={wrong}")


def test_folder_with_wrong_contents(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a folder"):
        load_dataset(f"folder:{tmp_path / 'none'}")
    with pytest.raises(InputError, match="no images"):
        load_dataset(f"folder:{tmp_path}")
    save(tmp_path / "a.png", GREY[0])
    whole = (tmp_path / "a.png").read_bytes()
    for broken in (b"", whole[:40], b"<html>"):
        (tmp_path / "b.png").write_bytes(broken)
        with pytest.raises(InputError, match=r"b\.png' is not a readable image"):
            load_dataset(f"folder:{tmp_path}")
    save(tmp_path / "b.png", GREY[0].astype(np.uint16) * 257)
    with pytest.raises(InputError, match="8 bits a channel"):
        load_dataset(f"folder:{tmp_path}")
    (tmp_path / "b.png").unlink()
    save(tmp_path / "cat" / "b.png", GREY[0])
    with pytest.raises(InputError, match="beside sub-folders"):
        load_dataset(f"folder:{tmp_path}")


def test_file_set_beside_another_data_set(tmp_path: Path) -> None:
    path = write_npz(tmp_path, x=COLOUR)
    with pytest.raises(InputError, match=r"\(3, 5, 7\).*\(1, 8, 8\)"):
        load_dataset(f"npz:{path}", like="digits")
    path = write_npz(tmp_path, x=GREY)
    assert len(load_dataset(f"npz:{path}", like="digits", n=4)) == 4
    assert load_dataset("constant", like=f"npz:{path}", n=3).shape == (1, 8, 8)
    with pytest.raises(Unsupported, match="x_validation"):
        load_dataset("inverted", like=f"npz:{path}")  # would be made of test images
    path = write_npz(tmp_path, x=GREY, x_validation=GREY[::-1])
    made = load_dataset("inverted", like=f"npz:{path}")
    assert {i.tobytes() for i in made.images} == {
        (1 - i[None] / np.float32(255)).tobytes() for i in GREY
    }


def test_options_are_checked(tmp_path: Path) -> None:
    path = write_npz(tmp_path, x=GREY)
    with pytest.raises(UnknownName, match="'sized'"):
        load_dataset(f"folder:{tmp_path}?sized=3")
    with pytest.raises(UnknownName, match="'size'"):
        load_dataset(f"npz:{path}?size=3")
    with pytest.raises(UnknownName, match="did you mean 'npz'"):
        load_dataset(f"npy:{path}")


def test_png_in_a_zip_is_not_an_image_set(tmp_path: Path) -> None:
    file = io.BytesIO()
    Image.fromarray(GREY[0]).save(file, format="PNG")
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.png", file.getvalue())
    with pytest.raises(InputError, match="expected images under 'x'"):
        load_dataset(f"npz:{tmp_path / 'a.npz'}")
