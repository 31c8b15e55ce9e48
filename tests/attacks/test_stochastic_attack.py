"""The protocol for stochastic models: fresh draws, unbiased scores, every gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bench.attacking import attack, attack_stochastic
from bench.attacking.draw_accuracy import mean_accuracy, vote_accuracy, worst_accuracy
from bench.attacking.sources import SOURCES
from bench.errors import InputError, Unsupported
from bench.noise import Noise, bound
from bench.refinement import Refined
from bench.types import Norm


class NoisyWeights(nn.Module):
    """Logits (0, (w + s * xi).(x - 0.5) + b): the expected margin is linear in x."""

    stochastic = True

    def __init__(self, w: Tensor, b: float, spread: float) -> None:
        super().__init__()
        self.w, self.b, self.spread = nn.Parameter(w), b, spread

    def sample_logits(self, x: Tensor, noise: Noise) -> Tensor:
        weights = self.w + self.spread * noise.normal(*x.shape[1:]).flatten(1)
        value = (weights * (x - 0.5).flatten(1)).sum(dim=1) + self.b
        return torch.stack([torch.zeros_like(value), value], dim=1)


class Chaos(nn.Module):
    """A fair coin for every image, draw and change of a pixel: the true accuracy is 1/2."""

    stochastic = True

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def sample_logits(self, x: Tensor, noise: Noise) -> Tensor:
        if not torch.is_grad_enabled():
            self.seen.append(noise.key)
        value = 1e3 * (x * noise.normal(*x.shape[1:])).flatten(1).sum(dim=1)
        coin = (value - value.floor() > 0.5).float() * 2 - 1
        return torch.stack([coin, -coin], dim=1) + 0 * value[:, None]


def test_eot_reaches_the_analytic_optimum_and_one_draw_does_not() -> None:
    w = torch.linspace(0.5, 1.5, 48) * torch.tensor([1.0, -1.0]).repeat(24)
    x, y, eps = torch.full((16, 3, 4, 4), 0.5), torch.ones(16, dtype=torch.long), 0.1
    model = NoisyWeights(w, 0.2, spread=4.0)
    reached = {}
    for samples in (1, 20):
        out = attack_stochastic(
            "pgd-linf", model, x, y, eps=eps, eot_samples=samples, loss="margin", steps=40
        )
        fall = -((out.x_adv[0] - 0.5).flatten(1) @ w.detach())
        reached[samples] = float(fall.mean() / (eps * w.abs().sum()))  # 1 is the optimum
    assert reached[20] >= 0.9
    assert reached[1] <= 0.7


def test_a_coin_is_not_scored_below_one_half() -> None:
    x = torch.rand(200, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    y = torch.zeros(200, dtype=torch.long)
    model = Chaos()
    eps = (0.02, 0.04, 0.06, 0.08, 0.1)
    out = attack_stochastic(
        "pgd-linf", model, x, y, eps=eps, steps=3, eot_samples=2, micro_batch=200
    )
    share, clean = out.accuracies()["mean"]
    # One standard deviation over 4000 draws is 0.008.
    assert share.tolist() == pytest.approx([0.5] * 5, abs=0.032)
    assert clean == pytest.approx(0.5, abs=0.032)
    # The planted fault: on the draws that chose them, the winners look much weaker.
    noise = bound(0, "attack/pgd-linf", range(200))
    biased = torch.stack(
        [
            model.sample_logits(out.x_adv[-1], noise.at("select", d)).argmax(dim=1)
            for d in range(10)
        ],
        dim=1,
    )
    assert float(mean_accuracy(biased, y)) < 0.42
    assert (out.source[-1] > 0).double().mean() > 0.5


def test_selection_and_scoring_draws_are_disjoint() -> None:
    x, y, model = torch.rand(6, 1, 4, 4), torch.zeros(6, dtype=torch.long), Chaos()
    attack_stochastic(
        "pgd-l2",
        model,
        x,
        y,
        eps=[0.1, 0.2],
        steps=2,
        eot_samples=2,
        selection_draws=3,
        scoring_draws=4,
    )
    noise = bound(0, "attack/pgd-l2", range(6))
    select, leave, score = (
        {noise.at(branch, d).key for d in range(count)}
        for branch, count in (("select", 3), ("leave", 3), ("score", 4))
    )
    assert not select & score
    assert not leave & (score | select)
    assert select | score <= set(model.seen)
    # Clean images, then the winner of either budget; clean images, then one candidate of either.
    assert sum(key in score for key in model.seen) == 4 * 3
    assert sum(key in select for key in model.seen) == 3 * 3


def test_no_image_is_left_out_for_a_wrong_draw() -> None:
    # Wrong in almost every clean draw, and still attacked: the rest of its accuracy falls.
    w = torch.ones(48)
    x, y = torch.full((40, 3, 4, 4), 0.5), torch.ones(40, dtype=torch.long)
    x = x + 0.1 * torch.rand(x.shape, generator=torch.Generator().manual_seed(0))
    model = NoisyWeights(w, -3.0, spread=3.0)
    out = attack_stochastic("pgd-linf", model, x, y, eps=[0.05], steps=5, eot_samples=4)
    share, clean = out.accuracies()["mean"]
    assert 0.05 < clean < 0.5
    assert float(share[0]) < clean - 0.03
    assert (out.queries == (5 + 2) * 4).all()


def test_refined_models_are_attacked_with_every_gradient(
    trained_net: nn.Module, test_digits: tuple[Tensor, Tensor]
) -> None:
    x, y = test_digits[0][:12], test_digits[1][:12]
    model = Refined(trained_net, steps=1, n_chains=2, step_size=0.01, noise_std=0.05)
    eps = (0.0, 0.05, 0.2)
    out = attack_stochastic(
        "pgd-linf", model, x, y, eps=eps, steps=4, eot_samples=2, scoring_draws=6
    )
    assert out.predictions.shape == (3, 12, 6)
    # At eps 0 there is only the clean image, and it meets the same draws.
    assert torch.equal(out.x_adv[0], x)
    assert (out.source[0] == 0).all()
    assert torch.equal(out.predictions[0], out.clean_predictions)
    assert set(out.source[2].tolist()) - {0}
    accuracy = {name: share for name, (share, _) in out.accuracies().items()}
    assert accuracy["mean"][2] < accuracy["mean"][0] - 0.3
    assert (accuracy["worst"] <= accuracy["mean"]).all()
    for i, budget in enumerate(eps):
        assert float(out.distances[Norm.LINF][i].max()) <= budget * (1 + 1e-6)
    # At 1 step the surrogate is the full gradient, and is said to be none of its own.
    kinds = ("straight-through", "full")
    assert set(out.spent) == {"static", *kinds, *(f"{kind} from static" for kind in kinds)}
    assert set(out.skipped) == {"surrogate"}
    # The two static runs pass once a step and at their ends; the others, in two draws, once a step
    # and twice to choose; at two budgets for what is not left alone at the second.
    for name, passes in out.spent.items():
        each = 2 * 5 if name == "static" else 2 * (4 + 2)
        assert set(passes.tolist()) <= {0, each, 2 * each}
        assert int(passes.max()) == 2 * each
    assert torch.equal(out.queries, torch.stack(list(out.spent.values())).sum(dim=0))
    assert set(out.seconds) == set(out.spent)
    assert min(out.seconds.values()) > 0
    alone = attack_stochastic(
        "pgd-linf",
        model,
        x[4:5],
        y[4:5],
        ids=[4],
        eps=eps,
        steps=4,
        eot_samples=2,
        scoring_draws=6,
    )
    assert torch.equal(alone.predictions[:, 0], out.predictions[:, 4])


def test_the_public_call_gives_shares_of_draws(
    trained_net: nn.Module, test_digits: tuple[Tensor, Tensor]
) -> None:
    x, y = test_digits[0][:6], test_digits[1][:6]
    model = Refined(trained_net, steps=0, n_chains=1, input_noise=0.1)
    out = attack("pgd-linf", model, x, y, eps=0.1, steps=3, gradient="static", scoring_draws=5)
    assert out.draws is not None
    assert set(out.draws.source.flatten().tolist()) <= {0, SOURCES.index("static")}
    wrong = (out.draws.predictions[0] != y[:, None]).double().mean(dim=1)
    assert torch.equal(out.success, wrong)
    assert out.success.shape == (6,)
    assert (out.queries == 2 * 4).all()


def test_impossible_requests(trained_net: nn.Module) -> None:
    x = torch.rand(2, 1, 8, 8)
    with pytest.raises(InputError, match="does not declare stochastic"):
        attack_stochastic("pgd-linf", trained_net, x, [0, 1], eps=0.1)
    model = Refined(trained_net, steps=0)
    with pytest.raises(InputError, match="at least one draw"):
        attack_stochastic("pgd-linf", model, x, [0, 1], eps=0.1, scoring_draws=0)
    with pytest.raises(InputError, match="static, straight-through, surrogate, full, fixed-noise"):
        attack("pgd-linf", model, x, [0, 1], eps=0.1, gradient="exact")
    with pytest.raises(InputError, match="the last beside another"):
        attack("pgd-linf", model, x, [0, 1], eps=0.1, gradient="fixed-noise")
    wrong: list[dict[str, Any]] = [
        {"gradients": "static"},
        {"gradients": 5},
        {"gradients": ()},
        {"by_gradient": 5},
        {"by_gradient": {"full": 5}},
        {"scoring_draws": 2.5},
        {"selection_draws": "3"},
    ]
    for options in wrong:
        (given,) = options.values()
        with pytest.raises(InputError, match="at least one draw") as told:
            attack_stochastic("pgd-linf", model, x, [0, 1], eps=0.1, **options)
        assert f"={given}" in str(told.value) or f"={given!r}" in str(told.value)
    settings = {"full": {"queries": 3}}
    with pytest.raises(InputError, match="'full' the options queries"):
        attack_stochastic("pgd-linf", model, x, [0, 1], eps=0.1, by_gradient=settings)
    with pytest.raises(Unsupported, match="'surrogate' is none of the gradients"):
        attack("pgd-linf", model, x, [0, 1], eps=0.1, gradient="surrogate")
    noisy = NoisyWeights(torch.ones(64), 0.0, 1.0)
    with pytest.raises(Unsupported, match="names no network behind its draws"):
        attack_stochastic("pgd-linf", noisy, x, [0, 1], eps=0.1, gradients=["static"])
    with pytest.raises(InputError, match="takes no starting points"):
        attack_stochastic("noise-linf", noisy, x, [0, 1], eps=0.1, starts=x)


def test_draw_accuracies_by_hand() -> None:
    labels = torch.tensor([0, 1, 2])
    predictions = torch.tensor([[0, 0, 1, 0], [1, 0, 1, 0], [2, 2, 2, 2]])
    # Right draws 3, 2 and 4 of 4; the second image is a tie, which is not a vote won.
    assert float(mean_accuracy(predictions, labels)) == 9 / 12
    assert float(vote_accuracy(predictions, labels)) == pytest.approx(2 / 3)
    assert float(worst_accuracy(predictions, labels)) == pytest.approx(1 / 3)
    stacked = torch.stack([predictions, labels[:, None].expand(3, 4)])
    assert mean_accuracy(stacked, labels).tolist() == [9 / 12, 1]
    assert vote_accuracy(stacked, labels).tolist() == pytest.approx([2 / 3, 1])
    # A class wins with two of five draws where the others have one each.
    assert float(vote_accuracy(torch.tensor([[0, 0, 1, 2, 3]]), torch.tensor([0]))) == 1
