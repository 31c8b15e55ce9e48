"""A digest changes with everything a number depends on, and with nothing else."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from bench import digest as digests
from bench.digest import canonical_json, sha256_text, source_digest
from bench.errors import InputError
from bench.fingerprints import model_digest
from bench.models import ModelRef, load
from bench.refinement import Refined
from bench.tasks.base import DataRef
from bench.tasks.base import load as load_images


def digest_of(spec: str) -> str:
    return load(ModelRef(spec=spec, dataset="digits"), load_images(DataRef("digits"))).digest


def test_texts_with_other_borders_differ() -> None:
    assert sha256_text("ab", "c") != sha256_text("a", "bc")
    assert sha256_text() != sha256_text("")


def test_equal_values_have_one_text() -> None:
    assert canonical_json({"b": (1, 2.5), "a": None}) == '{"a":null,"b":[1,2.5]}'


def test_the_place_of_a_file_does_not_count_and_its_text_does(
    model_file: Path, tmp_path: Path
) -> None:
    other = tmp_path / "elsewhere" / "model.py"
    other.parent.mkdir()
    other.write_text(model_file.read_text())
    first = digest_of(f"py:{model_file}:make")
    assert digest_of(f"py:{other}:make") == first
    other.write_text(model_file.read_text() + "\n# the same weights\n")
    assert digest_of(f"py:{other}:make") != first


def test_attributes_count_though_the_weights_are_equal(model_file: Path) -> None:
    cold, warm = (digest_of(f"py:{model_file}:make?temperature={t}") for t in (0.1, 0.2))
    assert cold != warm
    assert digest_of(f"py:{model_file}:make?temperature=0.1") == cold


class Odd(nn.Module):
    def __init__(self, thing: object) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))
        self.thing = thing

    def extra_repr(self) -> str:
        return f"{object()}"


def test_addresses_do_not_count() -> None:
    assert model_digest(Odd(None)) == model_digest(Odd(None))


def test_weights_structure_and_settings_count() -> None:
    linear = nn.Linear(4, 3)
    net = nn.Sequential(linear, nn.ReLU())
    found = {model_digest(net)}
    with torch.no_grad():
        linear.weight[0, 0] += 0.001
    found.add(model_digest(net))
    found.add(model_digest(nn.Sequential(*net, nn.Dropout(0.1))))
    found.add(model_digest(nn.Sequential(*net, nn.Dropout(0.2))))
    found |= {model_digest(Refined(net, steps=n)) for n in (1, 2)}
    found |= {model_digest(Refined(net, steps=1, noise_std=s)) for s in (0.1, 0.2)}
    assert len(found) == 8


def test_gradients_flags_and_devices_do_not_count() -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5))
    before = model_digest(net)
    net(torch.zeros(1, 4)).sum().backward()
    net.eval().requires_grad_(False)
    assert model_digest(net) == before


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package of three files: a uses b, nobody uses c."""
    folder = tmp_path / "sourced"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "a.py").write_text("from . import b\n\ndef f():\n    return b.g()\n")
    (folder / "b.py").write_text("import math\n\ndef g():\n    return math.pi\n")
    (folder / "c.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    for name in [n for n in sys.modules if n.split(".")[0] == "sourced"]:
        del sys.modules[name]


def fresh(name: str) -> Any:
    """Import a module as a new process would."""
    for loaded in [n for n in sys.modules if n.split(".")[0] == "sourced"]:
        del sys.modules[loaded]
    for cached in (digests._closure, digests._file_facts, digests._source_file):
        cached.cache_clear()
    importlib.invalidate_caches()
    return importlib.import_module(name)


def test_what_a_file_imports_from_its_package_counts(package: Path) -> None:
    before = source_digest([fresh("sourced.a").f])
    (package / "c.py").write_text("nobody = 'uses this'\n")
    assert source_digest([fresh("sourced.a").f]) == before
    (package / "b.py").write_text("import math\n\ndef g():\n    return math.pi + 0\n")
    assert source_digest([fresh("sourced.a").f]) != before


@pytest.fixture
def helped(model_file: Path) -> Iterator[Path]:
    """A model whose file imports its neighbour."""
    (model_file.parent / "helper_of_the_model.py").write_text("SCALE = 1.0\n")
    model_file.write_text("from helper_of_the_model import SCALE\n" + model_file.read_text())
    yield model_file
    sys.modules.pop("helper_of_the_model", None)


def test_neighbours_of_a_file_count(helped: Path) -> None:
    before = digest_of(f"py:{helped}:make")
    helper = helped.parent / "helper_of_the_model.py"
    helper.write_text("SCALE = 2.0\n")
    # This process has imported the old text and cannot but compute with it, so it refuses.
    with pytest.raises(InputError, match=r"edited after it had been imported.*new process"):
        digest_of(f"py:{helped}:make")
    helper.write_text("SCALE = 1.0\n")
    assert digest_of(f"py:{helped}:make") == before
    code = f"""
from bench.errors import InputError
from bench.fingerprints import model_digest
from bench.models import ModelRef, load
from bench.data import load_dataset
print(load(ModelRef(spec="py:{helped}:make", dataset="digits"), load_dataset("digits")).digest)
"""
    helper.write_text("SCALE = 2.0\n")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert len(done.stdout.strip()) == 64, done.stderr
    assert done.stdout.strip() != before


def test_a_neighbour_of_another_folder_is_refused(helped: Path, tmp_path: Path) -> None:
    """Python would hand the second model the first one's neighbour, without a word."""
    other = tmp_path / "elsewhere"
    other.mkdir()
    for name, text in (("model.py", helped.read_text()), ("helper_of_the_model.py", "SCALE = 3\n")):
        (other / name).write_text(text)
    digest_of(f"py:{helped}:make")
    with pytest.raises(InputError, match=r"already; rename one of the two, or give each model"):
        digest_of(f"py:{other / 'model.py'}:make")


def test_words_and_messages_do_not_count() -> None:
    """An edit of an error message must not throw away a night of results."""
    from bench.tasks.logits import Logits

    files = digests._closure(Logits.__module__)
    assert not any("errors" in name or "registry" in name for name in files)
    assert any(name == "bench.noise" for name in files)
    assert any(name == "bench.refinement" for name in files)
