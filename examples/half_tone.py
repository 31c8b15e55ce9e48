"""Black and white dots: an out-of-distribution set that is drawn."""

import numpy as np

from bench.registry import DATASETS
from bench.types import Dataset


@DATASETS.register("half-tone", ood="synthetic", reuses_images=False)
def half_tone(split="test", root=None, *, like, n=500, seed=0):
    """Return black and white dots, each white with probability 1/2."""
    rng = np.random.Generator(np.random.PCG64([seed, 4021]))
    images = (rng.random((n, *like.shape)) < 0.5).astype(np.float32)
    return Dataset(
        name="half-tone", split="test", images=images, licence="none: drawn", source="P(x=1) = 1/2"
    )
