"""Code that the user asked to be run: modules and files with factories of models."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from bench.digest import neighbours, sha256_file
from bench.errors import BenchError, InputError, ModelError
from bench.specs import check_options


def import_module(name: str) -> Any:
    """Import an installed module.

    Raises:
        InputError: There is none of that name.
        ModelError: It raised.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise InputError(
            f"module '{name}' does not import ({error}); install it, or write "
            "py:PATH/FILE.py:FACTORY"
        ) from error
    except Exception as error:
        raise ModelError(f"module '{name}' raised {type(error).__name__}: {error}") from error


def import_file(path: Path) -> Any:
    """Import a file under a name made from its path; its neighbours can be imported from it.

    Raises:
        InputError: There is no such file.
        ModelError: It raised.
    """
    path = path.resolve()
    if not path.is_file():
        raise InputError(f"there is no file '{path}'; expected py:PATH/FILE.py:FACTORY")
    tag = hashlib.sha256(str(path).encode() + path.read_bytes()).hexdigest()[:16]
    name = f"bench_user_{tag}"
    if name in sys.modules:
        _check_neighbours(path)
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ModelError(f"'{path}' raised {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(str(path.parent))
    _check_neighbours(path)
    return module


_first_seen: dict[Path, str] = {}


def _check_neighbours(path: Path) -> None:
    """Raise `InputError` where Python's neighbour of a file is not the one that lies beside it.

    A process imports a module once: of two folders with modules of one name the second would get
    the first's, and an edited one the old text, and neither would show in a digest.
    """
    for name, file in neighbours(path).items():
        loaded = getattr(sys.modules.get(name), "__file__", None)
        if loaded is None or name in sys.stdlib_module_names:
            continue
        if Path(loaded).resolve() != file.resolve():
            raise InputError(
                f"'{path}' imports '{name}' beside it, but '{loaded}' has been imported under that "
                "name already; rename one of the two, or give each model a command of its own"
            )
        if _first_seen.setdefault(file, sha256_file(file)) != sha256_file(file):
            raise InputError(
                f"'{file}' was edited after it had been imported, and Python goes on with the old "
                "text; give the command again in a new process"
            )


def call_factory(
    factory: Callable[..., Any],
    what: str,
    given: Mapping[str, Any],
    options: Mapping[str, Any],
) -> nn.Module:
    """Call a factory with what it takes of ``given`` and all of ``options``.

    Raises:
        UnknownName: It has no such option.
        ModelError: It raised, or returned no `nn.Module`.
    """
    parameters = inspect.signature(factory).parameters
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    arguments = {k: v for k, v in given.items() if k in parameters}
    if not takes_all:
        check_options("model", what.strip("'"), options, set(parameters) - set(given))
    try:
        module = factory(**arguments, **options)
    except BenchError:
        raise
    except Exception as error:
        raise ModelError(f"{what} raised {type(error).__name__}: {error}") from error
    if not isinstance(module, nn.Module):
        raise ModelError(
            f"{what} returned {type(module).__name__}; expected a torch.nn.Module whose forward "
            "takes float32 images in [0, 1] and returns logits"
        )
    return module
