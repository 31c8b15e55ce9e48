"""`bench.attack`: what goes in, what is measured, and who is caught."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bench.attacking import attack
from bench.context import Context
from bench.errors import InputError, ModelError, UnknownName
from bench.noise import bound
from bench.registry import ATTACKS
from bench.types import Norm

Digits = tuple[Tensor, Tensor]


def test_a_sweep_agrees_with_each_budget_alone(trained_net: nn.Module, test_digits: Digits) -> None:
    x, y = test_digits
    eps = [0.3, 0.0, 0.05, 0.1]  # any order
    out = attack("pgd-linf", trained_net, x, y, eps=eps)
    assert out.x_adv.shape == (4, *x.shape)
    assert out.eps == tuple(eps)
    for i, budget in enumerate(eps):
        alone = attack("pgd-linf", trained_net, x, y, eps=budget)
        assert alone.x_adv.shape == x.shape
        # A sweep starts elsewhere: as another random start, it turns an image now and then.
        assert int((alone.success != out.success[i]).sum()) <= 2
    accuracy = 1 - out.success.double().mean(dim=1)
    order = [1, 2, 3, 0]
    assert accuracy[order].tolist() == sorted(accuracy.tolist(), reverse=True)
    assert accuracy[1] > 0.9
    assert accuracy[0] < 0.1
    # What broke at a small budget is the same image at every larger one.
    broken = out.success[2]
    assert torch.equal(out.x_adv[3][broken], out.x_adv[2][broken])


def test_success_distance_and_margin_can_be_recomputed(
    trained_net: nn.Module, test_digits: Digits
) -> None:
    x, y = test_digits
    out = attack("pgd-l2", trained_net, x, y, eps=0.7)
    with torch.no_grad():
        logits = trained_net(out.x_adv)
    assert torch.equal(out.success, logits.argmax(dim=1) != y)
    change = (out.x_adv.double() - x.double()).flatten(1).numpy()
    assert out.distance.numpy() == pytest.approx(np.linalg.norm(change, axis=1), rel=1e-12)
    assert out.distances[Norm.LINF].numpy() == pytest.approx(np.abs(change).max(axis=1))
    assert out.distances[Norm.L0].tolist() == np.count_nonzero(change, axis=1).tolist()
    others = logits.clone()
    others[torch.arange(len(y)), y] = -np.inf
    assert out.margin == pytest.approx(
        logits[torch.arange(len(y)), y] - others.amax(dim=1), abs=1e-4
    )


def test_wrong_when_clean_is_broken_at_no_cost(trained_net: nn.Module, test_digits: Digits) -> None:
    x = test_digits[0][:4]
    y = trained_net(x).argmax(dim=1)
    y[2] = (y[2] + 1) % 10
    out = attack("pgd-linf", trained_net, x, y, eps=[0.0, 0.01, 0.3], restarts=2, steps=5)
    assert out.success[:, 2].all()
    assert (out.distance[:, 2] == 0).all()
    assert torch.equal(out.x_adv[:, 2], x[2].expand(3, -1, -1, -1))
    assert out.queries[2] == 0
    assert (out.queries[[0, 1, 3]] > 0).all()
    assert (out.clean_pred != y).tolist() == [False, False, True, False]
    assert out.success.shape == (3, 4)  # the denominator stays


def test_all_wrong_when_clean_never_calls_the_attack(
    trained_net: nn.Module, test_digits: Digits
) -> None:
    x = test_digits[0][:3]
    y = (trained_net(x).argmax(dim=1) + 1) % 10
    out = attack("pgd-l2", trained_net, x, y, eps=1.0)
    assert out.success.all()
    assert out.queries.tolist() == [0, 0, 0]


@pytest.mark.parametrize("name", ["pgd-linf", "pgd-l2"])
def test_queries_are_counted_for_each_image(name: str) -> None:
    class Counting(nn.Module):
        rows = 0

        def forward(self, x: Tensor) -> Tensor:
            self.rows += len(x)
            u = x.flatten(1).sum(dim=1)
            return torch.stack([torch.zeros_like(u), 10 * (u - 4)], dim=1)

    model = Counting()
    x = torch.stack([torch.full((1, 2, 4), 0.51), torch.full((1, 2, 4), 0.9)])
    out = attack(name, model, x, [1, 1], eps=[0.1, 0.15], restarts=3, steps=10)
    assert out.success[:, 0].tolist() == [True, True]
    assert not out.success[:, 1].any()
    assert out.queries[0] < 11
    assert out.queries[1] == 3 * 11  # what withstands the larger budget withstands the smaller
    detection = 6 * 2 + (4 + 2 + 1)  # the same images over and over, and in other company
    clean, verdicts = 2, 2 + 1
    assert model.rows == int(out.queries.sum()) + detection + clean + verdicts


def test_restarts_break_more_and_early_stop_off_goes_further(
    trained_net: nn.Module, test_digits: Digits
) -> None:
    x, y = test_digits
    one = attack("pgd-linf", trained_net, x, y, eps=0.09, steps=5)
    many = attack("pgd-linf", trained_net, x, y, eps=0.09, steps=5, restarts=5)
    assert (many.success >= one.success).all()
    assert int(many.success.sum()) > int(one.success.sum())
    on = attack("pgd-linf", trained_net, x, y, eps=0.09, steps=5, early_stop=False)
    assert torch.equal(on.success, one.success)
    right = on.clean_pred == y
    assert (on.margin[right] <= one.margin[right] + 1e-4).all()
    assert float(on.margin[on.success].mean()) < 2 * float(one.margin[one.success].mean())


def test_step_size_may_differ_from_budget_to_budget(
    trained_net: nn.Module, test_digits: Digits
) -> None:
    x, y = test_digits[0][:8], test_digits[1][:8]
    eps, sizes = [0.2, 0.05], [0.05, 0.0125]
    same = attack("pgd-linf", trained_net, x, y, eps=eps, step_size=sizes)
    assert torch.equal(same.x_adv, attack("pgd-linf", trained_net, x, y, eps=eps).x_adv)
    with pytest.raises(InputError, match="2 values of eps"):
        attack("pgd-linf", trained_net, x, y, eps=eps, step_size=[0.1])


@pytest.mark.parametrize(
    "convert",
    [
        lambda x, y: ((x * 16).round().mul(15).to(torch.uint8), y),
        lambda x, y: (x.double().numpy(), y.int().numpy()),
        lambda x, y: (torch.where(x == 0, -3e-8, x), y.tolist()),
    ],
)
def test_images_and_labels_come_in_many_forms(
    trained_net: nn.Module, test_digits: Digits, convert: Callable[..., tuple[Any, Any]]
) -> None:
    x, y = test_digits[0][:6], test_digits[1][:6]
    out = attack("pgd-linf", trained_net, *convert(x, y), eps=0.0)
    assert out.x_adv.dtype == torch.float32
    expected = (x * 16).round() * 15 / 255 if convert(x, y)[0].dtype == torch.uint8 else x
    assert torch.equal(out.x_adv, expected)


@pytest.mark.parametrize(
    ("x", "y", "eps", "message"),
    [
        (torch.rand(2, 1, 8, 8) * 2 - 1, [0, 1], 0.1, r"from -.* to .*expected \[0, 1\]"),
        (torch.rand(2, 1, 8, 8) * 255, [0, 1], 0.1, r"expected \[0, 1\]: divide by 255"),
        (torch.full((2, 1, 8, 8), np.nan), [0, 1], 0.1, "NaN"),
        (torch.ones(2, 1, 8, 8, dtype=torch.int64), [0, 1], 0.1, "int64"),
        (torch.rand(0, 1, 8, 8), [], 0.1, "empty batch"),
        (torch.rand(2, 8, 8), [0, 1], 0.1, r"\(B, C, H, W\)"),
        (torch.rand(2, 1, 8, 8), [0, 10], 0.1, "labels go up to 10 .* 10 classes"),
        (torch.rand(2, 1, 8, 8), [0, -1], 0.1, "labels start at -1"),
        (torch.rand(2, 1, 8, 8), [0.5, 1.0], 0.1, "integer class numbers"),
        (torch.rand(2, 1, 8, 8), [0, 1, 2], 0.1, r"shape \(2,\)"),
        (torch.rand(2, 1, 8, 8), [0, 1], -0.1, "at least 0"),
        (torch.rand(2, 1, 8, 8), [0, 1], [0.1, np.nan], "at least 0"),
        (torch.rand(2, 1, 8, 8), [0, 1], [], "at least 0"),
    ],
)
def test_impossible_requests_are_refused(
    trained_net: nn.Module, x: Tensor, y: Any, eps: Any, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        attack("pgd-linf", trained_net, x, y, eps=eps)


def test_names_options_and_ids_are_checked(trained_net: nn.Module) -> None:
    x = torch.rand(2, 1, 8, 8)
    with pytest.raises(UnknownName, match="pgd-linf"):
        attack("pgd-lnf", trained_net, x, [0, 1], eps=0.1)
    with pytest.raises(InputError, match=r"no option stepz; it has .*steps"):
        attack("pgd-linf", trained_net, x, [0, 1], eps=0.1, stepz=3)
    with pytest.raises(InputError, match="steps, restarts"):
        attack("pgd-linf", trained_net, x, [0, 1], eps=0.1, steps=0)
    with pytest.raises(InputError, match="loss one of"):
        attack("pgd-linf", trained_net, x, [0, 1], eps=0.1, loss="hinge")
    with pytest.raises(InputError, match="3 ids for 2 images"):
        attack("pgd-linf", trained_net, x, [0, 1], eps=0.1, ids=[0, 1, 2])


@pytest.mark.parametrize(
    ("logits", "message"),
    [
        (lambda n: torch.full((n, 3), np.nan), "NaN"),
        (lambda n: torch.zeros(n), r"expected logits \("),
        (lambda n: torch.zeros(n, 1), "two classes"),
        (lambda n: torch.zeros(1, 3), r"expected logits \("),
    ],
)
def test_models_that_break_the_contract_are_named(
    logits: Callable[[int], Tensor], message: str
) -> None:
    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return logits(len(x))

    with pytest.raises(ModelError, match=message):
        attack("pgd-linf", Broken(), torch.rand(2, 1, 2, 2), [0, 0], eps=0.1)
    with pytest.raises(ModelError, match=r"nn\.Module"):
        attack("pgd-linf", lambda x: x, torch.rand(2, 1, 2, 2), [0, 0], eps=0.1)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class Cheat:
    """An attack that returns what it is told to."""

    eps: float
    what: Callable[[Tensor, float], Any]
    norm: Norm = field(default=Norm.LINF, init=False)

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, context: Context) -> Any:
        return self.what(x, self.eps)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (lambda x, eps: (x + 2 * eps).clamp(0, 1), "'Cheat' went 0.2"),
        (lambda x, eps: (x + 1.00001 * eps).clamp(0, 1), "'Cheat' went 0.1"),
        (lambda x, eps: x + eps, "'Cheat' returned pixel values"),
        (lambda x, eps: x - eps, "'Cheat' returned pixel values"),
        (lambda x, eps: x * np.nan, "'Cheat' returned pixel values"),
        (lambda x, eps: x[:1], "'Cheat' returned .* one candidate"),
        (lambda x, eps: x.add_(0.3).clamp_(0, 1), "'Cheat' went"),  # moves its input along
    ],
)
def test_cheating_attacks_are_caught(
    trained_net: nn.Module, test_digits: Digits, what: Callable[..., Any], message: str
) -> None:
    x, y = test_digits[0][:8], test_digits[1][:8]
    before = x.clone()
    with pytest.raises(InputError, match=message):
        attack(Cheat(eps=0.1, what=what), trained_net, x, y, eps=[0.1])
    assert torch.equal(x, before)


def test_a_sweep_that_cheats_is_caught(trained_net: nn.Module, test_digits: Digits) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Sweeping(Cheat):
        def sweep(
            self, model: nn.Module, x: Tensor, y: Tensor, context: Context, eps: tuple[float, ...]
        ) -> Tensor:
            moved = x.add_(0.3).clamp_(0, 1)
            return moved.expand(len(eps), *x.shape)

    x, y = test_digits[0][:8], test_digits[1][:8]
    with pytest.raises(InputError, match="'Sweeping' went"):
        attack(Sweeping(eps=0.1, what=lambda x, eps: x), trained_net, x, y, eps=[0.1, 0.2])


def test_an_attack_without_a_sweep_gets_only_what_is_unbroken(
    trained_net: nn.Module, test_digits: Digits
) -> None:
    x, y = test_digits
    asked: list[int] = []

    @dataclass(frozen=True, kw_only=True)
    class Looped:
        eps: float
        norm: Norm = field(default=Norm.LINF, init=False)

        def __call__(self, model: nn.Module, x: Tensor, y: Tensor, context: Context) -> Tensor:
            assert len(context.noise) == len(x)
            asked.append(len(x))
            return ATTACKS["pgd-linf"](eps=self.eps)(  # type: ignore[no-any-return]
                model, x, y, context=Context(noise=context.noise)
            )

    eps = [0.05, 0.1, 0.15]
    ours = attack("pgd-linf", trained_net, x, y, eps=eps, task="t")
    looped = attack(Looped(eps=0.0), trained_net, x, y, eps=eps, task="t")
    # Two searches from other random points: what they break differs by a few images at most.
    change = ours.success.double().mean(dim=1) - looped.success.double().mean(dim=1)
    assert (change.abs() < 0.05).all()
    right = int((looped.clean_pred == y).sum())
    wrong = len(x) - right
    left = [right] + [len(x) - int(s.sum()) for s in looped.success[:-1]]
    assert asked == left
    assert wrong + right == len(x)
    assert (looped.queries[looped.clean_pred != y] == 0).all()
    assert (looped.queries[looped.clean_pred == y] > 0).all()


def test_an_attack_object_and_a_context_do_as_well(
    trained_net: nn.Module, test_digits: Digits
) -> None:
    x, y = test_digits[0][:8], test_digits[1][:8]
    context = Context(noise=bound(5, "task", range(8)), micro_batch=3)
    out = attack(ATTACKS["pgd-l2"](eps=9.0, steps=7), trained_net, x, y, eps=0.8, context=context)
    same = attack("pgd-l2", trained_net, x, y, eps=0.8, steps=7, seed=5, task="task", micro_batch=3)
    assert torch.equal(out.x_adv, same.x_adv)


def test_gradients_are_needed_and_found_in_the_callers_no_grad(
    trained_net: nn.Module, test_digits: Digits
) -> None:
    x, y = test_digits[0][:8], test_digits[1][:8]
    expected = attack("pgd-linf", trained_net, x, y, eps=0.1).x_adv
    with torch.no_grad():
        assert torch.equal(attack("pgd-linf", trained_net, x, y, eps=0.1).x_adv, expected)
    with torch.inference_mode():
        found = attack("pgd-linf", trained_net, x + 0, y + 0, eps=0.1).x_adv
    assert torch.equal(found, expected)
