"""Comparisons on models that answer anew in every pass: noise on the input, and JEM-1."""

from __future__ import annotations

from typing import Any

import torch
from matches import Call, Match, Section, copies, foolbox_model, passes, wrong
from torch import Tensor, nn

from bench.noise import Noise
from bench.refinement import Refined

_SAMPLES, _CHAINS, _DRAWS = 5, 5, 20


class Noisy(nn.Module):
    """Gaussian noise on the input in every pass: the simplest stochastic classifier."""

    stochastic = True

    def __init__(self, model: nn.Module, sigma: float) -> None:
        super().__init__()
        self.model, self.sigma = model, sigma

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of one draw of the global generator; peers know nothing else."""
        logits: Tensor = self.model(x + self.sigma * torch.randn_like(x))
        return logits

    def sample_logits(self, x: Tensor, noise: Noise) -> Tensor:
        """Return the logits of one keyed draw."""
        logits: Tensor = self.model(x + self.sigma * noise.normal(*x.shape[1:]))
        return logits


def mean_accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Return the share of right answers over fresh draws, the same for every contender."""
    with torch.random.fork_rng():
        torch.manual_seed(99)
        draws = [wrong(model, x, y).double().mean() for _ in range(_DRAWS)]
    return 1 - float(torch.stack(draws).mean())


def eot(match: Match) -> Section:
    """Compare PGD on the expectation over the draws of a stochastic model."""
    model = Noisy(match.model, 2 * match.linf).eval()
    x, y, eps, steps = match.x[: match.few], match.y[: match.few], match.linf, match.steps
    size = eps / 4
    section = Section(
        f"EOT-PGD L∞ at {eps:.4g}, {steps} steps x {_SAMPLES} draws, {len(x)} images; "
        f"{mean_accuracy(model, x, y):.1%} right without an attack",
        "steps x (forward + backward to the input) of all draws in one batch",
        passes(model, *copies(x, y, _SAMPLES), steps),
        lambda found: {"mean accuracy": mean_accuracy(model, found, y)},
    )
    same = {"eps": eps, "step_size": size, "steps": steps, "eot_samples": _SAMPLES}
    # The draws that choose and score are of the protocol, not of the attack: as few as can be.
    few = {"gradient": "straight-through", "selection_draws": 1, "scoring_draws": 1}
    section.ours("bench", "pgd-linf", model, x, y, **same, **few)
    section.ours("bench, whole protocol", "pgd-linf", model, x, y, **same)

    def foolbox(package: Any) -> Call:
        attack = package.attacks.LinfPGD(abs_stepsize=size, steps=steps)
        wrapped = foolbox_model(package, model)
        wrapped = package.models.ExpectationOverTransformationWrapper(wrapped, n_steps=_SAMPLES)
        return lambda: attack(wrapped, x, y, epsilons=eps)[1]

    def torchattacks(package: Any) -> Call:
        attack = package.EOTPGD(model, eps=eps, alpha=size, steps=steps, eot_iter=_SAMPLES)
        return lambda: attack(x, y)

    section.peer("foolbox", foolbox)
    section.peer("torchattacks", torchattacks)
    return section


def refined(match: Match) -> Section:
    """Attack JEM-1 straight through its refinement, which no peer can."""
    model = Refined(match.jem, steps=1, n_chains=_CHAINS).eval()
    x, y, eps, steps = match.x[: match.few], match.y[: match.few], match.linf, match.steps
    section = Section(
        f"JEM-1 straight through, L∞ at {eps:.4g}, {steps} steps x {_SAMPLES} draws x {_CHAINS} "
        f"chains, {len(x)} images; {mean_accuracy(model, x, y):.1%} right without an attack",
        "2 x steps x (forward + backward to the input) of all draws and chains in one batch",
        passes(match.jem, *copies(x, y, _SAMPLES * _CHAINS), 2 * steps),
        lambda found: {"mean accuracy": mean_accuracy(model, found, y)},
    )
    same = {"eps": eps, "steps": steps, "eot_samples": _SAMPLES}
    few = {"selection_draws": 1, "scoring_draws": 1}
    for kind in ("static", "straight-through"):
        section.ours(f"bench, {kind}", "pgd-linf", model, x, y, gradient=kind, **same, **few)
    for peer in ("foolbox", "torchattacks"):
        section.skipped[peer] = "cannot differentiate a model that refines its input"
    return section
