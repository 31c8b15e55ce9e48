"""What users of other attack libraries reported, as tests of every attack of that kind.

Each test names the thread it comes from. They go through `bench.attack`, on toy models, with small
options; which attacks there are is asked of the registry.
"""

from __future__ import annotations

import random
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

import bench
from bench.context import Context
from bench.errors import InputError, Unsupported
from bench.registry import ATTACKS
from bench.types import Norm
from tests.attacks.toys import (
    Case,
    Islands,
    Linear,
    NoisyWeights,
    Recorder,
    answers,
    cases,
    random_images,
    small_net,
)

each = pytest.mark.parametrize("case", cases("any"), ids=str)
each_minimum_norm = pytest.mark.parametrize("case", cases("minimum norm"), ids=str)


def measured(x: Tensor, x_adv: Tensor, norm: Norm) -> np.ndarray:
    """Return the distances by NumPy in float64, apart from the package's own measure."""
    change = (x_adv.double() - x.double()).flatten(1).numpy()
    order = {Norm.L0: 0, Norm.L2: 2, Norm.LINF: np.inf}[norm]
    found: np.ndarray = np.linalg.norm(change, ord=order, axis=1)
    return found


@pytest.fixture(scope="module")
def net() -> nn.Module:
    return small_net()


@each
def test_d1_an_image_without_a_start_spoils_no_other(case: Case) -> None:
    """bethgelab/foolbox#541: one failed initialisation aborted a batch of 1,000."""
    sea, islands = torch.full((1, 1, 8, 8), 0.95), 0.1 + 0.1 * random_images(3)
    x = torch.cat([islands[:2], sea, islands[2:]])
    model = Islands(islands + 0.01)
    out = case.run(model, x, [0, 0, 1, 0])
    assert out.success.tolist() == [True, True, False, True]
    assert answers(model, out.x_adv).tolist() == [1, 1, 1, 1]
    if case.minimum_norm:  # no start was found: unchanged, and said to be out of reach
        assert torch.equal(out.x_adv[2], sea[0])
        assert out.distance[2] == torch.inf
        assert out.distance[[0, 1, 3]].isfinite().all()


@pytest.mark.parametrize("case", cases("starts"), ids=str)
def test_d1_a_start_that_is_not_adversarial_spoils_no_other(case: Case, net: nn.Module) -> None:
    """bethgelab/foolbox#541, of starts that the caller gives."""
    x = random_images(6, seed=6)
    y = answers(net, x)
    far = random_images(200, seed=7)
    starts = torch.stack([far[answers(net, far) != label][0] for label in y])
    starts[2] = x[2]
    out = case.run(net, x, y, starts=starts)
    given = torch.from_numpy(measured(x, starts, case.norm))
    others = [0, 1, 3, 4, 5]
    assert out.success[others].all()
    assert (out.distance[others] <= given[others]).all()
    assert out.success[2] or torch.equal(out.x_adv[2], x[2])


@each
def test_d2_an_image_that_is_wrong_when_clean_is_broken_at_zero_cost(
    case: Case, net: nn.Module
) -> None:
    """bethgelab/foolbox#713: what happens to images that are wrong before the attack?"""
    x = random_images(4, seed=1)
    y = answers(net, x)
    y[2] = (y[2] + 1) % 4
    for eps in (0.0, case.budget):
        out = case.run(net, x, y, eps=eps)
        assert out.success[2]
        assert out.distance[2] == 0
        assert torch.equal(out.x_adv[2], x[2])
        assert out.queries[2] == 0
        assert len(out.success) == 4  # the denominator stays
        assert (out.queries[[0, 1, 3]] > 0).all() or eps == 0


@each
def test_d3_a_wrong_label_leaves_the_others_as_they_are(case: Case, net: nn.Module) -> None:
    """bethgelab/foolbox#670: HopSkipJump ran into NaN, or for ever."""
    x = random_images(4, seed=1)
    y = answers(net, x)
    wrong = torch.tensor([(int(y[0]) + 1) % 4, *y[1:].tolist()])
    out = case.run(net, x, wrong)
    assert out.x_adv.isfinite().all()
    without = case.run(net, x[1:], y[1:], ids=[1, 2, 3])
    assert torch.allclose(out.x_adv[1:], without.x_adv, atol=1e-5)
    assert out.success[1:].tolist() == without.success.tolist()


@each
def test_d4_budget_zero_is_the_clean_accuracy(case: Case, net: nn.Module) -> None:
    """Harry24k/adversarial-attacks-pytorch#124 and #172: PGD at eps = 0 was not the clean one."""
    x = random_images(16)
    y = answers(net, x)
    y[:4] = (y[:4] + 1) % 4
    starts = ({"random_start": True}, {"random_start": False})
    for more in starts if "random_start" in case.known else ({},):
        out = case.run(net, x, y, eps=[0.0, case.eps / 4, case.eps], **more)
        assert torch.equal(out.x_adv[0], x)
        assert out.success[0].tolist() == [True] * 4 + [False] * 12
        assert not out.distance[0].any()
        assert out.x_adv.isfinite().all()


@each
def test_d5_no_image_is_further_than_the_budget(case: Case, net: nn.Module) -> None:
    """bethgelab/foolbox#388, torchattacks#37, ART#2404: perturbations were larger than eps."""
    x = random_images(64)
    y = answers(net, x)
    scales = (1.0,) if case.norm is Norm.L0 else (1e-4, 1.0, 8.0)
    for eps in (scale * case.eps for scale in scales):
        out = case.run(net, x, y, eps=eps)
        distance = measured(x, out.x_adv, case.norm)
        assert distance.max() <= eps * (1 + 1e-6)
        assert float(out.x_adv.min()) >= 0
        assert float(out.x_adv.max()) <= 1
        assert out.x_adv.dtype == torch.float32
        np.testing.assert_allclose(out.distance.numpy(), distance, rtol=1e-12)
    assert out.success.double().mean() > 0.5  # the check is of images that moved


@each
def test_d6_rounding_below_zero_is_clamped_and_other_ranges_are_refused(
    case: Case, net: nn.Module
) -> None:
    """Harry24k/adversarial-attacks-pytorch#136, foolbox#602: -2.98e-8 refused, -0.5 accepted."""
    x = random_images(4, seed=1)
    x[0, 0, 0, 0] = 0.0
    y = answers(net, x)
    below = x.clone()
    below[0, 0, 0, 0] = -2.98e-8
    assert torch.equal(case.run(net, below, y).x_adv, case.run(net, x, y).x_adv)
    for outside, pattern in ((2 * x - 1, "from -.* to"), (255 * x, "from 0 to 2")):
        with pytest.raises(InputError, match=rf"{pattern}.*expected \[0, 1\]"):
            case.run(net, outside, y)


@each
def test_d7_an_image_fares_the_same_alone_and_in_company(case: Case, net: nn.Module) -> None:
    """bethgelab/foolbox#439 and #636, torchattacks#46: gradients scaled with the batch size."""
    x = random_images(64, seed=2)
    y = answers(net, x)
    whole, parts = case.run(net, x, y), case.run(net, x, y, micro_batch=7)
    if not case.keyed:  # its draws belong to the batch; its gradients must not
        assert abs(int(whole.success.sum()) - int(parts.success.sum())) <= 4
        both = whole.success & parts.success
        ratio = float(parts.distance[both].median() / whole.distance[both].median())
        assert 0.8 < ratio < 1.25
        return
    seven = case.run(net, x[:7], y[:7])
    alone = case.run(net, x[5:6], y[5:6], ids=[5])
    # A tie within rounding may send one image another way (DESIGN: counted ties).
    apart = (whole.x_adv - parts.x_adv).flatten(1).abs().amax(dim=1) > 1e-4
    assert int(apart.sum()) <= 2
    for out, rows in ((seven, slice(0, 7)), (alone, slice(5, 6))):
        near = (whole.x_adv[rows] - out.x_adv).flatten(1).abs().amax(dim=1) <= 1e-4
        assert (near | apart[rows]).all()
        assert torch.equal(whole.success[rows][near], out.success[near])
        assert torch.equal(whole.queries[rows][near], out.queries[near])


@dataclass(frozen=True, kw_only=True)
class Half:
    """Inverts the images of one half of a batch and leaves the others."""

    eps: float
    even: bool = True
    norm: Norm = field(default=Norm.LINF, init=False)

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, context: Context) -> Tensor:
        mine = (context.noise.image_ids % 2 == 0) == self.even
        return torch.where(mine[:, None, None, None], 1 - x, x)


@dataclass(frozen=True, kw_only=True)
class OddHalf(Half):
    """The other half."""

    even: bool = False


def test_d8_the_leaderboard_counts_the_worst_attack_of_every_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fra31/auto-attack#45 and #85: the average of the attacks, or the minimum?"""
    monkeypatch.setattr(ATTACKS, "_entries", dict(ATTACKS._entries))
    ATTACKS.register("even-half", norm=Norm.LINF)(Half)
    ATTACKS.register("odd-half", norm=Norm.LINF)(OddHalf)
    images = np.linspace(0.6, 0.9, 10, dtype=np.float32)[:, None, None, None]
    images = np.broadcast_to(images, (10, 1, 8, 8))
    np.savez(tmp_path / "bright.npz", x=images, y=np.ones(10, np.int64))
    model = Linear(torch.stack([torch.zeros(64), torch.ones(64)]), torch.zeros(2))
    found = {}
    for attacks in (["even-half"], ["odd-half"], ["even-half", "odd-half"]):
        run = bench.run(
            model,
            suite="robustness",
            dataset=f"npz:{tmp_path / 'bright.npz'}",
            settings={"robustness": {"attacks": attacks, "linf": [1.0]}},
            runs=tmp_path / "runs",
        )
        found["+".join(attacks)] = [r.value for r in run.records if r.metric == "robust_accuracy"]
    assert found == {
        "even-half": [1.0, 0.5],
        "odd-half": [1.0, 0.5],
        "even-half+odd-half": [1.0, 0.0],
    }


class Moody(nn.Module):
    """Trains one batch norm, keeps another frozen, and fails in the pass that it is told to."""

    def __init__(self, fail_at: int) -> None:
        super().__init__()
        self.bn, self.frozen, self.net = nn.BatchNorm2d(1), nn.BatchNorm2d(1), small_net()
        self.fail_at, self.calls = fail_at, 0
        self.train()
        self.frozen.eval()
        self.net[1].bias.requires_grad_(False)  # type: ignore[index]
        self.net[1].weight.grad = torch.ones(32, 64)  # type: ignore[index]

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == self.fail_at:
            raise RuntimeError("planted")
        logits: Tensor = self.net(self.frozen(self.bn(x)))
        return logits

    def state(self) -> list[Any]:
        return [
            [m.training for m in self.modules()],
            [p.requires_grad for p in self.parameters()],
            [None if p.grad is None else p.grad.tolist() for p in self.parameters()],
            [b.tolist() for b in self.buffers()],
            torch.get_rng_state().tolist(),
            [np.asarray(part).tolist() for part in np.random.get_state()],
            random.getstate(),
            torch.is_grad_enabled(),
        ]


@each
@pytest.mark.parametrize("fail_at", [0, 8])  # the seventh pass is the last before the attack
def test_d9_the_model_is_left_as_it_was(case: Case, fail_at: int) -> None:
    """Harry24k/adversarial-attacks-pytorch#21: an attack changed train and eval mode."""
    x = random_images(6)
    model = Moody(fail_at)
    y = answers(Moody(0).eval(), x)
    y[0] = (y[0] + 1) % 4
    before = model.state()
    with pytest.raises(RuntimeError, match="planted") if fail_at else nullcontext():
        case.run(model, x, y)
    assert model.state() == before
    assert model.calls >= 8


@each
def test_d10_the_number_can_be_computed_again_from_the_images(case: Case, net: nn.Module) -> None:
    """RobustBench/robustbench#7: the reported accuracy was not the one found again."""
    x = random_images(24, seed=3)
    y = answers(net, x)
    out = case.run(net, x, y, eps=case.eps / 2)
    assert out.success.tolist() == (answers(net, out.x_adv) != y).tolist()
    assert out.success.dtype == torch.bool


class Dropping(nn.Module):
    """Drops features in eval mode too."""

    def __init__(self) -> None:
        super().__init__()
        self.net = small_net()

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.net(dropout(x, 0.3, training=True))
        return logits


@each
def test_d10_active_dropout_is_reported_as_draws_or_refused(case: Case) -> None:
    """RobustBench/robustbench#7: one draw of a random model was reported as its accuracy."""
    model, x = Dropping(), random_images(8, seed=3)
    refusal = ""
    try:
        out = case.run(model, x, answers(model.net, x), scoring_draws=8, selection_draws=4)
    except Unsupported as error:
        refusal = str(error)
    if refusal:
        assert case.name.removeprefix("foolbox:") in refusal
        return
    assert out.draws is not None
    assert out.draws.predictions.shape == (1, 8, 8)
    assert out.success.dtype == torch.float64
    wrong = (out.draws.predictions[0] != out.draws.labels[:, None]).double().mean(dim=1)
    assert torch.equal(out.success, wrong)


@pytest.mark.parametrize("case", cases("eot"), ids=str)
def test_d11_many_draws_find_the_optimum_and_one_does_not(case: Case) -> None:
    """bethgelab/foolbox#191, fra31/auto-attack#15: an expectation over the model's randomness."""
    w = torch.linspace(0.5, 1.5, 64) * torch.tensor([1.0, -1.0]).repeat(32)
    x, y = torch.full((12, 1, 8, 8), 0.5), torch.ones(12, dtype=torch.long)
    # The furthest fall of the expected margin in the ball, in closed form.
    furthest = {Norm.LINF: w.abs().sum(), Norm.L2: w.norm()}[case.norm] * case.eps
    reached, passes = {}, {}
    for samples in (1, 20):
        model = NoisyWeights(w, 0.2, spread=5.0)
        more = {k: v for k, v in {"steps": 40, "loss": "margin"}.items() if k in case.known}
        out = case.run(model, x, y, eot_samples=samples, scoring_draws=2, micro_batch=240, **more)
        fall = -((out.x_adv - 0.5).flatten(1) @ w)
        reached[samples] = float(fall.mean() / furthest)
        passes[samples] = len(model.batches)
        assert max(model.batches) == 12 * samples  # the draws run as one batch
    # APGD halves its steps where the loss stalls, which noise makes it do too early.
    assert reached[20] >= (0.9 if case.name.startswith("pgd-") else 0.75)
    assert reached[1] <= 0.7
    assert passes[20] == passes[1]


@each
def test_d12_a_batch_takes_the_calls_of_its_slowest_image(case: Case, net: nn.Module) -> None:
    """Trusted-AI/adversarial-robustness-toolbox#970: one image at a time went through the model."""
    x = random_images(8, seed=4)
    y = answers(net, x)
    model = Recorder(net)
    case.run(model, x, y)
    together = len(model.shown)
    alone = []
    for i in range(8):  # all: one of them may need most of the calls
        model.shown.clear()
        case.run(model, x[i : i + 1], y[i : i + 1], ids=[i])
        alone.append(len(model.shown))
    assert together <= 2 * max(alone)


@each_minimum_norm
def test_d12_the_nearest_image_seen_is_the_one_returned(case: Case, net: nn.Module) -> None:
    """Trusted-AI/adversarial-robustness-toolbox#923: the last point was returned, not the best."""
    x = random_images(16, seed=4)
    y = answers(net, x)
    for i in range(0, 16, 5):
        model = Recorder(net)
        out = case.run(model, x[i : i + 1], y[i : i + 1], ids=[i])
        shown, logits = torch.cat(model.shown), torch.cat(model.logits)
        wrong = logits.argmax(dim=1) != y[i]
        distance = measured(x[i : i + 1].expand_as(shown), shown, case.norm)[wrong.numpy()]
        assert float(out.distance[0]) <= min(distance, default=np.inf) * (1 + 1e-6)
