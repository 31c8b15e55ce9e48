"""The pointwise attack: fewest changes that are known, what it asks, and what it returns."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bench
from bench.context import Context
from bench.errors import InputError
from bench.noise import Noise, bound
from bench.registry import ATTACKS
from bench.types import Norm
from tests.attacks.toys import Islands, Recorder, answers, random_images

Digits = tuple[Tensor, Tensor]
LEVELS = 0.2  # entries of the clean images; more than 1/2 counts as changed


class Weighed(nn.Module):
    """Class 1 where the weights of the changed entries sum up to ``least``."""

    def __init__(self, weights: Tensor, least: float) -> None:
        super().__init__()
        self.register_buffer("weights", weights)
        self.least = least

    def forward(self, x: Tensor) -> Tensor:
        weights: Tensor = self.weights  # type: ignore[assignment]
        away = (x.flatten(1) > 0.5).float() @ weights - self.least + 0.05
        return torch.stack([-away, away], dim=1)


class Liar(nn.Module):
    """A model with a wrong answer in one draw of five, whatever the input."""

    stochastic = True

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        raise AssertionError("draws come from sample_logits")

    def sample_logits(self, x: Tensor, noise: Noise) -> Tensor:
        logits: Tensor = self.model(x)
        return torch.where(noise.uniform(1) < 0.2, -logits, logits)


def any_of(count: int, least: int) -> Weighed:
    """Return a model that ``least`` of the first ``count`` entries make wrong."""
    return Weighed((torch.arange(64) < count).float(), least)


def images(count: int = 6) -> Digits:
    return torch.full((count, 1, 8, 8), LEVELS), torch.zeros(count, dtype=torch.int64)


def changed(x_adv: Tensor, x: Tensor) -> Tensor:
    return (x_adv != x).flatten(1).sum(dim=1)


@pytest.mark.parametrize(("count", "least"), [(64, 1), (64, 20), (30, 7), (9, 9)])
def test_the_fewest_changes_are_found(count: int, least: int) -> None:
    x, y = images()
    out = bench.attack("pointwise-l0", any_of(count, least), x, y)
    assert bool(out.success.all())
    assert out.distance.tolist() == [least] * 6
    assert torch.equal(out.distance, changed(out.x_adv, x).double())
    assert not bool((out.x_adv != x).flatten(1)[:, count:].any())


def test_rounds_get_out_of_an_end_where_no_entry_can_go_back() -> None:
    """Fifteen light entries, or two heavy and five light, or three heavy ones."""
    weights = torch.full((64,), 0.2)
    weights[[5, 30, 50]] = 1.0
    x, y = images(16)
    light = x.flatten(1).clone()
    light[:, [k for k in range(20) if k != 5]] = 1.0
    starts = light.view_as(x)
    model = Weighed(weights, 3)
    first = bench.attack("pointwise-l0", model, x, y, starts=starts, queries=20)
    assert first.distance.tolist() == [15] * 16
    out = bench.attack("pointwise-l0", model, x, y, starts=starts)
    assert float(out.distance.max()) <= 8
    assert float(out.distance.min()) == 3


def test_no_changed_entry_can_go_back_alone(trained_net: nn.Module, test_digits: Digits) -> None:
    x, y = test_digits
    out = bench.attack("pointwise-l0", trained_net, x, y, queries=300)
    right = out.clean_pred == y
    assert bool(out.success.all())
    assert torch.equal(out.distance, changed(out.x_adv, x).double())
    assert bool((answers(trained_net, out.x_adv) != y).all())
    assert 1 <= float(out.distance[right].mean()) < 4
    for point, clean, label in zip(out.x_adv[right], x[right], y[right], strict=True):
        places = (point != clean).flatten().nonzero()[:, 0]
        without = point.flatten().repeat(len(places), 1)
        without[torch.arange(len(places)), places] = clean.flatten()[places]
        assert bool((answers(trained_net, without.view(-1, 1, 8, 8)) == label).all())


def test_an_image_does_not_depend_on_its_batch(trained_net: nn.Module, test_digits: Digits) -> None:
    x, y = test_digits

    def run(rows: slice, size: int = 128) -> Tensor:
        ids = list(range(64))[rows]
        return bench.attack(
            "pointwise-l0", trained_net, x[rows], y[rows], ids=ids, queries=30, micro_batch=size
        ).x_adv

    whole = run(slice(None))
    # An answer within rounding of the boundary may differ.
    same = (run(slice(None), 7) == whole).flatten(1).all(dim=1)
    assert int(same.sum()) >= 63
    for i in (0, 3, 6):
        alone = run(slice(i, i + 1))
        assert torch.equal(alone[0], whole[i]) or not bool(same[i])
    other = bench.attack("pointwise-l0", trained_net, x, y, queries=30, seed=1).x_adv
    assert int((other == whole).flatten(1).all(dim=1).sum()) < 40


def test_the_batch_is_asked_at_once_and_no_more_than_was_said() -> None:
    """Some questions for a start, then ``queries``, the verdict and the passes around it."""
    x, y = images(16)
    x = x + 0.005 * torch.arange(16)[:, None, None, None]
    model = Recorder(any_of(64, 20))
    out = bench.attack("pointwise-l0", model, x, y, queries=50, starts=torch.ones_like(x))
    assert out.queries.tolist() == [51] * 16
    attacked = [call for call in model.shown if len(call) == 16]
    assert 51 <= len(attacked) <= 51 + 12
    fewest = torch.full((16,), 64)
    for call in attacked:
        wrong = (call > 0.5).flatten(1).sum(dim=1) >= 20
        fewest = torch.where(wrong, fewest.minimum(changed(call, x)), fewest)
    assert out.distance.tolist() == fewest.tolist()


def test_given_starts_are_used_and_nothing_is_added_to_them() -> None:
    x, y = images(4)
    starts = x.clone()
    starts[:3].flatten(1)[:, 10:25] = 0.75
    out = bench.attack("pointwise-l0", any_of(64, 12), x, y, starts=starts, queries=8)
    assert bool(out.success.all())  # the last start was none
    first = out.x_adv[:3].flatten(1)
    assert set(first.flatten().tolist()) == {float(x[0, 0, 0, 0]), 0.75}
    assert not bool((first != LEVELS)[:, :10].any() | (first != LEVELS)[:, 25:].any())
    assert float(out.distance[:3].max()) <= 15


def test_where_no_image_is_misclassified_the_clean_one_is_returned() -> None:
    sea, island = torch.full((1, 1, 8, 8), 0.95), 0.1 + 0.1 * random_images(1)
    x = torch.cat([sea, island, sea])
    y = torch.tensor([1, 0, 1])
    out = bench.attack("pointwise-l0", Islands(island), x, y, queries=60)
    assert out.success.tolist() == [False, True, False]
    assert torch.equal(out.x_adv[[0, 2]], x[[0, 2]])
    assert out.distance[[0, 2]].tolist() == [math.inf] * 2
    assert math.isfinite(float(out.distance[1]))


def test_a_wrong_image_costs_nothing_and_the_others_do_not_notice() -> None:
    x, y = images(4)
    model = any_of(64, 20)
    before = bench.attack("pointwise-l0", model, x, y, queries=60)
    y = y.clone()
    y[2] = 1
    out = bench.attack("pointwise-l0", model, x, y, queries=60)
    assert out.queries.tolist()[2] == 0
    assert out.distance[2] == 0
    assert bool(out.success[2])
    others = [0, 1, 3]
    assert torch.equal(out.x_adv[others], before.x_adv[others])
    assert torch.equal(out.queries[others], before.queries[others])


def test_budgets_count_entries(trained_net: nn.Module, test_digits: Digits) -> None:
    x, y = test_digits[0][:16], test_digits[1][:16]
    nearest = bench.attack("pointwise-l0", trained_net, x, y, queries=100)
    out = bench.attack("pointwise-l0", trained_net, x, y, queries=100, eps=[3, 1, 2])
    for number, eps in enumerate((3, 1, 2)):
        assert torch.equal(out.success[number], nearest.distance <= eps)
        assert float(out.distance[number].max()) <= eps
    assert torch.equal(out.queries, nearest.queries)


def test_bisections_lower_l2_and_leave_l0(trained_net: nn.Module, test_digits: Digits) -> None:
    x, y = test_digits[0][:24], test_digits[1][:24]
    plain = bench.attack("pointwise-l0", trained_net, x, y, queries=60)
    moved = bench.attack("pointwise-l0", trained_net, x, y, queries=60, bisections=10)
    assert bool(moved.success.all())
    assert torch.equal(moved.distance, plain.distance)
    l2 = Norm.L2
    assert bool((moved.distances[l2] <= plain.distances[l2]).all())
    assert int((moved.distances[l2] < 0.99 * plain.distances[l2]).sum()) >= 18
    asked = plain.distance.long() * 10 * (plain.queries > 0)
    assert torch.equal(moved.queries - plain.queries, asked)


def test_when_time_is_up_the_best_so_far_is_returned() -> None:
    x, y = images(2)
    asked = 0

    def late() -> bool:
        nonlocal asked
        asked += 1
        return asked > 12

    noise = bound(0, "late", range(2))
    context = Context(noise=noise, out_of_time=late)
    out = bench.attack(
        "pointwise-l0", any_of(64, 20), x, y, starts=torch.ones_like(x), context=context
    )
    assert out.queries.tolist() == [13] * 2
    assert bool(out.success.all())
    assert float(out.distance.max()) < 64


@pytest.mark.parametrize("options", [{"queries": 0}, {"votes": 0}, {"bisections": -1}])
def test_impossible_numbers_are_refused(options: dict[str, Any]) -> None:
    x, y = images(1)
    with pytest.raises(InputError, match="queries and votes of at least 1"):
        bench.attack("pointwise-l0", any_of(64, 1), x, y, **options)


def test_lies_of_a_model_do_not_make_fewer_changes_enough() -> None:
    x, y = images(8)
    model = Liar(any_of(64, 10))
    out = bench.attack("pointwise-l0", model, x, y, queries=200, gradients=("straight-through",))
    assert out.draws is not None
    assert bool(out.draws.broken.all())
    assert out.distance.tolist() == [10] * 8


def test_lies_of_a_model_do_not_move_an_entry_too_far() -> None:
    """What is judged elsewhere is moved away a little: here it is the attack's own candidates."""
    x, y = images(40)
    kind: Any = ATTACKS["pointwise-l0"]
    attack = kind(queries=100, bisections=8)
    context = Context(noise=bound(0, "lies", range(40)))
    found = attack(Liar(any_of(64, 10)), x, y, context)
    enough = answers(any_of(64, 10), found) == 1
    assert int(enough.sum()) >= 38
    entries = found[enough & (changed(found, x) == 10)]
    moved = entries.flatten(1).sort(dim=1).values[:, -10:]
    assert float(moved.median()) == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("name", ["pointwise-l0", "boundary-l2"])
@pytest.mark.parametrize("micro_batch", [128, 2])
def test_each_image_starts_at_its_own_start(name: str, micro_batch: int) -> None:
    model, (x, y) = any_of(64, 1), images(6)
    starts = x.clone()
    starts.flatten(1)[torch.arange(6), torch.arange(6)] = 1.0
    number = "queries" if name == "pointwise-l0" else "steps"
    more: dict[str, Any] = {number: 3}
    out = bench.attack(name, model, x, y, starts=starts, micro_batch=micro_batch, **more)
    moved = (out.x_adv - x).flatten(1).abs()
    assert moved.argmax(dim=1).tolist() == list(range(6))
