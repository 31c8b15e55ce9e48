"""Do the papers' claims hold on digits? Three training seeds of every model, paired by seed.

    bench train --model jem --dataset digits --seed 1 --out weights/seed1    # and so on
    python benchmarks/three_seeds.py weights/seed0 weights/seed1 weights/seed2

The unit is the training seed, so a difference is the mean over seeds of (model - baseline), with
Student's t interval of n - 1 degrees of freedom. With three seeds that interval is wide: it takes
a large and steady difference to say that a claim about the *method* holds. Prints Markdown.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np
from scipy import stats

import bench
from bench.records import Record

MODELS = ("baseline", "jem", "hdge", "hdge-masked", "hdge-eq13", "hdge-jem")
SUITES = ("accuracy", "calibration", "ood", "robustness")
LINF, L2 = (0.05, 0.1), (0.25, 0.5)
# What the suite did when the page was written; by now it attacks with more than PGD.
SETTINGS = {"robustness": {"attacks": ["pgd-linf", "pgd-l2"], "checks": False}}

# Quantity, whether smaller is better, and where it is found among the records of a run.
QUANTITIES = (
    ("accuracy", False),
    ("ECE", True),
    ("near AUROC", False),
    ("synthetic AUROC", False),
    *((f"L∞ {eps:g}", False) for eps in LINF),
    *((f"L2 {eps:g}", False) for eps in L2),
)


def quantities(records: tuple[Record, ...]) -> dict[str, float]:
    """Return the numbers of one model, as fractions; AUROC is of log p(x)."""
    found: dict[str, float] = {}
    synthetic = []
    for r in records:
        if r.value is None or r.label == "(no model)":
            continue
        s = r.settings
        if r.metric == "accuracy":
            found["accuracy"] = r.value
        elif r.metric == "ece":
            found["ECE"] = r.value
        elif r.metric == "robust_accuracy":
            found[f"{'L∞' if s['norm'] == 'linf' else 'L2'} {s['eps']:g}"] = r.value
        elif r.metric == "auroc" and s["score"] == "log-density":
            if r.task == "ood/near":
                found["near AUROC"] = r.value
            elif s["ood_group"] == "synthetic":
                synthetic.append(r.value)
    return found | {"synthetic AUROC": float(np.mean(synthetic))}


def measure(folders: list[Path], runs: Path, executor: str) -> dict[str, list[dict[str, float]]]:
    """Return the numbers of every model, one entry a seed; stored results are used again."""
    results: dict[str, list[dict[str, float]]] = {}
    for model in MODELS:
        for folder in folders:
            (weights,) = folder.glob(f"{model}-digits-*.safetensors")
            run = bench.run(
                model, SUITES, checkpoint=weights, settings=SETTINGS, runs=runs, executor=executor
            )
            if run.failed:
                raise SystemExit(f"{model} of {folder} failed: {run.table()}")
            results.setdefault(model, []).append(quantities(run.records))
    return results


def difference(values: list[float]) -> tuple[float, float]:
    """Return the mean of paired differences, and half the width of its 95 % t interval."""
    n = len(values)
    half = stats.t.ppf(0.975, n - 1) * np.std(values, ddof=1) / math.sqrt(n)
    return float(np.mean(values)), float(half)


def verdict(mean: float, half: float, lower_is_better: bool) -> str:
    """Say whether the model is better than the baseline, worse, or cannot be told from it."""
    gain = -mean if lower_is_better else mean
    if gain - half > 0:
        return "better"
    return "worse" if gain + half < 0 else "cannot tell"


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path, help="one folder of weights a seed")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--executor", default="local")
    arguments = parser.parse_args()
    results = measure(arguments.folders, arguments.runs, arguments.executor)
    names = [name for name, _ in QUANTITIES]
    print(f"Mean (standard deviation) over {len(arguments.folders)} training seeds, in percent:\n")
    print("| model | " + " | ".join(names) + " |")
    print("| --- |" + " ---: |" * len(names))
    for model, seeds in results.items():
        cells = []
        for name in names:
            values = [100 * seed[name] for seed in seeds]
            cells.append(f"{np.mean(values):.1f} ({np.std(values, ddof=1):.1f})")
        print(f"| {model} | " + " | ".join(cells) + " |")
    print("\nDifference to the baseline, paired by seed, with its 95 % t interval, in points:\n")
    print("| model | " + " | ".join(names) + " |")
    print("| --- |" + " --- |" * len(names))
    for model in MODELS[1:]:
        cells = []
        for name, lower_is_better in QUANTITIES:
            pairs = zip(results[model], results["baseline"], strict=True)
            mean, half = difference([100 * (ours[name] - base[name]) for ours, base in pairs])
            cells.append(f"{mean:+.1f} ±{half:.1f}, {verdict(mean, half, lower_is_better)}")
        print(f"| {model} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
