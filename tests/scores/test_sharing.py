"""Scores of one batch share a pass, and no value depends on which others are asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bench.context import Context
from bench.energy import density_gradient
from bench.errors import InputError, ModelError
from bench.models import LoadedModel
from bench.noise import bound
from bench.registry import SCORES
from bench.sharing import gradient_at, shared
from bench.tasks.base import Arrays, Batch, DataRef
from bench.tasks.scores import needs_of
from bench.tasks.scoring import Scored
from tests.scores.closed_form import Counting, images

MODEL_SCORES = ("log-density", "log-joint", "max-softmax", "entropy", "approx-mass")
X = images(20)


def loaded(module: nn.Module) -> LoadedModel:
    return LoadedModel(module, "net", "net", {}, None, "", "", "")


def measured(
    module: nn.Module, names: tuple[str, ...], micro_batch: int = 8, **options: Any
) -> list[Arrays]:
    """Return the arrays of some scores of one batch, as a job makes them."""
    measures = [Scored(data=DataRef("digits"), score=name, **options) for name in names]
    batch = Batch(X, None, 4, measures)
    noise = bound(0, measures[0].name, range(len(X)))
    context = Context(noise=noise, micro_batch=micro_batch)
    return [measure(loaded(module), batch, context) for measure in measures]


def test_one_pass_each_way_feeds_all() -> None:
    net = Counting()
    measured(net, MODEL_SCORES)
    assert (net.forwards, net.backwards) == (3, 3)  # 20 images in parts of 8


def test_nobody_goes_back_for_scores_of_the_logits() -> None:
    net = Counting()
    measured(net, ("log-density", "max-softmax"))
    assert (net.forwards, net.backwards) == (3, 0)


@pytest.mark.parametrize("noise", [0.0, 0.015])
def test_a_value_does_not_depend_on_what_else_is_asked(noise: float) -> None:
    together = measured(Counting(), MODEL_SCORES, input_noise=noise)
    for name, arrays in zip(MODEL_SCORES, together, strict=True):
        (alone,) = measured(Counting(), (name,), input_noise=noise)
        np.testing.assert_array_equal(alone["score"], arrays["score"])


def test_scores_of_a_random_model_see_one_draw() -> None:
    class Random(Counting):
        stochastic = True

        def sample_logits(self, x: Tensor, noise: Any) -> Tensor:
            logits: Tensor = self(x) + noise.normal(4)
            return logits

    density, joint, confidence = (
        arrays["score"]
        for arrays in measured(Random(), ("log-density", "log-joint", "max-softmax"))
    )
    assert joint - density == pytest.approx(confidence, abs=1e-12)
    (small,) = measured(Random(), ("log-density",), micro_batch=3)
    assert small["score"] == pytest.approx(density, abs=1e-6)


class Rounding(Counting):
    """Its answers have no gradient."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).detach()


def test_without_a_gradient_only_the_scores_that_need_it_fail() -> None:
    measured(Rounding(), ("log-density",))
    batch = Batch(X, None, 4, [Scored(data=DataRef("digits"), score=s) for s in MODEL_SCORES])
    context = Context(noise=bound(0, "scores", range(len(X))))
    for measure in batch.measures:
        if measure.settings()["score"] == "approx-mass":
            with pytest.raises(ModelError, match=r"'approx-mass' raised .* grad"):
                measure(loaded(Rounding()), batch, context)
        else:
            assert len(measure(loaded(Rounding()), batch, context)["score"]) == len(X)


class Answering(Counting):
    """Returns what a function makes of its logits."""

    def __init__(self, made: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.made = made

    def forward(self, x: Tensor) -> Any:
        return self.made(super().forward(x))


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda logits: (logits, logits), "returned tuple"),
        (lambda logits: logits[:, 0], r"returned shape \(8,\)"),
        (lambda logits: logits.argmax(dim=1), r"returned torch\.int64"),
        (lambda logits: logits.softmax(dim=1), "returned probabilities"),
    ],
)
def test_what_is_no_logits_is_told_for_every_score(
    made: Callable[[Tensor], Any], words: str
) -> None:
    for name in MODEL_SCORES:
        with pytest.raises(ModelError, match=words):
            measured(Answering(made), (name,))


class Greedy(Counting):
    """Runs out of memory with more than 4 images."""

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > 4:
            self.refused = getattr(self, "refused", 0) + 1
            raise torch.OutOfMemoryError("too many")
        return super().forward(x)


def test_memory_that_runs_out_is_passed_on_and_smaller_parts_serve_all() -> None:
    net = Greedy()
    measures = [Scored(data=DataRef("digits"), score=name) for name in MODEL_SCORES]
    batch = Batch(X, None, 4, measures)
    noise = bound(0, measures[0].name, range(len(X)))
    with pytest.raises(torch.OutOfMemoryError):
        measures[0](loaded(net), batch, Context(noise=noise, micro_batch=8))
    first = measures[0](loaded(net), batch, Context(noise=noise, micro_batch=4))
    refused = net.refused
    for measure in measures[1:]:
        measure(loaded(net), batch, Context(noise=noise, micro_batch=8))
    assert net.refused == refused
    assert net.forwards == 5
    (alone,) = measured(Counting(), ("log-density",))
    assert first["score"] == pytest.approx(alone["score"], abs=1e-6)


def test_who_writes_into_an_answer_harms_nobody() -> None:
    model = shared(Counting(), X, gradient=True)
    before = model(X).clone()
    model(X).zero_()
    gradient_at(model, X)[1].zero_()
    assert torch.equal(model(X), before)
    value, gradient = density_gradient(Counting(), X)
    assert torch.equal(gradient_at(model, X)[1], gradient)
    assert torch.equal(gradient_at(model, X)[0], value)


def test_other_images_go_to_the_model() -> None:
    net = Counting()
    model = shared(net, X, gradient=True)
    model(X)
    other = X.flip(0)
    assert torch.equal(model(other), Counting()(other))
    assert torch.equal(gradient_at(model, other)[1], density_gradient(Counting(), other)[1])
    asking = X.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model(asking).sum(), asking)
    assert gradient.abs().min() > 0


def test_images_that_were_written_to_are_other_images() -> None:
    x = X.clone()
    model = shared(Counting(), x, gradient=False)
    before = model(x)
    x.mul_(0.5)
    assert not torch.allclose(model(x), before)
    assert torch.equal(model(x), Counting()(x))


def test_the_model_behind_keeps_its_other_abilities() -> None:
    class WithFeatures(Counting):
        def features(self, x: Tensor) -> Tensor:
            return x.flatten(1)

    assert shared(WithFeatures(), X, gradient=False).features(X).shape == (20, 16)
    with pytest.raises(AttributeError, match="head"):
        _ = shared(WithFeatures(), X, gradient=False).head


def test_a_need_that_nobody_meets_is_refused() -> None:
    @SCORES.register("needs-too-much", needs="gradiant")
    def score(model: Any, x: Tensor) -> Tensor:
        return x.sum(dim=(1, 2, 3))

    try:
        with pytest.raises(
            InputError, match=r"'needs-too-much' .*'gradiant'.*logits, features, gradient"
        ):
            needs_of("needs-too-much")
    finally:
        SCORES._entries.pop("needs-too-much")
