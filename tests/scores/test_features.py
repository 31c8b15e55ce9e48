"""Features caught under the last linear layer, and the score that is made of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from bench.errors import Unsupported
from bench.penultimate import catching
from bench.registry import SCORES
from bench.sharing import features_at, shared
from tests.scores.closed_form import Counting, images

X = images(12)


class Net(nn.Module):
    """Two linear layers, of which the second has the same number of inputs and outputs."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.body, self.head = nn.Linear(16, 5), nn.Linear(5, 5)
        self.passes = 0

    def hidden(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x.flatten(1)))

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        logits: Tensor = self.head(self.hidden(x))
        return logits


def gradient_lengths(net: Net, x: Tensor) -> list[float]:
    """Return the L1 norm of the gradient in the head's weights, image by image, in float64."""
    net = net.double()
    found = []
    for image in x.double():
        loss = -log_softmax(net(image[None]), dim=1).mean()
        (gradient,) = torch.autograd.grad(loss, net.head.weight)
        # The mean over K classes is the cross-entropy with the uniform distribution.
        found.append(float(gradient.abs().sum()))
    return found


def test_gradnorm_is_the_norm_of_the_gradient() -> None:
    values = SCORES["gradnorm"](Net(), X)
    assert values.dtype == torch.float64
    assert values.tolist() == pytest.approx(gradient_lengths(Net(), X), rel=1e-5)


@pytest.mark.parametrize("together", [True, False])
def test_features_are_those_of_the_pass(together: bool) -> None:
    net = Net()
    model: Any = shared(net, X, gradient=True) if together else net
    expected = net(X)
    net.passes = 0
    logits, features = features_at(model, X)
    assert torch.equal(features, net.hidden(X))
    assert torch.equal(logits, expected)
    assert not features.requires_grad
    model(X)
    assert net.passes == (1 if together else 2)
    other, _ = features_at(model, X.flip(0))
    assert torch.allclose(other, expected.flip(0), atol=1e-6)


def test_logits_of_something_else_have_no_features() -> None:
    class Scaled(Net):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    for model in (Scaled(), Counting()):
        with pytest.raises(Unsupported, match="not the output of a linear layer"):
            features_at(model, X)
        with pytest.raises(Unsupported, match="not the output of a linear layer"):
            features_at(shared(model, X, gradient=False), X)


def test_a_model_is_left_without_hooks_also_when_it_raises() -> None:
    net = Net()
    with pytest.raises(ZeroDivisionError), catching(net):
        raise ZeroDivisionError
    features_at(net, X)
    assert not any(module._forward_hooks for module in net.modules())
