"""What every registered network must keep to."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from bench.registry import NETWORKS


@pytest.mark.parametrize("name", list(NETWORKS))
def test_network_maps_images_to_logits(name: str) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network: nn.Module = NETWORKS[name]((3, 32, 32), 7)
    network.eval()
    z = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(1)).requires_grad_()
    logits = network(z)
    assert logits.shape == (3, 7)
    (gradient,) = torch.autograd.grad(logits[0].logsumexp(0), z)
    assert float(gradient[0].norm()) > 0
    assert float(gradient[1:].norm()) == 0
    with torch.no_grad():
        assert torch.allclose(network(z[:1]), logits[:1], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", list(NETWORKS))
def test_same_seed_same_weights(name: str) -> None:
    made = []
    for _ in range(2):
        with torch.random.fork_rng():
            torch.manual_seed(3)
            made.append(NETWORKS[name]((3, 32, 32), 2).state_dict())
    assert made[0].keys() == made[1].keys()
    assert all(torch.equal(made[0][key], made[1][key]) for key in made[0])


def test_some_network_is_the_default_for_every_size_that_ships() -> None:
    sizes = [e.facts["default_up_to"] for e in NETWORKS.entries() if "default_up_to" in e.facts]
    assert len(set(sizes)) == len(sizes)  # two of one size would leave the choice to their names
    assert max(sizes) >= 32
