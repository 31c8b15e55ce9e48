"""A model that answers NaN somewhere in the ball is found out, not called robust there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bench.attacking import attack
from bench.errors import ModelError

OURS = (
    *("pgd-linf", "apgd-linf", "apgd-t-linf", "square-linf", "noise-linf"),
    *("pgd-l2", "apgd-l2", "apgd-t-l2", "square-l2", "boundary-l2", "pointwise-l0"),
)


class Trap(nn.Module):
    """Answers NaN for all classes where the first pixel has changed."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        trapped = (x[:, :, 0, 0] > 0.01).any(dim=1)
        logits: Tensor = self.net(x)
        return torch.where(trapped[:, None], torch.nan, logits)


@pytest.mark.parametrize("name", OURS)
def test_no_answer_is_not_robust(
    trained_net: nn.Module, test_digits: tuple[Tensor, Tensor], name: str
) -> None:
    x, y = test_digits[0][:8].clone(), test_digits[1][:8]
    x[:, :, 0, 0] = 0
    few: dict[str, dict[str, Any]] = {
        "pgd": {"steps": 5},
        "apgd": {"steps": 5},
        "square": {"queries": 50},
        "boundary": {"steps": 30},
        "pointwise": {"queries": 30},
        "noise": {"draws": 20},
    }
    options = few.get(name.split("-")[0], {})
    with pytest.raises(ModelError, match="NaN"):
        attack(name, Trap(trained_net), x, y, eps=0.3, **options)
