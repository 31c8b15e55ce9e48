"""The three forms of HDGE's contrastive term, against values worked by hand."""

from __future__ import annotations

import importlib
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bench.registry import TRAINERS

TRAINERS["hdge"]  # the room is searched: its modules can be had by name
contrastive = importlib.import_module("bench.baselines.contrastive")
objectives = importlib.import_module("bench.baselines.objectives")


def step_with(logits: Tensor, y: Tensor) -> Any:
    z = torch.zeros(len(logits), 1, 2, 2)
    return objectives.Step(
        network=nn.Identity(),
        z=z,
        y=y,
        logits=logits,
        unlabelled=z,
        generator=torch.Generator().manual_seed(0),
    )


def term(form: str, classes: int, negatives: int, temperature: float = 0.1) -> Any:
    options = contrastive.QueueOptions(n_negatives=negatives, temperature=temperature)
    generator = torch.Generator().manual_seed(0)
    return getattr(contrastive, form)(options, classes, generator)


def by_hand(form: str, logits: Tensor, y: Tensor, queue: Tensor, temperature: float) -> float:
    """The loss written out image by image, in the public code's order of operations."""
    total = 0.0
    unit = logits.double() / logits.double().norm(dim=1, keepdim=True)
    stored = queue.double() / queue.double().norm(dim=1, keepdim=True)
    for row, label in zip(unit, y.tolist(), strict=True):
        scores = []
        for vector in [row, *stored]:
            if form == "Masked":
                scores.append(float(vector[label]) / temperature)
            else:
                one_hot = torch.zeros(len(vector), dtype=torch.float64)
                one_hot[label] = 1.0
                scores.append(float((vector * one_hot).logsumexp(dim=0)) / temperature)
        total += math.log(sum(math.exp(s) for s in scores)) - scores[0]
    return total / len(y)


@pytest.mark.parametrize("form", ["Algorithm1", "Masked"])
def test_the_loss_is_the_public_codes_written_out(form: str) -> None:
    generator = torch.Generator().manual_seed(1)
    logits, y = 3.0 * torch.randn(4, 5, generator=generator), torch.tensor([0, 4, 2, 2])
    subject = term(form, classes=5, negatives=7, temperature=0.5)
    queue = subject.memory["queue"].clone()
    assert float(subject(step_with(logits, y))) == pytest.approx(
        by_hand(form, logits, y, queue, 0.5), abs=1e-5
    )


@pytest.mark.parametrize(("classes", "floor"), [(10, 8.85), (100, 10.86)])
def test_algorithm_1_has_the_range_that_its_zeros_leave_it(classes: int, floor: float) -> None:
    # log(C - 1 + e^p), p in [-1, 1], over T: 65,536 negatives leave [floor, ln(1 + K) + ...].
    subject = term("Algorithm1", classes, negatives=65_536)
    generator = torch.Generator().manual_seed(2)
    random = torch.randn(256, classes, generator=generator)
    y = torch.randint(classes, (256,), generator=generator)
    assert float(subject(step_with(random, y))) == pytest.approx(math.log(1 + 65_536), abs=0.1)
    # The best there can be: the positive at +1, every negative at -1 under every label.
    subject.memory["queue"] = torch.full((65_536, classes), -1.0)
    best = torch.nn.functional.one_hot(y, classes).float()
    assert float(subject(step_with(best, y))) == pytest.approx(floor, abs=0.01)


def test_a_true_mask_gives_a_range_of_twenty_nats() -> None:
    y = torch.arange(10)
    best, losses = torch.eye(10), []
    for sign in (-1.0, 1.0):
        subject = term("Masked", classes=10, negatives=65_536)
        subject.memory["queue"] = torch.full((65_536, 10), sign)
        losses.append(float(subject(step_with(-sign * best, y))))
    floor = math.log1p(65_536 * math.exp(-20))
    ceiling = math.log1p(65_536 * math.exp(20))
    assert losses == pytest.approx([floor, ceiling], abs=1e-4)
    # Algorithm 1 has 2.24 nats for the same change (ten classes).
    assert (math.log(9 + math.e) - math.log(9 + 1 / math.e)) / 0.1 == pytest.approx(2.24, abs=0.01)


@pytest.mark.parametrize("form", ["Algorithm1", "Masked"])
def test_the_scale_of_the_logits_does_not_enter(form: str) -> None:
    logits, y = torch.randn(6, 10, generator=torch.Generator().manual_seed(3)), torch.arange(6)
    one, other = term(form, 10, 32), term(form, 10, 32)
    assert float(one(step_with(logits, y))) == pytest.approx(
        float(other(step_with(50.0 * logits, y))), abs=1e-5
    )


def test_the_queue_takes_the_newest_in_place_of_the_oldest() -> None:
    subject = term("Masked", classes=2, negatives=5)
    batches = [torch.tensor([[3.0, 4.0]]).repeat(3, 1) * k for k in (1, 2, 3)]
    for number, batch in enumerate(batches):
        angle = torch.tensor([[math.cos(number), math.sin(number)]])
        subject(step_with(angle.repeat(len(batch), 1), torch.zeros(3, dtype=torch.int64)))
    # Rows 0-2 had batch 0, rows 3, 4, 0 batch 1, rows 1, 2, 3 batch 2.
    expected = torch.tensor([[math.cos(n), math.sin(n)] for n in (1, 2, 2, 2, 1)])
    torch.testing.assert_close(subject.memory["queue"], expected)


def test_stored_negatives_carry_no_gradient_and_those_of_equation_13_do() -> None:
    logits = torch.randn(8, 4, generator=torch.Generator().manual_seed(4)).requires_grad_()
    y = torch.zeros(8, dtype=torch.int64)
    (detached,) = torch.autograd.grad(term("Masked", 4, 16)(step_with(logits, y)), logits)
    # With stored negatives, raising the unit logit of the label always lowers the loss.
    along = (detached * torch.nn.functional.normalize(logits, dim=1)).sum(dim=1)
    torch.testing.assert_close(along, torch.zeros(8), atol=1e-6, rtol=0)
    assert (detached[:, 0] < 0).all()
    # In the batch, what one image gains the others lose: the gradients of a column sum to zero.
    (in_batch,) = torch.autograd.grad(contrastive.Equation13()(step_with(logits, y)), logits)
    torch.testing.assert_close(in_batch[:, 0].sum(), torch.tensor(0.0), atol=1e-6, rtol=0)
    assert (in_batch[:, 0] > 0).any()
    assert (in_batch[:, 1:] == 0).all()


def test_equation_13_by_hand() -> None:
    logits, y = torch.tensor([[1.0, 5.0], [0.0, 2.0]]), torch.tensor([0, 1])
    # Image 0: log((e^1 + e^0) / 2) - 1; image 1: log((e^5 + e^2) / 2) - 2.
    expected = (math.log((math.e + 1) / 2) - 1 + math.log((math.e**5 + math.e**2) / 2) - 2) / 2
    value = float(contrastive.Equation13()(step_with(logits, y)))
    assert value == pytest.approx(expected, abs=1e-6)


def test_equation_13_is_zero_for_a_constant_and_at_least_minus_log_batch() -> None:
    term_13, y = contrastive.Equation13(), torch.arange(8)
    assert float(term_13(step_with(torch.full((8, 8), 7.0), y))) == pytest.approx(0.0, abs=1e-6)
    perfect = 100.0 * torch.eye(8)
    assert float(term_13(step_with(perfect, y))) == pytest.approx(-math.log(8), abs=1e-5)
