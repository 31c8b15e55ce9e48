"""Robustness, calibration and OOD benchmark for classifiers that are also energy models.

    import bench
    model = bench.load_model("jem", refine_steps=10)
    data = bench.load_dataset("digits", split="test")
    out = bench.attack("pgd-linf", model, data.images[:8], data.labels[:8], eps=0.1)
    run = bench.run(model, suite="ood", dataset="digits")
    print(run.table())

Names are imported when they are first used: ``import bench`` imports neither torch nor numpy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench.api import run as run
    from bench.attacking import attack as attack
    from bench.data import load_dataset as load_dataset
    from bench.errors import BenchError as BenchError
    from bench.models import load_model as load_model
    from bench.registry import ATTACKS as ATTACKS
    from bench.registry import DATASETS as DATASETS
    from bench.registry import METRICS as METRICS
    from bench.registry import MODELS as MODELS
    from bench.registry import NETWORKS as NETWORKS
    from bench.registry import SCORES as SCORES
    from bench.registry import SUITES as SUITES
    from bench.registry import TRAINERS as TRAINERS
    from bench.wrapping import wrap as wrap

_HOMES = {
    "run": "bench.api",
    "attack": "bench.attacking",
    "load_dataset": "bench.data",
    "load_model": "bench.models",
    "wrap": "bench.wrapping",
    "BenchError": "bench.errors",
    **dict.fromkeys(("MODELS", "TRAINERS", "NETWORKS", "ATTACKS"), "bench.registry"),
    **dict.fromkeys(("DATASETS", "SCORES", "METRICS", "SUITES"), "bench.registry"),
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'bench' has no attribute '{name}'; it has {__all__}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "metrics"]
