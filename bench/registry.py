"""One generic registry, the instances, and the search that fills them.

The rooms (`bench.attacks`, `bench.baselines`, ...) are searched on the first look-up: every
module in them is imported, and what they register appears. Packages elsewhere register through
the entry-point group ``bench.plugins``, each entry naming a module that registers when imported.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

from bench.errors import BenchError, InputError, UnknownName

T = TypeVar("T")
F = TypeVar("F")

ENTRY_POINT_GROUP = "bench.plugins"


@dataclass(frozen=True)
class Entry(Generic[T]):
    """What is known of one registered name."""

    name: str
    target: T
    module: str
    facts: Mapping[str, Any]

    @property
    def summary(self) -> str:
        """The first line of the documentation."""
        return (inspect.getdoc(self.target) or "").strip().split("\n")[0]

    @property
    def options(self) -> dict[str, Any]:
        """Names of the options with their defaults."""
        if dataclasses.is_dataclass(self.target):
            return {
                f.name: (None if f.default is dataclasses.MISSING else f.default)
                for f in dataclasses.fields(self.target)
                if f.init
            }
        if not callable(self.target):
            return {}
        return {
            p.name: (None if p.default is p.empty else p.default)
            for p in inspect.signature(self.target).parameters.values()
            if p.kind is p.KEYWORD_ONLY
        }


class Registry(Generic[T]):
    """Names of one kind of thing, e.g. ``ATTACKS["pgd-linf"]``."""

    def __init__(self, kind: str, plural: str, room: str) -> None:
        self.kind, self.plural, self.room = kind, plural, room
        self._entries: dict[str, Entry[T]] = {}
        self._schemes: dict[str, Callable[[str], Entry[T]]] = {}

    def register(self, name: str, **facts: Any) -> Callable[[F], F]:
        """Register the decorated class or function under ``name``.

        ``facts`` are kept in the entry, e.g. ``norm`` of an attack. A second registration of a
        name from another place is refused; the same place (a reloaded module) replaces itself.
        """
        if not name or name != name.strip() or any(c in name for c in ",:?@/ "):
            raise InputError(
                f"'{name}' cannot name a {self.kind}: use lower-case words joined by hyphens "
                "(no comma, colon, slash, '?', '@' or space)"
            )

        def add(target: F) -> F:
            place = f"{getattr(target, '__module__', '')}.{getattr(target, '__qualname__', '')}"
            old = self._entries.get(name)
            if old is not None:
                was = f"{old.module}.{getattr(old.target, '__qualname__', '')}"
                if was != place:
                    raise InputError(
                        f"{self.kind} '{name}' is registered already, by {was}; "
                        f"{place} needs another name"
                    )
            module = getattr(target, "__module__", "")
            self._entries[name] = Entry(name, target, module, facts)  # type: ignore[arg-type]
            return target

        return add

    def scheme(self, name: str) -> Callable[[F], F]:
        """Register the decorated function for names of the form ``name:rest``.

        It is called with the rest and returns an entry, or raises a `BenchError` that says why not.
        The first line of its documentation says what the names are.
        """

        def add(find: F) -> F:
            self._schemes[name] = find  # type: ignore[assignment]
            return find

        return add

    @property
    def schemes(self) -> dict[str, str]:
        """What names ``scheme:rest`` there are: scheme to the first line of its documentation."""
        discover()
        docs = {name: inspect.getdoc(find) or "" for name, find in sorted(self._schemes.items())}
        return {name: doc.split("\n")[0] for name, doc in docs.items()}

    def entry(self, name: str) -> Entry[T]:
        """Return the entry of ``name``, or raise `UnknownName` with the nearest names."""
        discover()
        scheme, colon, rest = name.partition(":")
        if colon and scheme in self._schemes:
            return self._schemes[scheme](rest)
        if name not in self._entries:
            raise UnknownName(
                self.kind, name, self._entries, f"'bench list {self.plural}' shows all"
            )
        return self._entries[name]

    def __getitem__(self, name: str) -> T:
        return self.entry(name).target

    def __contains__(self, name: object) -> bool:
        try:
            self.entry(str(name))
        except BenchError:
            return False
        return True

    def __iter__(self) -> Iterator[str]:
        discover()
        return iter(sorted(self._entries))

    def __len__(self) -> int:
        discover()
        return len(self._entries)

    def entries(self) -> list[Entry[T]]:
        """Return all entries, by name."""
        discover()
        return [self._entries[name] for name in sorted(self._entries)]


MODELS: Registry[Callable[..., Any]] = Registry("model", "models", "bench.baselines")
TRAINERS: Registry[Callable[..., Any]] = Registry("trainer", "trainers", "bench.baselines")
NETWORKS: Registry[Callable[..., Any]] = Registry("network", "networks", "bench.baselines")
ATTACKS: Registry[Callable[..., Any]] = Registry("attack", "attacks", "bench.attacks")
DATASETS: Registry[Callable[..., Any]] = Registry("data set", "datasets", "bench.datasets")
SCORES: Registry[Callable[..., Any]] = Registry("score", "scores", "bench.scores")
METRICS: Registry[Callable[..., Any]] = Registry("metric", "metrics", "bench.metrics")
SUITES: Registry[Callable[..., Any]] = Registry("suite", "suites", "bench.suites")

REGISTRIES: Mapping[str, Registry[Callable[..., Any]]] = {
    r.plural: r for r in (MODELS, TRAINERS, NETWORKS, ATTACKS, DATASETS, SCORES, METRICS, SUITES)
}

_discovery = {"state": "todo"}


def discover() -> None:
    """Import every module of the rooms and every plug-in, once.

    Raises:
        BenchError: A plug-in does not import; the message names it and its distribution.
    """
    if _discovery["state"] != "todo":  # done, or under way: a room may look up a neighbour
        return
    _discovery["state"] = "running"
    try:
        for room in sorted({r.room for r in REGISTRIES.values()}):
            package = importlib.import_module(room)
            for module in pkgutil.iter_modules(package.__path__):
                importlib.import_module(f"{room}.{module.name}")
        for point in entry_points(group=ENTRY_POINT_GROUP):
            try:
                point.load()
            except Exception as error:
                owner = point.dist.name if point.dist else "an unknown distribution"
                raise BenchError(
                    f"plug-in '{point.name}' ({point.value}, from {owner}) does not import: "
                    f"{type(error).__name__}: {error}; repair or uninstall {owner}"
                ) from error
    except BaseException:
        _discovery["state"] = "todo"
        raise
    _discovery["state"] = "done"
