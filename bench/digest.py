"""What code and weights are, as digests: two results share a key only if all of it is equal.

A digest of code covers the files of the given objects and, through their import statements, every
file of the same package that they use. Comments count: a changed file is a changed file.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import inspect
import json
import sys
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

# No number depends on these beyond what stands in the key by itself: they hold words, messages and
# look-ups, or bring weights and images, whose bytes are digested. An edit there keeps every result.
WITHOUT_ARITHMETIC = frozenset(
    {
        *("bench", "bench.errors", "bench.types", "bench.registry", "bench.context", "bench.specs"),
        *("bench.models", "bench.usercode", "bench.weights", "bench.pickles", "bench.digest"),
        *("bench.data", "bench.data.loading", "bench.data.npzfile", "bench.data.imagefolder"),
        *("bench.data.imagefiles", "bench.tasks.base", "bench.training", "bench.training.contract"),
    }
)


def canonical_json(value: Any) -> str:
    """Return JSON with sorted keys, the same text for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)


def sha256_text(*parts: str) -> str:
    """Return the digest of texts; their borders count."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def sha256_file(path: Path) -> str:
    """Return the digest of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def source_digest(objects: Iterable[Any]) -> str:
    """Return the digest of the source behind functions, classes or instances."""
    files: dict[str, str] = {}
    for thing in objects:
        target = thing if inspect.isfunction(thing) or inspect.isclass(thing) else type(thing)
        files.update(_closure(target.__module__))
    return sha256_text(*(f"{name}={sha}" for name, sha in sorted(files.items())))


@lru_cache(maxsize=1024)
def _closure(module: str) -> dict[str, str]:
    """Return module name to file digest, for a module and all it imports from its package.

    Kept for the life of the process: what was imported is what runs.
    """
    found: dict[str, str] = {}
    todo = [module]
    while todo:
        name = todo.pop()
        if name in found or name in WITHOUT_ARITHMETIC:
            continue
        path = _source_file(name)
        if path is None:
            continue
        sha, imports = _file_facts(name, path)
        found[name] = sha
        todo += [n for n in imports if _same_home(n, module)]
    # The name of a file loaded from a path holds that path; results must not depend on it.
    return {_public_name(name): sha for name, sha in found.items()}


def _public_name(name: str) -> str:
    """Return a module's name; of a file loaded from a path, the file's alone."""
    path = _source_file(name)
    return path.name if name.startswith("bench_user_") and path else name


@lru_cache(maxsize=4096)
def _source_file(name: str) -> Path | None:
    module = sys.modules.get(name)
    origin = getattr(module, "__file__", None)
    if origin is None:
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError, AttributeError):
            return None
        origin = spec.origin if spec else None
    path = Path(origin) if origin else None
    return path if path and path.suffix == ".py" and path.is_file() else None


@lru_cache(maxsize=4096)
def _file_facts(name: str, path: Path) -> tuple[str, tuple[str, ...]]:
    """Return a file's digest and the modules it imports."""
    source = path.read_bytes()
    return hashlib.sha256(source).hexdigest(), tuple(dict.fromkeys(_imports(name, path, source)))


def _imports(name: str, path: Path, source_text: bytes) -> Iterator[str]:
    """Yield the modules that a file imports, submodules included."""
    is_package = path.name == "__init__.py"
    parts = name.split(".")
    for node in ast.walk(ast.parse(source_text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = parts[: len(parts) - node.level + is_package] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            yield source
            yield from (f"{source}.{alias.name}" for alias in node.names)


def neighbours(path: Path) -> dict[str, Path]:
    """Return the modules beside a file that it imports, directly or through each other."""
    found: dict[str, Path] = {}
    todo = [path]
    while todo:
        file = todo.pop()
        for imported in _imports(file.stem, file, file.read_bytes()):
            name = imported.partition(".")[0]
            for beside in (path.parent / f"{name}.py", path.parent / name / "__init__.py"):
                if name not in found and beside.is_file():
                    found[name] = beside
                    todo.append(beside)
    return found


def _same_home(name: str, module: str) -> bool:
    """Say whether a module belongs to the package, or the folder, of another."""
    if name.split(".")[0] == module.split(".")[0]:
        return True
    mine, its = _source_file(module), _source_file(name)
    loaded_from_path = module.startswith("bench_user_")
    return bool(loaded_from_path and mine and its and its.is_relative_to(mine.parent))
