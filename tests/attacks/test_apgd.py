"""Auto-PGD against the paper's algorithm step by step, against geometry, and in its options."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bench.attacking import attack, attack_stochastic
from bench.context import Context
from bench.errors import InputError
from bench.noise import bound
from bench.registry import ATTACKS, discover
from tests.attacks.toys import Linear, NoisyWeights, Recorder

discover()
room = ATTACKS.entry("apgd-linf").module.rpartition(".")[0]
checkpoints = import_module(f"{room}.ascent").checkpoints
targeted_dlr = import_module(f"{room}.losses_targeted").targeted_dlr

NAMES = ["apgd-linf", "apgd-l2", "apgd-t-linf", "apgd-t-l2"]
Digits = tuple[Tensor, Tensor]


def around(count: int, **more: Any) -> Context:
    return Context(noise=bound(0, "t", range(count)), **more)


def margin(logits: Tensor, y: Tensor) -> Tensor:
    others = logits.scatter(1, y[:, None], -torch.inf)
    return logits.gather(1, y[:, None])[:, 0] - others.amax(dim=1)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        # By hand: p = 0, .22, .41, .57, .70, .80, .87, .93, .99.
        (100, (22, 41, 57, 70, 80, 87, 93, 99)),
        (20, (5, 9, 12, 14, 16, 18, 19)),
        (1, ()),
    ],
)
def test_checkpoints_are_the_papers(steps: int, expected: tuple[int, ...]) -> None:
    assert checkpoints(steps) == expected


class Bowl(nn.Module):
    """Two classes; their gap is a smooth, uneven function of three pixels."""

    def forward(self, x: Tensor) -> Tensor:
        u = x.flatten(1)
        gap = 3 - torch.sin(9 * u[:, 0]) - (u[:, 1] - 0.45).abs() * 2 + u[:, 2] * u[:, 0]
        return torch.stack([gap, torch.zeros_like(gap)], dim=1)


def bowl(u: Any) -> tuple[Any, Any]:
    """The margin loss of `Bowl` and its gradient, by hand."""
    loss = -(3 - np.sin(9 * u[0]) - abs(u[1] - 0.45) * 2 + u[2] * u[0])
    return loss, np.array([9 * np.cos(9 * u[0]) - u[2], 2 * np.sign(u[1] - 0.45), -u[0]])


def algorithm_1(x: Any, start: Any, eps: float, steps: int, norm: str) -> list[Any]:
    """Every point that algorithm 1 of the paper evaluates, for one image, in float64."""

    def project(z: Any) -> Any:
        if norm == "linf":
            return np.clip(np.clip(z, x - eps, x + eps), 0, 1)
        length = np.linalg.norm(z - x)
        return np.clip(x + (z - x) * min(1.0, eps / length), 0, 1)

    def uphill(u: Any) -> Any:
        gradient = bowl(u)[1]
        return np.sign(gradient) if norm == "linf" else gradient / np.linalg.norm(gradient)

    seen, values, size = [start], [bowl(start)[0]], 2 * eps
    now, before, top, top_value = start, start, start, values[0]
    last, last_top, kept = 0, top_value, True
    for k in range(steps):
        z = project(now + size * uphill(now))
        alpha = 0.75 if k else 1.0
        now, before = project(now + alpha * (z - now) + (1 - alpha) * (now - before)), now
        seen.append(now)
        values.append(bowl(now)[0])
        if values[-1] > top_value:
            top, top_value = now, values[-1]
        if k + 1 in checkpoints(steps):
            rises = sum(values[i + 1] > values[i] for i in range(last, k + 1))
            halve = rises < 0.75 * (k + 1 - last) or (kept and last_top == top_value)
            if halve:
                size, now, values[-1] = size / 2, top, top_value
            last, last_top, kept = k + 1, top_value, not halve
    return seen


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_every_step_is_algorithm_1(norm: str) -> None:
    x = torch.tensor([[0.5, 0.5, 0.5], [0.2, 0.4, 0.9], [0.97, 0.02, 0.3]]).view(3, 1, 1, 3)
    model = Recorder(Bowl())
    made = ATTACKS[f"apgd-{norm}"](eps=0.2, steps=40, loss="margin")
    made(model, x, torch.zeros(3, dtype=torch.long), around(3))
    shown = torch.stack(model.shown).flatten(2).double().numpy()
    assert len(shown) == 41
    for i in range(3):
        clean = x[i].flatten().double().numpy()
        expected = algorithm_1(clean, shown[0, i], 0.2, 40, norm)
        assert shown[:, i] == pytest.approx(np.stack(expected), abs=1e-4)
        sizes = np.abs(np.diff(shown[:, i], axis=0)).max(axis=1)
        assert sizes[-5:].max() < 0.5 * sizes[:5].max()  # step sizes did fall


def test_the_targeted_dlr_by_hand() -> None:
    logits = torch.tensor([[[5.0, 3.0, 2.0, 1.0, -4.0]]])
    y, aim = torch.tensor([0]), torch.tensor([4])
    # -(z_y - z_t) / (z_pi1 - (z_pi3 + z_pi4) / 2) = -9 / (5 - 1.5)
    assert float(targeted_dlr(logits, y, aim)) == pytest.approx(-9 / 3.5)
    assert float(targeted_dlr(100 * logits, y, aim)) == pytest.approx(-9 / 3.5)
    two = torch.cat([logits, 2 * logits - 1], dim=1)
    assert float(targeted_dlr(two, y, aim)) == pytest.approx(-9 / 3.5)
    three = torch.tensor([[[5.0, 3.0, 2.0]]])
    assert float(targeted_dlr(three, y, torch.tensor([2]))) == -3


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("classes", [2, 3, 10])
def test_breaks_exactly_beyond_the_geometric_distance(name: str, classes: int) -> None:
    generator = torch.Generator().manual_seed(classes)
    model = Linear(torch.randn(classes, 64, generator=generator), torch.zeros(classes))
    x = 0.4 + 0.2 * torch.rand(4, 1, 8, 8, generator=generator)
    with torch.no_grad():
        logits = model(x)
        y = logits.argmax(dim=1)
        gaps = model.weight[y][:, None] - model.weight  # (B, classes, 64)
        size = gaps.norm(p=1 if "linf" in name else 2, dim=2)
        reach = ((logits.gather(1, y[:, None]) - logits) / size).nan_to_num(torch.inf)
        reach = torch.where(reach == 0, torch.inf, reach).amin(dim=1)
    for i, distance in list(enumerate(reach.tolist()))[: 4 if classes < 10 else 1]:
        eps = [distance * 0.998, distance * 1.002]
        options: dict[str, Any] = {"loss": "margin"} if "-t-" not in name else {}
        out = attack(name, model, x[i : i + 1], y[i : i + 1], eps=eps, steps=30, **options)
        assert out.success[:, 0].tolist() == [False, True]
        assert eps[0] < out.distance[1, 0] <= eps[1] * (1 + 1e-6)


def test_the_box_binds() -> None:
    # Pixels at 0 and 1: half of them cannot move the way their weight asks for.
    generator = torch.Generator().manual_seed(0)
    w = torch.randn(64, generator=generator)
    model = Linear(torch.stack([torch.zeros(64), w]), torch.zeros(2))
    x = (torch.rand(6, 1, 8, 8, generator=generator) > 0.5).float()
    y = model(x).argmax(dim=1)
    sign = torch.where(y == 1, 1.0, -1.0)[:, None, None, None]
    far = (x - 0.3 * sign * w.sign().view(1, 1, 8, 8)).clamp(0, 1)
    best = (model(far)[:, 1] * sign.flatten()).detach()
    for name in ("apgd-linf", "apgd-t-linf"):
        out = attack(name, model, x, y, eps=0.3, early_stop=False)
        assert out.margin.numpy() == pytest.approx(best.numpy(), abs=1e-4)


class Decoy(nn.Module):
    """Class 1 comes near and never wins; class 2, which looks hopeless, wins along another way."""

    def forward(self, x: Tensor) -> Tensor:
        u = x.flatten(1) - 0.5
        decoy = 0.9 * torch.tanh(8 * u[:, 0])
        hidden = 30 * u[:, 1] - 2 - 4 * torch.relu(u[:, 0])
        return torch.stack([0 * decoy + 1, decoy, hidden, 0 * decoy - 9, 0 * decoy - 9], dim=1)


def test_the_targeted_attack_sees_behind_a_decoy() -> None:
    x, y = torch.full((3, 1, 2, 2), 0.5), torch.zeros(3, dtype=torch.long)
    found = {
        targets: attack("apgd-t-linf", Decoy(), x, y, eps=0.15, steps=20, targets=targets)
        for targets in (1, 2, 9)
    }
    assert not found[1].success.any()  # the likeliest wrong class is the decoy
    assert found[2].success.all()
    assert found[9].success.all()
    assert (found[1].queries == 1 + 21).all()
    assert (found[2].queries > 1 + 21).all()


@pytest.mark.parametrize("name", NAMES)
def test_batch_size_does_not_matter(trained_net: nn.Module, test_digits: Digits, name: str) -> None:
    x, y = test_digits
    eps = [0.05, 0.1] if "linf" in name else [0.4, 0.8]
    small: dict[str, Any] = {"steps": 8, **({"targets": 2} if "-t-" in name else {"restarts": 2})}
    runs = {
        size: attack(name, trained_net, x, y, eps=eps, micro_batch=size, **small)
        for size in (7, 64)
    }
    ours, whole = runs[7], runs[64]
    ties = whole.margin.abs() < 1e-4
    assert torch.equal(ours.success[~ties], whole.success[~ties])
    # A sign of a gradient near zero may flip with the last bits of a convolution.
    far = (ours.x_adv - whole.x_adv).abs() > 1e-4
    assert far.double().mean() < 0.005
    same = ~far.any(dim=0).flatten(1).any(dim=1)
    assert torch.equal(ours.queries[same], whole.queries[same])
    alone = attack(name, trained_net, x[5:6], y[5:6], eps=eps, ids=[5], **small)
    assert alone.x_adv[:, 0] == pytest.approx(whole.x_adv[:, 5], abs=1e-4)


def test_those_who_leave_change_nothing_for_those_who_stay(
    trained_net: nn.Module, test_digits: Digits
) -> None:
    x, y = test_digits
    stays = attack("apgd-linf", trained_net, x, y, eps=0.08, steps=20, early_stop=False)
    leaves = attack("apgd-linf", trained_net, x, y, eps=0.08, steps=20)
    robust = ~leaves.success
    assert robust.any()
    assert leaves.success.any()
    assert torch.equal(stays.success, leaves.success)
    assert stays.x_adv[robust] == pytest.approx(leaves.x_adv[robust], abs=1e-4)
    # Whoever stays for all its steps ends with the smaller margin, at the full price.
    broken = leaves.success & (leaves.clean_pred == y)
    assert (stays.margin[broken] <= leaves.margin[broken] + 1e-4).all()
    assert (stays.queries[broken] == 21).all()
    assert (leaves.queries[broken] < 21).all()


@pytest.mark.parametrize("name", NAMES)
def test_a_sweep_carries_what_is_broken(
    trained_net: nn.Module, test_digits: Digits, name: str
) -> None:
    x, y = test_digits[0][:32], test_digits[1][:32]
    eps = [0.03, 0.08, 0.3] if "linf" in name else [0.3, 0.8, 2.5]
    small: dict[str, Any] = {"steps": 10, **({"targets": 2} if "-t-" in name else {})}
    out = attack(name, trained_net, x, y, eps=eps, **small)
    for low, high in ((0, 1), (1, 2)):
        done = out.success[low]
        assert torch.equal(out.x_adv[high][done], out.x_adv[low][done])
    single = [attack(name, trained_net, x, y, eps=e, **small) for e in eps]
    for alone, together in zip(single, out.success, strict=True):
        assert int((alone.success != together).sum()) <= 1
    assert int(out.queries.sum()) < sum(int(one.queries.sum()) for one in single)


def test_starts_are_where_the_first_run_begins() -> None:
    model = Recorder(Bowl())
    x, start = torch.full((2, 1, 1, 3), 0.5), torch.full((2, 1, 1, 3), 0.62)
    options = {"steps": 3, "loss": "margin", "restarts": 2}
    near = start.expand(2, -1, -1, -1, -1)
    made = ATTACKS["apgd-linf"](eps=0.1, **options)
    sweep = made.sweep(model, x, torch.zeros(2).long(), around(2), (0.1, 0.2), near)
    assert sweep.shape == (2, 2, 1, 1, 3)
    assert model.shown[0] == pytest.approx(0.6)  # pulled into the ball
    assert not torch.equal(model.shown[4], model.shown[0])  # the second run starts at random


@pytest.mark.parametrize("name", ["apgd-linf", "apgd-t-l2"])
def test_a_stochastic_model_is_never_left_early(name: str) -> None:
    # Every draw is wrong: a deterministic model's images would all leave at once.
    model = NoisyWeights(torch.ones(64), -1e3, spread=0.1)
    made = ATTACKS[name](eps=0.1, steps=5, eot_samples=3)
    charged: list[Tensor] = []
    x, y = torch.full((2, 1, 8, 8), 0.5), torch.ones(2, dtype=torch.long)
    made(model, x, y, around(2, spent=charged.append))
    clean = 3 if "-t-" in name else 0
    assert charged[0].tolist() == [6 * 3 + clean] * 2
    assert sum(model.batches) == 2 * (6 * 3 + clean)
    assert max(model.batches) == 2 * 3  # the draws of a step are one batch


def test_many_draws_reach_the_optimum_and_one_does_not() -> None:
    w = torch.linspace(0.5, 1.5, 64) * torch.tensor([1.0, -1.0]).repeat(32)
    x, y, eps = torch.full((16, 1, 8, 8), 0.5), torch.ones(16, dtype=torch.long), 0.1
    model = NoisyWeights(w, 0.2, spread=4.0)
    reached = {}
    for samples in (1, 20):
        out = attack_stochastic(
            "apgd-linf", model, x, y, eps=eps, eot_samples=samples, loss="margin", steps=40
        )
        fall = -((out.x_adv[0] - 0.5).flatten(1) @ w)
        reached[samples] = float(fall.mean() / (eps * w.abs().sum()))  # 1 is the optimum
    assert reached[20] > 0.8
    assert reached[1] < 0.7


@pytest.mark.parametrize("name", NAMES)
def test_no_gradient_or_nan_does_no_harm(name: str) -> None:
    class Root(nn.Module):
        """The gradient of sqrt(0) times zero is NaN, while the logits are finite."""

        def forward(self, x: Tensor) -> Tensor:
            nan = (0 * x.flatten(1).sum(dim=1)).sqrt()
            return torch.stack([nan + 1, nan, nan - 1], dim=1)

    class Constant(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.tensor([[2.0, 0.0, 1.0]]).repeat(len(x), 1)

    x = torch.full((2, 1, 3, 3), 0.5)
    for model in (Root(), Constant()):
        out = attack(name, model, x, [0, 0], eps=0.1, steps=4)
        assert out.x_adv.isfinite().all()
        assert not out.success.any()
        assert not torch.equal(out.x_adv[0], out.x_adv[1])


@pytest.mark.parametrize("name", NAMES)
def test_when_time_is_up_the_best_so_far_is_returned(
    trained_net: nn.Module, test_digits: Digits, name: str
) -> None:
    x, y = test_digits[0][:8], test_digits[1][:8]
    eps = 0.08 if "linf" in name else 0.8
    model, left = Recorder(trained_net), iter([False] * 5)
    context = around(8, out_of_time=lambda: next(left, True))
    found = ATTACKS[name](eps=eps)(model, x, y, context)
    assert len(model.shown) <= 6
    assert not torch.equal(found, x)
    seen = torch.stack([margin(z, y) for z in model.logits if len(z) == 8]).amin(dim=0)
    assert (margin(trained_net(found), y) <= seen + 1e-4).all()


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("apgd-linf", {"eps": -1.0}, "eps a finite number"),
        ("apgd-linf", {"eps": 0.1, "steps": 0}, "at least 1"),
        ("apgd-l2", {"eps": 0.1, "loss": "cw"}, "loss one of ce"),
        ("apgd-t-l2", {"eps": 0.1, "targets": 0}, "targets at least 1"),
        ("apgd-t-linf", {"eps": 0.1, "gradient": "none"}, "gradient one of"),
    ],
)
def test_impossible_options_are_refused(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        ATTACKS[name](**options)


def test_budgets_of_a_sweep_increase(trained_net: nn.Module, test_digits: Digits) -> None:
    x, y = test_digits[0][:2], test_digits[1][:2]
    with pytest.raises(InputError, match="sort them"):
        ATTACKS["apgd-linf"](eps=0.1).sweep(trained_net, x, y, around(2), (0.2, 0.1))
    with pytest.raises(InputError, match="needs a budget"):
        attack("apgd-linf", trained_net, x, y)
