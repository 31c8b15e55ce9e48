"""The example of the documentation is complete, short, and does what it says."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from bench.attacking import attack
from bench.registry import ATTACKS

PAGE = Path(__file__).parents[2] / "docs" / "add-an-attack.md"


@pytest.fixture
def example(tmp_path: Path) -> Iterator[str]:
    match = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert match is not None
    source = match.group(1)
    path = tmp_path / "documented_attack.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location("documented_attack", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["documented_attack"] = module  # dataclasses look their module up
    ATTACKS.entries()
    spec.loader.exec_module(module)
    yield source
    del sys.modules["documented_attack"]
    ATTACKS._entries.pop("fgsm-linf")


def test_the_example_runs(
    example: str, trained_net: nn.Module, digits: tuple[Tensor, Tensor]
) -> None:
    assert len(example.splitlines()) < 60
    x, y = digits[0][1000:1128], digits[1][1000:1128]
    eps = [1e-4, 0.05, 0.15, 0.3]
    fgsm = attack("fgsm-linf", trained_net, x, y, eps=eps)
    pgd = attack("pgd-linf", trained_net, x, y, eps=eps)
    # One step breaks some, twenty break more.
    assert int(fgsm.success[2].sum()) > int(fgsm.success[0].sum()) + 20
    assert (pgd.success.sum(dim=1) >= fgsm.success.sum(dim=1)).all()
    # One pass at every budget that the image reached, none for what was wrong when clean.
    reached = 1 + (~fgsm.success[:-1]).sum(dim=0)
    right = fgsm.clean_pred == y
    assert torch.equal(fgsm.queries[right], reached[right])
    assert (fgsm.queries[~right] == 0).all()
