"""Steps in bfloat16: what counts is decided in float32."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from bench.attacking import attack
from bench.context import Context
from bench.noise import bound
from bench.registry import ATTACKS

Digits = tuple[Tensor, Tensor]


@pytest.mark.parametrize("name", ["pgd-linf", "pgd-l2"])
@pytest.mark.parametrize("early_stop", [True, False])
def test_nearly_as_strong_as_float32(
    trained_net: nn.Module, digits: Digits, name: str, early_stop: bool
) -> None:
    x, y = digits[0][1000:1128], digits[1][1000:1128]
    eps = [0.05, 0.1] if name == "pgd-linf" else [0.5, 0.8]
    counts = {
        precision: attack(
            name, trained_net, x, y, eps=eps, early_stop=early_stop, precision=precision
        ).success.sum(dim=1)
        for precision in ("float32", "bfloat16")
    }
    assert (counts["bfloat16"] >= counts["float32"] - 4).all()


class Coarse(nn.Module):
    """In bfloat16 it seems wrong from 0.004 on, in float32 it is wrong from 0.05 on."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(8, 1, bias=False)
        nn.init.constant_(self.line.weight, 1 / 8)
        self.rough = 0

    def forward(self, x: Tensor) -> Tensor:
        u = self.line(x.flatten(1))[:, 0]
        self.rough += int(u.dtype == torch.bfloat16)
        reach = 0.004 if u.dtype == torch.bfloat16 else 0.05
        u = u.float() - 0.5
        return torch.stack([torch.full_like(u, reach), u], dim=1)


@pytest.mark.parametrize("early_stop", [True, False])
@pytest.mark.parametrize("eps", [[0.1], [0.02, 0.1]])
def test_what_only_bfloat16_finds_broken_walks_on(early_stop: bool, eps: list[float]) -> None:
    model = Coarse().eval()
    x = torch.full((4, 1, 2, 4), 0.5)
    options = {"random_start": False, "early_stop": early_stop}
    context = Context(noise=bound(0, "t", range(4)))
    found = ATTACKS["pgd-linf"](eps=eps[-1], precision="bfloat16", **options).sweep(
        model, x, torch.zeros(4).long(), context, tuple(eps)
    )
    assert model.rough > 0  # the steps were taken in bfloat16
    assert (model(found[-1]).argmax(dim=1) == 1).all()
    if len(eps) > 1:
        assert (model(found[0]).argmax(dim=1) == 0).all()


def test_a_model_that_takes_images_one_way_only() -> None:
    class Viewing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.line = nn.Conv2d(3, 4, 3), nn.Linear(144, 10)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.line(self.conv(x).view(len(x), -1))
            return out

    with torch.random.fork_rng():
        torch.manual_seed(0)
        model, x = Viewing().eval(), torch.rand(8, 3, 8, 8)
    with pytest.raises(RuntimeError, match="view"):
        model(x.contiguous(memory_format=torch.channels_last))
    y = model(x).argmax(dim=1)
    out = attack("pgd-linf", model, x, y, eps=0.5, precision="bfloat16")
    assert out.success.any()
