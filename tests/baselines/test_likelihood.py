"""The chains of the log p(x) term, against a Gaussian's closed form; what they leave alone."""

from __future__ import annotations

import importlib
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bench.registry import TRAINERS

TRAINERS["jem"]
likelihood = importlib.import_module("bench.baselines.likelihood")
objectives = importlib.import_module("bench.baselines.objectives")


class Gaussian(nn.Module):
    """One logit: -|z - mean|^2 / (2 variance), so log p(z) is a Gaussian's."""

    def __init__(self, mean: float, variance: float) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.tensor(mean))
        self.variance = variance

    def forward(self, z: Tensor) -> Tensor:
        return -((z - self.mean) ** 2).flatten(1).sum(dim=1, keepdim=True) / (2 * self.variance)


def term(**options: Any) -> Any:
    generator = torch.Generator().manual_seed(0)
    return likelihood.LogDensity(likelihood.SamplerOptions(**options), (1, 2, 2), generator)


def step_with(network: nn.Module, batch: int, seed: int = 1, caution: float = 1.0) -> Any:
    z = torch.zeros(batch, 1, 2, 2)
    return objectives.Step(
        network=network,
        z=z,
        y=torch.zeros(batch, dtype=torch.int64),
        logits=network(z),
        unlabelled=z,
        generator=torch.Generator().manual_seed(seed),
        caution=caution,
    )


def test_chains_reach_the_mean_and_variance_of_the_discrete_langevin_chain() -> None:
    # z' = z + a (m - z) / v + s xi is an AR(1) process: mean m, variance s^2 / (1 - (1 - a/v)^2).
    mean, variance, a, s = 0.3, 0.5, 0.2, 0.4
    subject = term(
        sgld_steps=60, sgld_step_size=a, sgld_noise=s, buffer_size=4000, restart_probability=0.01
    )
    samples = subject.sample(step_with(Gaussian(mean, variance), 4000))
    wanted = s**2 / (1 - (1 - a / variance) ** 2)
    count = samples.numel()
    assert float(samples.mean()) == pytest.approx(mean, abs=4 * math.sqrt(wanted / count))
    assert float(samples.var()) == pytest.approx(wanted, abs=4 * wanted * math.sqrt(2 / count))


def test_caution_shortens_the_steps() -> None:
    ends = []
    for caution in (1.0, 0.5):
        subject = term(sgld_steps=1, sgld_step_size=0.1, sgld_noise=0.0, restart_probability=1e-9)
        before = subject.memory["buffer"].clone()
        step = step_with(Gaussian(0.0, 1.0), 2000, caution=caution)
        subject.sample(step)
        ends.append(subject.memory["buffer"] / before)
    torch.testing.assert_close(ends[0], torch.full_like(ends[0], 0.9))
    torch.testing.assert_close(ends[1], torch.full_like(ends[1], 0.95))


def test_a_chain_starts_anew_with_the_given_probability() -> None:
    subject = term(sgld_steps=1, sgld_step_size=1e-9, sgld_noise=0.0, buffer_size=4000)
    subject.memory["buffer"].fill_(5.0)
    subject.sample(step_with(Gaussian(0.0, 1.0), 4000))
    anew = (subject.memory["buffer"] < 4.0).flatten(1).all(dim=1)
    deviation = math.sqrt(0.05 * 0.95 / 4000)
    assert float(anew.float().mean()) == pytest.approx(0.05, abs=4 * deviation)
    fresh = subject.memory["buffer"][anew]
    assert float(fresh.min()) >= -1.0
    assert float(fresh.max()) <= 1.0


def test_samples_are_written_back_and_the_rest_stays() -> None:
    subject = term(buffer_size=50, sgld_steps=2)
    before = subject.memory["buffer"].clone()
    samples = subject.sample(step_with(Gaussian(0.0, 1.0), 8))
    changed = (subject.memory["buffer"] != before).flatten(1).any(dim=1)
    assert int(changed.sum()) == 8
    distances = torch.cdist(subject.memory["buffer"][changed].flatten(1), samples.flatten(1))
    assert (distances.min(dim=1).values == 0).all()


def test_sampling_leaves_flags_and_gradients_as_they_were() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.Dropout(0.5), nn.Linear(3, 2))
    network.train()
    network[2].eval()
    network[3].weight.requires_grad_(False)
    term().sample(step_with(network, 4))
    assert [m.training for m in network] == [True, True, False, True]
    learning = {name: w.requires_grad for name, w in network.named_parameters()}
    assert learning == {"1.weight": True, "1.bias": True, "3.weight": False, "3.bias": True}
    assert all(w.grad is None for w in network.parameters())


def test_the_gradient_is_that_of_the_likelihood() -> None:
    # With E = |z - m|^2 / 2, d/dm of E(data) - E(chains) is the sum of (chains - data).
    network, subject = Gaussian(0.25, 1.0), term(sgld_noise=0.0, sgld_step_size=1.0)
    loss = subject(step_with(network, 16))
    (gradient,) = torch.autograd.grad(loss, network.mean)
    # One step of size 1 lands on the mean, so every pixel of the chains is 0.25; the data is 0.
    assert float(gradient) == pytest.approx(4 * 0.25, abs=1e-5)
    assert float(loss.detach()) == pytest.approx(4 * 0.25**2 / 2, abs=1e-5)


@pytest.mark.parametrize("mean", [100.0, float("nan")])
def test_energies_far_apart_are_a_divergence(mean: float) -> None:
    with pytest.raises(objectives.Unhealthy, match="apart, beyond 10"):
        term()(step_with(Gaussian(mean, 1.0), 4))
