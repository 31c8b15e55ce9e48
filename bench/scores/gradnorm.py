"""GradNorm, Huang et al. (2021, arXiv 2110.00218), section 3, in closed form.

The paper takes the L1 norm of the gradient in the last layer's weights of the divergence from the
uniform distribution u. That gradient is the outer product of p - u and the features h, so its norm
is the product of theirs, as the paper finds, and no backward pass is needed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bench.registry import SCORES
from bench.sharing import features_at


@SCORES.register("gradnorm", needs=("logits", "features"))
def gradnorm_score(model: Any, x: Tensor) -> Tensor:
    """Length of a gradient: ||softmax f(x) - u||_1 ||h(x)||_1, h under the last linear layer.

    Returns:
        ``(B,)`` float64, at least 0; certain and strong features are familiar.
    """
    logits, features = (values.cpu().double() for values in features_at(model, x))
    certainty = (torch.softmax(logits, dim=1) - 1 / logits.shape[1]).abs().sum(dim=1)
    strength: Tensor = features.abs().sum(dim=1)
    return certainty * strength
