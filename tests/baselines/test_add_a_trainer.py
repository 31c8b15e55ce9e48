"""The example of docs/add-a-trainer.md, taken from the page, trains and is found."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.cli.train import command
from bench.registry import MODELS, TRAINERS
from bench.weights import read_card

PAGE = Path(__file__).parents[2] / "docs" / "add-a-trainer.md"


@pytest.fixture
def plugin(tmp_path: Path) -> Iterator[str]:
    """The example, imported as a plug-in would be, and taken out of the registries again."""
    (source,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(source.splitlines()) < 60
    path = tmp_path / "logistic_plugin.py"
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("logistic_plugin", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["logistic_plugin"] = module
    spec.loader.exec_module(module)
    yield source
    del sys.modules["logistic_plugin"]
    del MODELS._entries["logistic"]
    del TRAINERS._entries["gradient-descent"]


def test_the_page_keeps_its_promise(plugin: str, tmp_path: Path) -> None:
    arguments = ["--model", "logistic", "--out", str(tmp_path), "--set", "logistic.epochs=60"]
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 0, result.output
    card = read_card(tmp_path / "logistic-digits-resnet-tiny.safetensors")
    assert card["trainer"] == "gradient-descent"
    assert card["options"] == {"epochs": 60, "learning_rate": 0.5}
    assert card["accuracy"]["test"] > 0.85  # chance is 0.1
