"""Everything that is registered can be found, and says in a line what it is."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from bench.cli.list import KINDS, command
from bench.registry import REGISTRIES

EVERYTHING = [(kind, name) for kind, registry in REGISTRIES.items() for name in registry]


@pytest.fixture(scope="module")
def listed() -> str:
    result = CliRunner().invoke(command, [])
    assert result.exit_code == 0, result.output
    return result.output


def test_list_knows_every_kind() -> None:
    assert set(KINDS) == set(REGISTRIES)
    assert all(len(registry) for registry in REGISTRIES.values())


@pytest.mark.parametrize(("kind", "name"), EVERYTHING)
def test_entry_is_listed_with_its_summary(kind: str, name: str, listed: str) -> None:
    entry = REGISTRIES[kind].entry(name)
    summary = entry.summary
    assert len(summary) > 10
    assert summary.endswith(".") or summary.endswith(":"), summary
    lines = listed.partition(f"{kind}\n")[2].splitlines()
    assert any(line.split() == [name, *summary.split()] for line in lines)
    for option in entry.options:
        assert any(f"{option}=" in line for line in lines)


@pytest.mark.parametrize(("kind", "name"), EVERYTHING)
def test_entry_says_where_it_comes_from(kind: str, name: str) -> None:
    entry = REGISTRIES[kind].entry(name)
    assert entry.module.startswith(f"{REGISTRIES[kind].room}.")
