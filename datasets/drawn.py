"""Sets drawn from nothing but a shape: constant, uniform, gaussian.

"Constant" is in the JEM family's tables without a definition (Grathwohl et al. 2019, later
follow-ups): here one colour an image, uniform in [0, 1]^C. One black image repeated, as some code
has it, has a single score, and its AUROC would be a quantile of the in-distribution scores.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from scipy.special import ndtri

from bench.registry import DATASETS
from bench.types import Dataset

from .making import generator, made

DRAWN = "none: drawn numbers"


@DATASETS.register("constant", ood="synthetic", reuses_images=False)
def constant(
    split: str = "test", root: Path | None = None, *, like: Dataset, n: int = 500, seed: int = 0
) -> Dataset:
    """Return images of one colour each, x = c everywhere with c ~ U[0, 1]^C."""
    c, h, w = like.shape
    colours = generator(seed, "constant").random((max(n, 0), c, 1, 1))
    images = np.broadcast_to(colours, (len(colours), c, h, w))
    source = "x = c, c ~ U[0,1] for each channel"
    return made("constant", split, images, asked=n, like=like, source=source, licence=DRAWN)


@DATASETS.register("uniform", ood="synthetic", reuses_images=False)
def uniform(
    split: str = "test", root: Path | None = None, *, like: Dataset, n: int = 500, seed: int = 0
) -> Dataset:
    """Return noise, every value ~ U[0, 1]."""
    images = generator(seed, "uniform").random((max(n, 0), *like.shape))
    source = "x ~ U[0,1] for each value"
    return made("uniform", split, images, asked=n, like=like, source=source, licence=DRAWN)


@DATASETS.register("gaussian", ood="synthetic", reuses_images=False)
def gaussian(
    split: str = "test", root: Path | None = None, *, like: Dataset, n: int = 500, seed: int = 0
) -> Dataset:
    """Return noise, every value ~ N(0.5, 0.25^2) clipped to [0, 1].

    Not matched to the mean and spread of ``like``: for most images clipping would then undo the
    match. 95 % of the values are not clipped.
    """
    uniforms = generator(seed, "gaussian").random((max(n, 0), *like.shape))
    images = np.clip(0.5 + 0.25 * ndtri(uniforms), 0.0, 1.0)
    source = "x ~ N(0.5, 0.25^2) for each value, clipped to [0,1]"
    return made("gaussian", split, images, asked=n, like=like, source=source, licence=DRAWN)
