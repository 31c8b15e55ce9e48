"""Top-2 error: how often the true class is not among the two most likely."""

from __future__ import annotations

import numpy as np

from bench.registry import METRICS


@METRICS.register("top2_error", better="lower", percent=True, bounds=(0.0, 1.0))
def top2_error(logits: np.ndarray, labels: np.ndarray) -> float:
    """Return the share of images with two or more logits above that of the label."""
    of_label = np.take_along_axis(logits, labels[:, None], axis=1)
    return float(((logits > of_label).sum(axis=1) >= 2).mean())
