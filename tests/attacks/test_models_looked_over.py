"""What `bench.attack` sees before it attacks: answers that are none, or that depend on company."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bench
from bench.attacking.evidence import Scene
from bench.context import Context
from bench.errors import InputError, ModelError
from bench.noise import bound
from tests.attacks.toys import answers, random_images, small_net


class Made(nn.Module):
    """A small net whose logits go through a function of (logits, images)."""

    def __init__(self, change: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.net, self.change = small_net(), change

    def forward(self, x: Tensor) -> Any:
        return self.change(self.net(x), x)


class Drawn(Made):
    """The same, declared stochastic."""

    stochastic = True

    def sample_logits(self, x: Tensor, noise: Any) -> Any:
        return self.forward(x)


class Normalised(nn.Module):
    """Batch norm that knows the batch alone, before or after the logits."""

    def __init__(self, last: bool) -> None:
        super().__init__()
        norm = nn.BatchNorm1d(4 if last else 64, affine=False, track_running_stats=False)
        net = small_net()
        self.body = nn.Sequential(net, norm) if last else nn.Sequential(nn.Flatten(), norm, net)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.body(x)
        return logits


X = random_images(12, seed=3)
Y = answers(small_net(), X)

COMPANY: dict[str, Callable[[], nn.Module]] = {
    "less the mean": lambda: Made(lambda logits, x: logits - logits.mean(dim=0, keepdim=True)),
    "tiny, less the mean": lambda: Made(lambda logits, x: 1e-7 * (logits - logits.mean(dim=0))),
    "by the largest pixel": lambda: Made(lambda logits, x: logits / x.max()),
    "sorted": lambda: Made(lambda logits, x: logits.sort(dim=0).values),
    "norm after": lambda: Normalised(last=True),
    "norm before": lambda: Normalised(last=False),
    "by the number": lambda: Made(lambda logits, x: logits * len(x)),
}


@pytest.mark.parametrize("count", [1, 2, 12])
@pytest.mark.parametrize("size", [1, 7, 32])
@pytest.mark.parametrize("kind", COMPANY)
def test_a_model_whose_answer_depends_on_the_batch_is_refused(
    kind: str, size: int, count: int
) -> None:
    with pytest.raises(ModelError, match="depends on the other images of the batch"):
        bench.attack("pgd-linf", COMPANY[kind](), X[:count], Y[:count], eps=0.05, micro_batch=size)


@pytest.mark.parametrize("kind", COMPANY)
def test_so_is_it_when_it_is_loaded(kind: str) -> None:
    with pytest.raises(ModelError, match="depends on the other images of the batch"):
        bench.run(COMPANY[kind](), suite="accuracy", limit=20)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("scale", [1e-7, 1.0, 1e3])
def test_an_honest_model_of_any_precision_and_scale_passes(
    dtype: torch.dtype, scale: float
) -> None:
    model = Made(lambda logits, x: (scale * logits).to(dtype))
    y = answers(model, X)
    out = bench.attack("pgd-linf", model, X, y, eps=0.1, steps=3)
    assert out.draws is None
    assert out.margin.dtype == torch.float32
    assert out.success.any()


def test_a_rarely_random_model_is_random_and_no_batch_norm() -> None:
    def rare(logits: Tensor, x: Tensor) -> Tensor:
        return logits if float(torch.rand(())) < 0.9 else -logits

    for seed in range(12):
        torch.manual_seed(seed)
        out = bench.attack("pgd-linf", Made(rare), X[:2], Y[:2], eps=0.05, steps=1)
        assert out.draws is not None or out.clean_pred.shape == (2,)


def test_a_generator_of_its_own_is_told() -> None:
    own = np.random.default_rng(0)

    def noisy(logits: Tensor, x: Tensor) -> Tensor:
        return logits + 0.1 * torch.from_numpy(own.standard_normal(logits.shape)).float()

    with pytest.warns(UserWarning, match="cannot be repeated"):
        out = bench.attack("pgd-linf", Made(noisy), X, Y, eps=0.05, steps=2, eot_samples=2)
    assert out.draws is not None


FORMS: dict[str, tuple[Callable[[Tensor, Tensor], Any], str]] = {
    "tuple": (lambda logits, x: (logits, x), "returned tuple"),
    "dict": (lambda logits, x: {"logits": logits}, "returned dict"),
    "none": (lambda logits, x: None, "returned NoneType"),
    "array": (lambda logits, x: logits.detach().numpy(), "returned ndarray"),
    "whole numbers": (lambda logits, x: logits.long(), "int64"),
    "complex": (lambda logits, x: logits.to(torch.complex64), "complex64"),
    "one dimension": (lambda logits, x: logits[:, 0], r"returned shape \(4,\)"),
}


@pytest.mark.parametrize("name", ["pgd-l2", "ddn-l2", "boundary-l2", "noise-linf"])
@pytest.mark.parametrize("form", FORMS)
def test_answers_that_are_no_logits_are_named(form: str, name: str) -> None:
    change, words = FORMS[form]
    eps = 0.1 if name in ("pgd-l2", "noise-linf") else None
    with pytest.raises(ModelError, match=words):
        bench.attack(name, Made(change), X, Y, eps=eps)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_weights_of_another_type_are_named(dtype: torch.dtype) -> None:
    with pytest.raises(ModelError, match=rf"weights are {dtype}.*model\.float\(\)"):
        bench.attack("pgd-linf", small_net().to(dtype), X, Y, eps=0.1)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"ids": [str(i) for i in range(12)]}, "ids"),
        ({"ids": 0.5 + torch.arange(12)}, "ids"),
        ({"seed": "a"}, "seed='a'"),
        ({"seed": 0.5}, "seed=0.5"),
        ({"micro_batch": 2.5}, "micro_batch=2.5"),
        ({"micro_batch": 0}, "micro_batch=0"),
        ({"micro_batch": "8"}, "micro_batch='8'"),
    ],
)
def test_surroundings_that_cannot_be_are_named(given: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        bench.attack("pgd-linf", small_net(), X, Y, eps=0.1, **given)


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.uint64, np.int8])
def test_labels_of_any_whole_type_will_do(dtype: Any) -> None:
    out = bench.attack("pgd-linf", small_net(), X, Y.numpy().astype(dtype), eps=0.1, steps=2)
    assert torch.equal(out.clean_pred, Y)


class Declared(nn.Module):
    """Says that it is stochastic, and not how."""

    stochastic = True

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)[:, :4]


def test_a_stochastic_model_without_draws_is_named() -> None:
    with pytest.raises(ModelError, match="sample_logits"):
        bench.attack("pgd-linf", Declared(), X, Y, eps=0.1)


@pytest.mark.parametrize("chains", [0, -1, "5", None])
def test_chains_that_cannot_be_are_named(chains: Any) -> None:
    class Chained(Declared):
        gradients = ("straight-through", "full")

        def __init__(self) -> None:
            super().__init__()
            self.base, self.n_chains = small_net(), chains

        def chain_logits(self, x: Tensor, noise: Any, gradient: str) -> Tensor:
            logits: Tensor = self.base(x)
            return logits[:, None].expand(-1, self.n_chains, -1)

        def sample_logits(self, x: Tensor, noise: Any) -> Tensor:
            return self.chain_logits(x, noise, "full").mean(dim=1)

    with pytest.raises(ModelError, match=f"n_chains={chains!r}"):
        bench.attack("pgd-linf", Chained(), X, Y, eps=0.1)


def test_the_loss_of_logits_in_half_precision_is_not_saturated() -> None:
    """A gap of 20 is nothing to float32; in float16 its cross-entropy is zero."""
    model = Made(lambda logits, x: (20 * logits / logits.std(dim=1, keepdim=True)).half())
    with torch.no_grad():
        gap = model(X).float().topk(2, dim=1).values.diff(dim=1).abs()
    scene = Scene(model, X, Y, Context(noise=bound(0, "scene", range(12))))
    assert float(gap.max()) > 18
    assert not scene.gradients(1)["flat_ce"].any()


@pytest.mark.parametrize("name", ["pgd-linf", "ddn-l2", "boundary-l2"])
def test_images_without_an_answer_are_named(name: str) -> None:
    x = X.clone()
    x[:, :, 0, 0] = 0.2
    x[[4, 7], :, 0, 0] = 0.9

    def some(logits: Tensor, x: Tensor) -> Tensor:
        return torch.where((x[:, :, 0, 0] > 0.8), torch.nan, logits)

    eps = 0.05 if name == "pgd-linf" else None
    words = "NaN or infinity for 2 of 12 images, numbers 104, 107"
    for model in (Made(some), Drawn(some)):
        with pytest.raises(ModelError, match=words):
            bench.attack(name, model, x, Y, eps=eps, ids=range(100, 112))
