"""What every attack does with images, labels, models and surroundings that are unusual or wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bench.attacking import AttackResult
from bench.errors import InputError
from bench.noise import Noise
from tests.attacks.toys import Case, answers, cases, random_images, small_net

each = pytest.mark.parametrize("case", cases("any"), ids=str)


@pytest.fixture(scope="module")
def net() -> nn.Module:
    return small_net()


@pytest.fixture(scope="module")
def images() -> Tensor:
    return random_images(8, seed=5)


@pytest.fixture(scope="module")
def plain(net: nn.Module, images: Tensor) -> Callable[[Case], AttackResult]:
    """Return a function that gives the result on images and labels in their usual form."""
    done: dict[str, AttackResult] = {}

    def result(case: Case) -> AttackResult:
        if case.name not in done:
            done[case.name] = case.run(net, images.clone(), answers(net, images))
        return done[case.name]

    return result


Plain = Callable[[Case], AttackResult]


@each
def test_labels_of_any_integer_type_are_the_same_labels(
    case: Case, net: nn.Module, images: Tensor, plain: Plain
) -> None:
    y = answers(net, images)
    for labels in (y.to(torch.int32), y.numpy().astype(np.uint8), y.tolist()):
        assert torch.equal(case.run(net, images, labels).x_adv, plain(case).x_adv)


@each
@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0.0] * 8, r"torch\.float.*integer class numbers"),
        ([True] * 8, r"torch\.bool.*integer class numbers"),
        ([0, 1, 2, 4, 0, 1, 2, 3], "labels go up to 4 and the model has 4 classes"),
        ([0, 1, 2, -1, 0, 1, 2, 3], "labels start at -1; expected class numbers from 0"),
        ([0, 1, 2, 3, 0], r"shape \(5,\); expected .* shape \(8,\)"),
    ],
)
def test_labels_that_name_no_class_are_refused(
    case: Case, net: nn.Module, images: Tensor, labels: list[Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        case.run(net, images, torch.tensor(labels))


@each
def test_images_in_other_forms_are_the_same_images(
    case: Case, net: nn.Module, images: Tensor, plain: Plain
) -> None:
    y = answers(net, images)
    rounded = torch.where(images == 0, -3e-8, torch.where(images == 1, 1 + 1e-7, images))
    assert not torch.equal(rounded, images)
    strided = images.transpose(2, 3).contiguous().transpose(2, 3)
    for x in (images.double(), images.double().numpy(), strided, rounded):
        out = case.run(net, x, y)
        assert out.x_adv.dtype == torch.float32
        assert torch.equal(out.x_adv, plain(case).x_adv)
        assert torch.equal(out.success, plain(case).success)


@each
def test_bytes_are_divided_by_255(case: Case, net: nn.Module, images: Tensor) -> None:
    whole = (255 * images).round()
    y = answers(net, whole / 255)
    out, expected = case.run(net, whole.to(torch.uint8), y), case.run(net, whole / 255, y)
    assert out.x_adv.dtype == torch.float32
    assert torch.equal(out.x_adv, expected.x_adv)


@each
@pytest.mark.parametrize(
    ("convert", "message"),
    [
        (lambda x: x - 0.5, r"from -0\.5 to 0\.5; expected \[0, 1\]"),
        (lambda x: 255 * x, r"from 0 to 255; expected \[0, 1\]: divide by 255"),
        (lambda x: x * np.nan, r"from nan to nan; expected \[0, 1\].*NaN"),
        (lambda x: (255 * x).long(), r"images are torch\.int64; expected floating-point"),
        (lambda x: x[:0], r"shape \(0, 1, 8, 8\); expected \(B, C, H, W\) with at least one"),
        (lambda x: x[:, 0], r"shape \(8, 8, 8\); expected \(B, C, H, W\)"),
    ],
    ids=["[-1, 1]", "0..255", "NaN", "int64", "empty", "no channels"],
)
def test_images_of_another_range_or_shape_are_refused(
    case: Case, net: nn.Module, images: Tensor, convert: Callable[[Tensor], Any], message: str
) -> None:
    x = images.clone()
    x[0, 0, 0, :2] = torch.tensor([0.0, 1.0])
    with pytest.raises(InputError, match=message):
        case.run(net, convert(x), torch.zeros(len(convert(x)), dtype=torch.long))


@each
@pytest.mark.parametrize("classes", [2, 3, 100])
def test_any_number_of_classes_will_do(case: Case, images: Tensor, classes: int) -> None:
    model = small_net(classes, seed=1)
    y = answers(model, images)
    out = case.run(model, images, y, eps=2 * case.eps)
    assert out.success.any()
    assert (answers(model, out.x_adv) != y).tolist() == out.success.tolist()


class WithoutWeights(nn.Module):
    """Three classes by the brightness of three regions; no parameters and no buffers."""

    def forward(self, x: Tensor) -> Tensor:
        return 20 * torch.stack(
            [x[:, 0, :3].mean((1, 2)), x[:, 0, 5:].mean((1, 2)), x[:, 0, 4, :5].mean(1)], 1
        )


@each
def test_a_model_may_have_no_parameters(case: Case, images: Tensor) -> None:
    model = WithoutWeights()
    y = answers(model, images)
    out = case.run(model, images, y)
    assert out.success.any()


@each
@pytest.mark.parametrize("around", [torch.no_grad, torch.inference_mode])
def test_the_callers_gradient_mode_changes_nothing(
    case: Case, net: nn.Module, images: Tensor, plain: Plain, around: Callable[[], Any]
) -> None:
    expected = plain(case)
    with around():
        # Tensors made in inference mode cannot be saved for a backward pass.
        out = case.run(net, images.clone(), answers(net, images))
    assert torch.equal(out.x_adv, expected.x_adv)
    assert torch.equal(out.success, expected.success)
    assert torch.equal(out.queries, expected.queries)


@each
def test_the_callers_tensors_are_taken_as_they_are(
    case: Case, net: nn.Module, images: Tensor, plain: Plain
) -> None:
    x, y = images.clone().requires_grad_(), answers(net, images)
    labels = y.clone()
    out = case.run(net, x, y)
    assert torch.equal(out.x_adv, plain(case).x_adv)
    assert not out.x_adv.requires_grad
    assert x.grad is None
    assert torch.equal(x, images)
    assert torch.equal(y, labels)


class Exact(nn.Module):
    """The same logits in another type; of a stochastic model they are of noisy images."""

    def __init__(self, net: nn.Module, dtype: torch.dtype, stochastic: bool) -> None:
        super().__init__()
        self.net, self.dtype, self.stochastic = net, dtype, stochastic

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.net(x)
        return logits.to(self.dtype)

    def sample_logits(self, x: Tensor, noise: Noise) -> Tensor:
        return self.forward(x + 0.02 * noise.normal(*x.shape[1:]))


@each
@pytest.mark.parametrize("stochastic", [False, True], ids=["deterministic", "stochastic"])
def test_the_type_of_the_logits_does_not_matter(
    case: Case, net: nn.Module, images: Tensor, stochastic: bool
) -> None:
    if stochastic and not case.keyed:
        pytest.skip("its draws are not those of the images")
    x, y = images[:4], answers(net, images[:4])
    few = {"selection_draws": 2, "scoring_draws": 2} if stochastic else {}
    usual = case.run(Exact(net, torch.float32, stochastic), x, y, **few)
    double = case.run(Exact(net, torch.float64, stochastic), x, y, **few)
    assert torch.equal(double.x_adv, usual.x_adv)
    assert torch.equal(double.margin, usual.margin)
    for dtype in (torch.float16, torch.bfloat16):
        assert case.run(Exact(net, dtype, stochastic), x, y, **few).success.any()
