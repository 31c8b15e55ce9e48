"""`bench.run`: the Python face of ``bench run``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from bench.errors import InputError
from bench.request import Machine, Protocol, Request
from bench.runner import Progress, Run, execute
from bench.weights import weights_sha256


def run(
    model: str | nn.Module | Sequence[str],
    suite: str | Sequence[str] = "ood",
    dataset: str = "digits",
    *,
    refine_steps: int | Sequence[int] = 0,
    network: str | None = None,
    checkpoint: str | Path | None = None,
    protocol: Protocol = "default",
    limit: int | None = None,
    seed: int = 0,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    data_root: str | Path | None = None,
    download: bool = False,
    trust: bool = False,
    runs: str | Path = "runs",
    device: str = "auto",
    batch_size: int | None = None,
    threads: int = 1,
    executor: str = "local",
    progress: Progress | None = None,
) -> Run:
    """Run suites on models and return the records.

    Args:
        model: A name as on the command line, several of them, or a module; the module is copied,
            and yours stays as it is.
        suite: Name or names.
        dataset: The in-distribution data set.
        refine_steps: N of JEM-N, or several.
        network: Architecture of registered models.
        checkpoint: A file of weights instead of those found by name.
        protocol: ``default`` or ``paper``.
        limit: First images of every set only.
        seed: Of every draw.
        settings: Options by suite or attack, e.g. ``{"pgd-linf": {"steps": 100}}``.
        data_root: Where downloaded data sets lie.
        download: Whether they may be fetched.
        trust: Whether weight files that run code may be loaded.
        runs: The folder of results.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:N`` or ``mps``.
        batch_size: Images through a model at once.
        threads: CPU threads of each process.
        executor: ``local`` or ``local:N``; a module in memory runs with ``local`` only.
        progress: Told what happens.

    Raises:
        BenchError: The request cannot be carried out. A task that fails does not raise: its rows
            say why (`Run.failed`).
    """
    module = model if isinstance(model, nn.Module) else None
    # Two modules of one class are two models: the name tells them apart, and so their runs.
    names = _names("model", model) if module is None else [_name_of(module)]
    if module is not None and checkpoint is not None:
        raise InputError(
            f"checkpoint '{checkpoint}' beside a module: expected a registered name; load the "
            "weights into the module before"
        )
    request = Request(
        models=tuple(names),
        suites=tuple(_names("suite", suite)),
        dataset=dataset,
        refine_steps=(refine_steps,) if isinstance(refine_steps, int) else tuple(refine_steps),
        network=network,
        checkpoint=None if checkpoint is None else str(checkpoint),
        protocol=protocol,
        limit=limit,
        seed=seed,
        settings=settings or {},
        data_root=None if data_root is None else str(data_root),
        download=download,
        trust=trust,
    )
    machine = Machine(
        device=device,
        micro_batch=batch_size,
        threads=threads,
        executor=executor,
        runs=Path(runs),
    )
    return execute(request, machine, progress, module)


def _name_of(module: nn.Module) -> str:
    return f"{type(module).__name__}@{weights_sha256(module)[:8]}"


def _names(what: str, value: Any) -> list[str]:
    """Return one name or several as a list."""
    if isinstance(value, str):
        return [value]
    names = list(value) if isinstance(value, Iterable) else [value]
    wrong = [name for name in names if not isinstance(name, str)]
    if wrong:
        module = "one nn.Module (an instance), " if what == "model" else ""
        raise InputError(
            f"{what} is given as {type(wrong[0]).__name__}; expected {module}a name or a list of "
            f"names ('bench list {what}s' shows all)"
        )
    return names
