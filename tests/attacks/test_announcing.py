from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.announcing import Announced, detect_stochastic
from bench.attacking import attack
from bench.noise import bound


class Dropping(nn.Module):
    """Dropout that eval mode does not switch off."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p
        self.head = nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(functional.dropout(x.flatten(1), self.p, training=True))
        return logits


@pytest.fixture
def dropping() -> Dropping:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Dropping(0.3)


def test_detection(dropping: Dropping, trained_net: nn.Module) -> None:
    x = torch.rand(4, 1, 8, 8)
    state = torch.get_rng_state()
    assert detect_stochastic(dropping, x)
    assert torch.equal(torch.get_rng_state(), state)
    assert not detect_stochastic(trained_net, x)
    # Honest dropout is off in eval mode, whatever mode the caller left the model in.
    net = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 3)).train()
    assert not detect_stochastic(net, x)
    assert net[1].training


def test_one_noisy_image_of_many_is_enough() -> None:
    class Late(nn.Module):
        """Random in the last pass only, by one part in a million."""

        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            logits = torch.ones(len(x), 2)
            if self.calls % 5 == 0:
                logits[-1, 0] += 1e-6
            return logits

    assert detect_stochastic(Late(), torch.rand(4, 1, 8, 8))


def test_announced_draws_follow_the_noise(dropping: Dropping) -> None:
    model, x = Announced(dropping), torch.rand(4, 1, 8, 8)
    noise = bound(0, "t", range(4))
    state = torch.get_rng_state()
    one = model.sample_logits(x, noise.at("draw", 0))
    torch.rand(7)
    assert torch.equal(model.sample_logits(x, noise.at("draw", 0)), one)
    assert not torch.equal(model.sample_logits(x, noise.at("draw", 1)), one)
    assert not torch.equal(model.sample_logits(x, bound(1, "t", range(4)).at("draw", 0)), one)
    torch.set_rng_state(state)
    model.sample_logits(x, noise)
    assert torch.equal(torch.get_rng_state(), state)


def test_an_unannounced_model_gets_the_stochastic_protocol(dropping: Dropping) -> None:
    x = torch.rand(12, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        y = dropping.head(x.flatten(1)).argmax(dim=1)
    out = attack("pgd-linf", dropping, x, y, eps=[0.0, 0.3], steps=5, eot_samples=4)
    assert out.draws is not None
    assert out.success.dtype == torch.float64
    assert 0 < float(out.success[0].mean()) < 1  # no image is simply right or wrong
    assert float(out.success[1].mean()) > float(out.success[0].mean()) + 0.3
    again = attack("pgd-linf", dropping, x, y, eps=[0.0, 0.3], steps=5, eot_samples=4)
    assert torch.equal(out.success, again.success)
    assert torch.equal(out.x_adv, again.x_adv)
