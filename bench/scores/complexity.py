"""log p(x) corrected by the complexity of the image, Serra et al. (2020, arXiv 1909.11480), sec. 3.

Densities like smooth images, whatever they show: constant images and blends among them. A
compressor, as a density of all images, likes them too; what remains of log p(x) when it is taken
off is evidence for the data.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from bench.registry import SCORES

from .log_density import log_density_score
from .trivial import png_size

NATS_A_BYTE = 8 * math.log(2)


@SCORES.register("complexity-corrected")
def complexity_corrected_score(model: Any, x: Tensor) -> Tensor:
    """Log p(x) plus the length of the image's PNG file in nats.

    The paper's S is minus this, in bits. Pixels are rounded to 8 bits for the file; where the
    protocol adds noise, it is the noisy image whose length counts, as its density does.

    Returns:
        ``(B,)`` float64, up to a constant.
    """
    return log_density_score(model, x) - NATS_A_BYTE * png_size(model, x).cpu()
