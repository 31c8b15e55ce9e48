"""Names are found, near misses are suggested, and a broken plug-in is named."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bench import registry
from bench.errors import BenchError, InputError, UnknownName
from bench.registry import ATTACKS, REGISTRIES, Entry, Registry


@pytest.fixture
def fruit() -> Registry[Any]:
    return Registry("fruit", "fruits", "bench.scores")


def test_near_names_are_suggested() -> None:
    with pytest.raises(
        UnknownName, match="'pgd-lnf' is not an attack; did you mean 'pgd-linf'"
    ) as e:
        ATTACKS["pgd-lnf"]
    assert "'bench list attacks' shows all" in str(e.value)
    with pytest.raises(KeyError):  # for callers that expect a mapping
        ATTACKS["nothing-like-it"]


def test_a_name_without_neighbours_lists_all(fruit: Registry[Any]) -> None:
    fruit.register("apple")(len)
    fruit.register("pear")(max)
    with pytest.raises(UnknownName, match="known: apple, pear"):
        fruit["zzz"]


def test_a_second_registration_from_elsewhere_is_refused(fruit: Registry[Any]) -> None:
    def one() -> None:
        """The first."""

    def two() -> None:
        """The second."""

    fruit.register("apple")(one)
    with pytest.raises(InputError, match=r"registered already, by .*one; .*two needs another name"):
        fruit.register("apple")(two)
    assert fruit["apple"] is one


def test_a_reloaded_module_replaces_itself(fruit: Registry[Any]) -> None:
    def make() -> Any:
        def factory() -> None:
            """Some factory."""

        return factory

    first, second = make(), make()
    fruit.register("apple", colour="green")(first)
    fruit.register("apple", colour="red")(second)
    assert fruit["apple"] is second
    assert fruit.entry("apple").facts == {"colour": "red"}


@pytest.mark.parametrize("name", ["", " a", "a b", "a,b", "a:b", "a/b", "a?b", "a@b"])
def test_names_that_a_command_line_could_not_hold_are_refused(
    fruit: Registry[Any], name: str
) -> None:
    with pytest.raises(InputError, match="use lower-case words joined by hyphens"):
        fruit.register(name)


def test_entries_tell_summary_and_options(fruit: Registry[Any]) -> None:
    @fruit.register("slice")
    @dataclass(frozen=True, kw_only=True)
    class Slice:
        """Cut it.

        More.
        """

        eps: float
        steps: int = 3

    @fruit.register("peel")
    def peel(x: int, *, knife: str = "small") -> None:
        """Peel it."""

    assert fruit.entry("slice").summary == "Cut it."
    assert fruit.entry("slice").options == {"eps": None, "steps": 3}
    assert fruit.entry("peel").options == {"knife": "small"}
    assert list(fruit) == ["peel", "slice"]
    assert [e.name for e in fruit.entries()] == ["peel", "slice"]
    assert len(fruit) == 2
    assert "peel" in fruit
    assert "pear" not in fruit


def test_a_scheme_finds_entries_by_the_rest_of_the_name(fruit: Registry[Any]) -> None:
    @fruit.scheme("market")
    def market(rest: str) -> Entry[Any]:
        """Any fruit of the market, e.g. market:fig.

        More.
        """
        if rest != "fig":
            raise UnknownName("fruit", f"market:{rest}", ["market:fig"])
        return Entry(f"market:{rest}", len, "builtins", {"colour": "blue"})

    fruit.register("apple")(max)
    assert fruit["market:fig"] is len
    assert fruit.entry("market:fig").facts == {"colour": "blue"}
    assert "market:fig" in fruit
    assert "market:figg" not in fruit
    assert list(fruit) == ["apple"]  # whatever a scheme could find is not listed
    assert fruit.schemes == {"market": "Any fruit of the market, e.g. market:fig."}
    with pytest.raises(UnknownName, match="did you mean 'market:fig'"):
        fruit["market:figg"]
    with pytest.raises(UnknownName, match="'shop:fig' is not a fruit"):
        fruit["shop:fig"]


def test_every_registered_thing_says_what_it_is() -> None:
    for kind in REGISTRIES.values():
        assert len(kind) > 0
        for entry in kind.entries():
            assert entry.summary.endswith("."), f"{kind.kind} {entry.name}: {entry.summary!r}"


def distribution(folder: Path, code: str) -> None:
    """Lay down a distribution as an installer would, with one plug-in."""
    folder.mkdir()
    (folder / "fruit_plugin_module.py").write_text(code)
    info = folder / "fruit_plugin-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fruit-plugin\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text("[bench.plugins]\nfruit = fruit_plugin_module\n")


@pytest.fixture
def undiscovered(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    registry.discover()
    monkeypatch.setitem(registry._discovery, "state", "todo")
    return monkeypatch


def test_a_plug_in_that_does_not_import_is_named(
    undiscovered: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    distribution(tmp_path / "site", "import a_module_that_is_not_there\n")
    undiscovered.syspath_prepend(tmp_path / "site")
    for _ in range(2):  # it is not forgotten after the first look
        with pytest.raises(BenchError, match="uninstall fruit-plugin") as error:
            ATTACKS["pgd-linf"]
        text = str(error.value)
        assert "plug-in 'fruit' (fruit_plugin_module, from fruit-plugin)" in text
        assert "No module named 'a_module_that_is_not_there'" in text


def test_a_plug_in_that_imports_registers(undiscovered: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code = "from bench.registry import SCORES\nSCORES.register('fruitiness')(len)\n"
    distribution(tmp_path / "site", code)
    undiscovered.syspath_prepend(tmp_path / "site")
    undiscovered.setattr(registry.SCORES, "_entries", dict(registry.SCORES._entries))
    assert registry.SCORES["fruitiness"] is len
