"""Checks for masked gradients on real models: planted faults are found, honest nets are not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bench.attacking.checks import Check, all_checks
from bench.attacking.watching import Watch
from bench.context import Context
from bench.data import to_tensor
from bench.errors import Unsupported
from bench.models import LoadedModel, ModelRef, load
from bench.noise import Noise, bound
from bench.registry import ATTACKS
from bench.tasks.base import Batch, DataRef
from bench.tasks.base import load as load_images
from bench.tasks.masking import Masking
from bench.types import Norm
from tests.attacks.real import cifar, network

HONEST = ("baseline", "jem", "hdge-eq13")
EPS = {Norm.LINF: (0.05, 0.1, 0.2), Norm.L2: (0.25, 0.5, 1.0)}


def small(norm: Norm = Norm.LINF, images: int = 64, **options: Any) -> Masking:
    """The measure with fewer queries, so that it takes a second."""
    spent = {"queries": 100, "noise_draws": 50, "grid_steps": 10, **options}
    return Masking(data=DataRef(spec="digits", limit=images), norm=norm, eps=EPS[norm], **spent)


def model_of(spec: str | nn.Module, **options: Any) -> LoadedModel:
    ref = ModelRef(spec=spec, dataset="digits", title="a model", **options)
    return load(ref, load_images(DataRef(spec="digits")))


def look(measure: Masking, model: LoadedModel) -> dict[str, Check]:
    data = load_images(measure.data)
    assert data.labels is not None
    batch = Batch(
        to_tensor(data.images, torch.device("cpu")),
        torch.from_numpy(data.labels),
        len(data.classes),
    )
    return checked(measure, model, batch)


def checked(measure: Masking, model: LoadedModel, batch: Batch) -> dict[str, Check]:
    noise = bound(0, measure.name, range(len(batch.x)))
    arrays = measure(model, batch, Context(noise=noise))
    assert all(len(values) == len(batch.x) for values in arrays.values())
    return {check.name: check for check in all_checks(arrays)}


def failed(checks: dict[str, Check]) -> list[str]:
    return [name for name, check in checks.items() if check.verdict == "fail"]


class Around(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model


class Rounding(Around):
    """Gradient masking by 8-bit rounding of the input."""

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model((x * 255).round() / 255)
        return logits


class Steep(Around):
    """Gradient masking by logits so large that cross-entropy saturates."""

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x) * 1e4
        return logits


class Undecided(Around):
    """An answer that is random without saying so."""

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x)
        return logits + torch.randn_like(logits)


@pytest.fixture(scope="module")
def baseline() -> nn.Module:
    return model_of("baseline").module


@pytest.fixture(scope="module")
def linear() -> nn.Module:
    """The nearest class mean: right on most digits, and quick."""
    train = load_images(DataRef(spec="digits", split="train"))
    x, y = to_tensor(train.images, torch.device("cpu")).flatten(1), torch.from_numpy(train.labels)
    means = torch.stack([x[y == k].mean(dim=0) for k in range(10)])
    layer = nn.Linear(64, 10)
    layer.weight.data, layer.bias.data = 2 * means, -means.square().sum(dim=1)
    return nn.Sequential(nn.Flatten(), layer)


@pytest.mark.parametrize("name", HONEST)
def test_honest_nets_raise_no_flag(name: str) -> None:
    checks = look(small(), model_of(name))
    assert failed(checks) == []
    assert {n for n, c in checks.items() if c.verdict == "n/a"} == {
        "6 transfer",
        "8 gradient signal",
    }
    white = checks["5 black box"].numbers["white_box"]
    assert 0.3 < white < 0.9  # else the comparisons would say nothing


@pytest.mark.slow
@pytest.mark.parametrize("norm", [Norm.LINF, Norm.L2])
@pytest.mark.parametrize(
    "name", ["baseline", "jem", "hdge", "hdge-masked", "hdge-eq13", "hdge-jem"]
)
def test_honest_nets_raise_no_flag_as_the_suite_asks(name: str, norm: Norm) -> None:
    measure = Masking(data=DataRef(spec="digits", limit=64), norm=norm, eps=EPS[norm])
    assert failed(look(measure, model_of(name))) == []


def test_rounding_is_flagged_as_a_zero_gradient_and_by_what_breaks_it(baseline: nn.Module) -> None:
    checks = look(small(), model_of(Rounding(baseline)))
    assert checks["8 zero gradient"].verdict == "fail"
    assert checks["8 zero gradient"].value == 1.0
    assert "flat" in checks["8 zero gradient"].note
    assert checks["1 loss rises"].verdict == "fail"
    assert checks["5 black box"].verdict == "fail"
    assert checks["5 black box"].numbers["only_other"] > 10


def test_logits_too_large_are_flagged_as_a_saturated_loss_and_nothing_else(
    baseline: nn.Module,
) -> None:
    checks = look(small(), model_of(Steep(baseline)))
    assert failed(checks) == ["8 zero gradient"]
    assert "saturated" in checks["8 zero gradient"].note
    assert checks["8 zero gradient"].numbers == {"ce": 1.0, "margin": 0.0}


def test_a_random_output_is_flagged_as_undeclared(linear: nn.Module) -> None:
    model = model_of(Undecided(linear))
    assert model.stochastic  # found out, and attacked as such
    checks = look(small(images=16, queries=20, noise_draws=10, eot_samples=2), model)
    assert checks["9 randomness"].verdict == "fail"
    assert checks["9 randomness"].value == 1.0
    assert "without saying so" in checks["9 randomness"].note


class Counting(Around):
    """A Python counter moves the answer: no noise repeats it."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        logits: Tensor = self.model(x)
        return logits * (1 + self.calls % 7)


def test_an_answer_that_nothing_repeats_is_said_to_be_so(linear: nn.Module) -> None:
    model = model_of(Counting(linear))
    checks = look(small(images=8, queries=5, noise_draws=5, grid_steps=1), model)
    assert checks["9 randomness"].verdict == "fail"
    assert "the same noise gives another answer" in checks["9 randomness"].note


class Keyed(Around):
    """The same, declared, with draws that belong to the images."""

    stochastic = True
    hidden = 0.0

    def sample_logits(self, x: Tensor, noise: Noise) -> Tensor:
        logits: Tensor = self.model(x)
        logits = logits + noise.normal(logits.shape[1])
        return logits + self.hidden * torch.randn_like(logits)

    def forward(self, x: Tensor) -> Tensor:
        return self.sample_logits(x, bound(0, "t", range(len(x))))


def test_declared_randomness_passes_and_hidden_randomness_behind_it_does_not(
    linear: nn.Module,
) -> None:
    model = model_of(Keyed(linear))
    few = small(images=16, queries=20, noise_draws=10, eot_samples=2)
    checks = look(few, model)
    assert checks["9 randomness"].verdict == "pass"
    assert checks["9 randomness"].value == 1.0
    assert checks["8 gradient signal"].verdict == "pass"
    assert checks["6 transfer"].verdict == "n/a"
    model.module.hidden = 0.1  # type: ignore[assignment]
    again = look(few, model)
    assert again["9 randomness"].verdict == "fail"
    assert "the same noise" in again["9 randomness"].note


def test_a_gradient_of_noise_alone_has_no_signal(linear: nn.Module) -> None:
    class Blown(Keyed):
        def sample_logits(self, x: Tensor, noise: Noise) -> Tensor:
            logits: Tensor = self.model(x)
            slopes = noise.normal(*x.shape[1:], 10)
            return logits + 100 * torch.einsum("bchw,bchwk->bk", x, slopes)

    evidence = small(images=16, queries=5, noise_draws=5, eot_samples=2, grid_steps=1)
    checks = look(evidence, model_of(Blown(linear)))
    assert checks["8 gradient signal"].verdict == "fail"
    value = checks["8 gradient signal"].value
    assert value is not None
    assert abs(value) < 0.1


def test_refinement_is_checked_against_its_static_network(linear: nn.Module) -> None:
    few = small(images=12, queries=5, noise_draws=5, grid_steps=2, eot_samples=1)
    checks = look(few, model_of(linear, refine_steps=1))
    assert checks["6 transfer"].verdict in ("pass", "fail")
    assert checks["9 randomness"].verdict == "pass"
    assert checks["9 randomness"].value == 1.0
    assert checks["11 model unchanged"].verdict == "pass"


def test_probabilities_are_seen_wherever_they_come_from(baseline: nn.Module) -> None:
    from bench.attacking.evidence import Scene

    class Soft(Around):
        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.model(x)
            return logits.softmax(dim=1)

    x = load_images(DataRef(spec="digits", limit=8))
    assert x.labels is not None
    images, labels = to_tensor(x.images, torch.device("cpu")), torch.from_numpy(x.labels)
    for model, share in ((Soft(baseline), 1.0), (baseline, 0.0)):
        scene = Scene(model.eval(), images, labels, Context(noise=bound(0, "t", range(8))))
        assert float(scene.answers()["probabilities"].double().mean()) == share


@pytest.fixture
def batch_norm() -> nn.Sequential:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(72, 10))
    net.train()
    net[1].eval()
    return net


@pytest.mark.parametrize(
    "change",
    [
        lambda net: net.eval(),
        lambda net: net.train(),
        lambda net: net[1].running_mean.add_(1),
        lambda net: net[3].bias.data.add_(1e-3),
        lambda net: net[3].bias.requires_grad_(False),
        lambda net: setattr(net[3].bias, "grad", torch.ones(10)),
    ],
)
def test_every_change_of_a_model_is_seen(batch_norm: nn.Sequential, change: Any) -> None:
    watch = Watch(batch_norm)
    assert watch.changes() == 0
    change(batch_norm)
    assert watch.changes() > 0


def test_nan_that_stays_is_no_change(batch_norm: nn.Sequential) -> None:
    batch_norm.get_buffer("1.running_mean").fill_(np.nan)
    assert Watch(batch_norm).changes() == 0


def test_an_attack_that_changes_the_weights_is_seen(
    linear: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind: Any = ATTACKS["noise-linf"]
    honest = kind.__call__

    def meddle(self: Any, net: nn.Module, *rest: Any) -> Tensor:
        with torch.no_grad():
            next(iter(net.parameters())).mul_(1.001)
        found: Tensor = honest(self, net, *rest)
        return found

    monkeypatch.setattr(kind, "__call__", meddle)
    checks = look(small(images=8, queries=5, noise_draws=5, grid_steps=1), model_of(linear))
    assert checks["11 model unchanged"].verdict == "fail"


def test_a_norm_without_white_box_has_only_what_needs_none() -> None:
    measure = Masking(data=DataRef(spec="digits", limit=8), norm=Norm.L0, eps=(3.0,))
    checks = look(measure, model_of("baseline"))
    assert failed(checks) == []
    applies = {name.split()[0] for name, check in checks.items() if check.verdict == "pass"}
    assert applies == {"8", "9", "10", "11"}
    assert "no white-box" in checks["4 FGSM"].note


def test_time_that_runs_out_leaves_what_was_not_done_open() -> None:
    model, calls = model_of("baseline"), []
    with model.module.register_forward_hook(lambda *_: calls.append(1)):
        checks = look(small(images=16, seconds_per_image=1e-9), model)
    assert len(calls) < 12  # no attack began
    assert failed(checks) == []
    assert checks["5 black box"].verdict == "n/a"
    assert checks["5 black box"].note == "the time ran out"
    assert checks["8 zero gradient"].verdict == "pass"


def test_a_density_without_classes_has_no_gradient_to_mask() -> None:
    class Density(nn.Module):
        def log_density(self, x: Tensor) -> Tensor:
            return -x.flatten(1).square().sum(dim=1)

    with pytest.raises(Unsupported, match="no logits"):
        look(small(images=8), model_of(Density()))


def test_the_evidence_does_not_depend_on_the_micro_batch(linear: nn.Module) -> None:
    few, model = small(images=16, queries=20, noise_draws=10, grid_steps=3), model_of(linear)
    data = load_images(few.data)
    images, labels = to_tensor(data.images, torch.device("cpu")), torch.from_numpy(data.labels)
    noise = bound(0, few.name, range(16))
    whole, parts = (
        few(model, Batch(images, labels, 10), Context(noise=noise, micro_batch=size))
        for size in (64, 5)
    )
    assert whole.keys() == parts.keys()
    for name, values in whole.items():
        different = ~np.isclose(values, parts[name], atol=1e-4)
        assert different.sum() <= 1, name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "eps"),
    [("resnet20", (0.1 / 255, 0.3 / 255, 1 / 255)), ("resnet2b", (1 / 255, 2 / 255, 8 / 255))],
)
def test_published_networks_raise_no_flag(name: str, eps: tuple[float, ...]) -> None:
    x, y = cifar(64)
    measure = Masking(data=DataRef(spec="cifar10", limit=64), norm=Norm.LINF, eps=eps)
    model = model_of(network(name))
    assert failed(checked(measure, model, Batch(x, y, 10))) == []
