"""The documented examples of data sets run, and the documented numbers are the measured ones."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from bench.data import load_dataset, to_tensor
from bench.registry import DATASETS, SCORES

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def own_sets() -> Iterator[None]:
    """Forget what an example registers."""
    before = dict(DATASETS._entries) if len(DATASETS) else {}
    yield
    DATASETS._entries.clear()
    DATASETS._entries.update(before)


@pytest.mark.usefixtures("own_sets")
def test_add_a_dataset(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "add-a-dataset.md").read_text(), re.S)
    names: dict[str, Any] = {"__name__": "example"}
    for block in blocks:
        exec(block, names)
    shape, mean = capsys.readouterr().out.splitlines()
    assert shape == "(1, 8, 8)"
    assert float(mean) == pytest.approx(0.5, abs=0.03)
    splits = [load_dataset("bars", split) for split in ("train", "validation", "test")]
    assert [len(s) for s in splits] == [200, 100, 100]
    assert len(load_dataset("rot90", like="bars")) == 100


def test_table_of_trivial_scores() -> None:
    text = (DOCS / "data.md").read_text()
    table = re.findall(
        r"^\| `([\w-]+)` \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", text, re.M
    )
    assert len(table) == 9
    scores = ("border-ink", "mean-intensity", "total-variation", "png-size")
    inside = to_tensor(load_dataset("digits").images)
    for name, *printed in table:
        outside = to_tensor(load_dataset(name, like="digits", n=500, seed=0).images)
        for score, value in zip(scores, printed, strict=True):
            both = [SCORES[score](None, x).numpy() for x in (inside, outside)]
            measured = roc_auc_score(
                np.repeat([1, 0], [len(s) for s in both]), np.concatenate(both)
            )
            # Fonts and PNG compression differ a little between versions of Pillow.
            slack = 0.02 if name in ("letters", "photo-patches") or score == "png-size" else 0.0006
            assert measured == pytest.approx(float(value), abs=slack), (name, score)
