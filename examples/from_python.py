"""The benchmark from Python: a model in memory, its records, and an attack on a few images."""

from __future__ import annotations

from nearest_mean import make

import bench
from bench.data import to_tensor

data = bench.load_dataset("digits")
model = make(data)

run = bench.run(model, suite=["accuracy", "ood"], dataset="digits")
for record in run.records:
    if record.metric == "accuracy":
        print(f"accuracy {record.value:.3f}, 95 % interval {record.low:.3f} to {record.high:.3f}")

x, y = to_tensor(data.images[:100]), data.labels[:100]
out = bench.attack("pgd-linf", model, x, y, eps=[0.02, 0.05, 0.1], steps=10)
for eps, broken in zip([0.02, 0.05, 0.1], out.success, strict=True):
    print(f"eps {eps}: {broken.float().mean():.2f} of the images are misclassified")
