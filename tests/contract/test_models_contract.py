"""What every registered model must keep to, with the weights that ship where there are any."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch import Tensor, nn

from bench.data import load_dataset, to_tensor
from bench.models import default_network, load_model
from bench.registry import MODELS, TRAINERS
from bench.weights import find_weights

DIGITS = load_dataset("digits")


def model(name: str) -> nn.Module:
    """Return the shipped model, or a fresh one from seed 0."""
    if find_weights(name, "digits", default_network(DIGITS), []) is not None:
        return load_model(name)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        fresh: nn.Module = MODELS[name](DIGITS, default_network(DIGITS))
        return fresh


@pytest.fixture(scope="module")
def images() -> Tensor:
    return to_tensor(DIGITS.images[:8])


@pytest.mark.parametrize("name", list(MODELS))
def test_logits(name: str, images: Tensor) -> None:
    net = model(name)
    assert not net.training
    with torch.no_grad():
        first, again = net(images), net(images)
        alone = torch.cat([net(x[None]) for x in images])
    assert first.shape == (8, len(DIGITS.classes))
    assert first.dtype == torch.float32
    assert torch.equal(first, again)
    # Float32 has seven digits: the bound scales with the largest logit.
    bound = 1e-5 * max(1.0, float(first.abs().max()))
    assert torch.allclose(first, alone, rtol=0, atol=bound)
    assert float(first.std(dim=0).min()) > 0  # the images are looked at


@pytest.mark.parametrize("name", list(MODELS))
def test_gradient_reaches_every_image_and_no_other(name: str, images: Tensor) -> None:
    x = images.clone().requires_grad_()
    logits = model(name)(x)
    (gradient,) = torch.autograd.grad(logits.logsumexp(dim=1)[:4].sum(), x)
    lengths = gradient.flatten(1).norm(dim=1)
    assert (lengths[:4] > 0).all()
    assert (lengths[4:] == 0).all()


@pytest.mark.parametrize("name", list(MODELS))
def test_pickles_to_the_same_model(name: str, images: Tensor) -> None:
    net = model(name)
    copy = pickle.loads(pickle.dumps(net))
    with torch.no_grad():
        assert torch.equal(copy(images), net(images))


@pytest.mark.parametrize("name", list(MODELS))
def test_a_trainer_that_is_named_exists(name: str) -> None:
    trainer = MODELS.entry(name).facts.get("trainer")
    assert trainer is None or trainer in TRAINERS


def test_shipped_weights_answer_right() -> None:
    shipped = [n for n in MODELS if find_weights(n, "digits", default_network(DIGITS), [])]
    if not shipped:
        pytest.skip("no weights ship yet")
    assert DIGITS.labels is not None
    x, y = to_tensor(DIGITS.images), torch.as_tensor(DIGITS.labels)
    for name in shipped:
        with torch.no_grad():
            assert float((load_model(name)(x).argmax(dim=1) == y).float().mean()) > 0.9, name
