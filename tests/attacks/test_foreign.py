"""Attacks of foolbox and torchattacks: all of them, and every known fault kept away."""

from __future__ import annotations

import inspect
import random
import sys
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bench
from bench.attacking.inputs import plan
from bench.context import Context
from bench.digest import source_digest
from bench.errors import BenchError, InputError, MissingExtra, UnknownName, Unsupported
from bench.noise import bound
from bench.registry import ATTACKS
from bench.specs import parse_settings
from bench.types import Norm
from tests.attacks.toys import Islands, Linear, NoisyWeights, answers, random_images

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    foolbox: Any = pytest.importorskip("foolbox")
    torchattacks: Any = pytest.importorskip("torchattacks")

KINDS: Any = ATTACKS  # classes, with more than a call
Foreign: Any = next(kind for kind in KINDS["ddn-l2"].__mro__ if kind.__name__ == "Foreign")
Digits = tuple[Tensor, Tensor]
FOOLBOX = sorted(
    name
    for name, value in vars(foolbox.attacks).items()
    if inspect.isclass(value) and issubclass(value, foolbox.attacks.Attack) and name != "Attack"
)
TORCHATTACKS = sorted([*torchattacks.__all__, *(f"{n}-L2" for n in ("APGD", "FAB", "Square"))])
SMALL: dict[str, Any] = {
    **{"steps": 4, "n_queries": 20, "repeats": 3, "directions": 20, "binary_search_steps": 2},
    **{"initial_gradient_eval_steps": 4, "max_iterations": 10, "num_iter_set": 3, "nb_sample": 4},
    **{"popsize": 4, "l2_binary_search": False},
}
REFUSED = {
    **dict.fromkeys(
        [n for n in FOOLBOX if n.startswith("L1") or "L1" in n], "is for the L1 distance"
    ),
    "EADAttack": "is for the L1 distance",
    "GenAttack": "towards a class",
    "DatasetAttack": "images of a data set",
    "BinarizationRefinementAttack": "threshold",
    "SpatialAttack": "no norm",
    "SparseFool": "changed all of 3,072 entries",
    "EADL1": "is for the L1 distance",
    "VANILA": "changes nothing",
    "MultiAttack": "several in the suite",
    "LGV": "trains models",
}
BUDGET = {Norm.LINF: 0.1, Norm.L2: 1.0, Norm.L0: 30.0}


class Normed(nn.Module):
    """A small net in train mode, but for one frozen layer; batch norm would show a pass in it."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.SiLU())
            self.head = nn.Sequential(nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(512, classes))
        self.body[1].eval()
        weight = next(self.head[2].parameters())
        weight.grad = torch.ones_like(weight)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = 4 * self.head(self.body(x))
        return logits

    def state(self) -> list[Any]:
        """Return all that an attack must leave alone."""
        return [
            [module.training for module in self.modules()],
            [buffer.tolist() for buffer in self.buffers()],
            [p.tolist() for p in self.parameters()],
            [p.requires_grad for p in self.parameters()],
            [None if p.grad is None else float(p.grad.sum()) for p in self.parameters()],
            torch.get_rng_state().tolist(),
            np.random.get_state(legacy=False)["state"]["key"].tolist(),
            random.getstate(),
        ]


def colour_images(count: int) -> Tensor:
    return torch.rand(count, 3, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    "name", [f"foolbox:{n}" for n in FOOLBOX] + [f"torchattacks:{n}" for n in TORCHATTACKS]
)
def test_every_attack_runs_and_leaves_no_trace_or_says_why_not(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model, x = Normed(), colour_images(5)
    y = answers(Normed().eval(), x)
    before = model.state()
    bare = name.partition(":")[2]
    if bare in REFUSED:
        assert name not in ATTACKS
        with pytest.raises(Unsupported, match=REFUSED[bare]):
            bench.attack(name, model, x, y, eps=0.1)
        return
    if "BrendelBethge" in name:  # compiled by numba, which is not asked for
        with pytest.raises(MissingExtra, match="pip install numba"):
            bench.attack(name, model, x, y)
        return
    entry = ATTACKS.entry(name)
    kind: Any = entry.target
    small: dict[str, Any] = {
        option: few for option, few in SMALL.items() if option in entry.options
    }
    eps = None if kind.minimum_norm else BUDGET[entry.facts["norm"]]
    out = bench.attack(name, model, x, y, eps=eps, **small)  # box and ball are checked in there
    assert model.state() == before
    assert capsys.readouterr() == ("", "")
    assert out.norm is entry.facts["norm"]
    assert (out.queries >= 0).all()
    assert entry.summary.endswith(".")
    assert "bench.attacks" in kind.__module__
    source_digest([kind])
    if eps is None and bare not in ("GN", "EADEN"):  # noise alone, and too few steps
        assert out.success.any()
        assert (out.distance[~out.success] == torch.inf).all()


def test_options_reach_the_library_and_the_command_line_can_name_them() -> None:
    settings = parse_settings(["foolbox:LinfPGD.steps=7", "torchattacks:APGD-L2.rho=0.5"])
    assert settings == {"foolbox:LinfPGD": {"steps": 7}, "torchattacks:APGD-L2": {"rho": 0.5}}
    x = colour_images(3)
    model = Normed().eval()
    seven = bench.attack("foolbox:LinfPGD", model, x, answers(model, x), eps=0.01, steps=7)
    assert seven.queries.tolist() == [7, 7, 7]
    with pytest.raises(InputError, match=r"no option stepz; it has .*steps"):
        bench.attack("foolbox:LinfPGD", model, x, answers(model, x), eps=0.1, stepz=7)
    with pytest.raises(InputError, match="does not take"):
        bench.attack(
            "foolbox:HopSkipJumpAttack", model, x, answers(model, x), constraint="l1", steps=1
        )


RUN_HERE = [
    *ATTACKS,
    *(f"foolbox:{n}" for n in FOOLBOX if n not in REFUSED),
    *(f"torchattacks:{n}" for n in TORCHATTACKS if n not in REFUSED),
]


@pytest.mark.parametrize("name", RUN_HERE)
def test_options_of_the_wrong_kind_are_refused(name: str) -> None:
    """A search of no steps, or of steps of no length, would be reported as full robustness."""
    entry = ATTACKS.entry(name)
    eps = None if getattr(entry.target, "minimum_norm", False) else 0.1
    for option, default in entry.options.items():
        values: list[Any] = []
        if isinstance(default, bool):
            values = ["no", 2]
        elif isinstance(default, int):
            values = [-5, 2.5, "3", True] + [0] * (default > 0)
        elif isinstance(default, float):
            values = ["a", True]
        if option.endswith(("stepsize", "step_size")) or option in ("alpha", "lr"):
            values = [0, -0.1, float("nan"), "a"]
        part = option.split("_")[-1] if name.startswith("auto") else option  # of the ensemble
        for value in values:
            with pytest.raises(InputError, match=part):
                plan(name, eps, {option: value})


def test_a_search_of_no_steps_is_no_result() -> None:
    model, x = Normed().eval(), colour_images(2)
    for name, steps in (("ddn-l2", -3), ("torchattacks:PGD", 0), ("pgd-linf", 2.5)):
        eps = None if name == "ddn-l2" else 0.1
        with pytest.raises(InputError, match=r"whole number"):
            bench.attack(name, model, x, [0, 1], eps=eps, steps=steps)
    made = ATTACKS["pgd-linf"](eps=0.1, steps=2.5)
    with pytest.raises(InputError, match=r"steps=2\.5: expected a whole number"):
        bench.attack(made, model, x, [0, 1], eps=0.1)


def test_numbers_that_a_library_writes_without_a_point_are_numbers() -> None:
    for name, option in (("torchattacks:CW", "c"), ("foolbox:L2CarliniWagnerAttack", "confidence")):
        assert parse_settings([f"{name}.{option}=0.5"])[name] == {option: 0.5}
        model, x = Normed().eval(), colour_images(2)
        small: dict[str, Any] = {"steps": 3, option: 0.5}
        bench.attack(name, model, x, answers(model, x), **small)


def test_near_names_are_suggested() -> None:
    with pytest.raises(UnknownName, match="did you mean 'foolbox:LinfPGD'"):
        ATTACKS["foolbox:LinfPDG"]
    with pytest.raises(UnknownName, match="did you mean 'torchattacks:PGDL2'"):
        ATTACKS["torchattacks:PGD2"]
    with pytest.raises(UnknownName, match="is not an attack"):
        ATTACKS["foolbx:LinfPGD"]
    assert "foolbox:LinfPGD" in ATTACKS
    assert "foolbox:LinfPDG" not in ATTACKS
    assert "foolbox:LinfPGD" not in list(ATTACKS)
    assert set(ATTACKS.schemes) == {"foolbox", "torchattacks"}
    assert ATTACKS["foolbox:LinfPGD"] is ATTACKS["foolbox:LinfPGD"]


@pytest.mark.parametrize("name", ["foolbox:LinfPGD", "torchattacks:PGDL2", "fab-l2"])
def test_a_fixed_budget_must_be_given(name: str) -> None:
    with pytest.raises(InputError, match="keeps to a budget; give one"):
        bench.attack(name, Normed(), colour_images(2), [0, 1])


def test_an_absent_torchattacks_is_named_with_the_line_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, x = Normed().eval(), colour_images(2)
    monkeypatch.setitem(sys.modules, "torchattacks", None)
    for name in ("fab-linf", "torchattacks:SPSA"):
        monkeypatch.setattr(
            ATTACKS, "_schemes", {k: inspect.unwrap(v) for k, v in ATTACKS._schemes.items()}
        )
        with pytest.raises(MissingExtra, match="pip install --no-deps torchattacks tqdm"):
            bench.attack(name, model, x, answers(model, x), eps=0.1)
    assert "fab-linf" in list(ATTACKS)
    assert "torchattacks:SPSA" not in ATTACKS


def test_foolbox_pgd_is_as_strong_as_when_called_directly(
    trained_net: nn.Module, test_digits: Digits
) -> None:
    x, y = test_digits
    right = answers(trained_net, x) == y
    x, y = x[right], y[right]
    ours = bench.attack("foolbox:LinfPGD", trained_net, x, y, eps=[0.05, 0.1], random_start=False)
    model = foolbox.PyTorchModel(trained_net, bounds=(0, 1), device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, _, theirs = foolbox.attacks.LinfPGD(random_start=False)(
            model, x, y, epsilons=[0.05, 0.1]
        )
    assert 0.1 < float(theirs[0].float().mean()) < 0.9
    assert torch.equal(ours.success[0], theirs[0])
    assert torch.equal(ours.success[1], theirs[0] | theirs[1])  # what is broken stays broken
    for p in trained_net.parameters():
        p.grad = None  # foolbox leaves weight gradients


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((n, {}) for n in ("ddn-l2", "fmn-l0", "fmn-l2", "fmn-linf", "deepfool-l2")),
        *(("deepfool-linf", {}), ("cw-l2", {"steps": 30, "binary_search_steps": 5})),
        ("foolbox:L2FMNAttack", {}),
    ],
)
def test_minimum_norm_attacks_find_as_much_as_stock_foolbox_and_as_near(
    trained_net: nn.Module, test_digits: Digits, name: str, options: dict[str, Any]
) -> None:
    """Also where the box is in the way: the black background of a digit."""
    x, y = test_digits[0][:32], test_digits[1][:32]
    kind: Any = ATTACKS[name]
    direct = getattr(foolbox.attacks, kind.attack)(**options)
    model = foolbox.PyTorchModel(trained_net.eval(), bounds=(0, 1), device="cpu")
    with warnings.catch_warnings(), torch.random.fork_rng():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        points = direct.run(model, x, foolbox.criteria.Misclassification(y))
    for p in trained_net.parameters():
        p.grad = None  # foolbox leaves weight gradients
    order = {Norm.L0: 0, Norm.L2: 2, Norm.LINF: torch.inf}[kind().norm]
    theirs = torch.linalg.vector_norm((points - x).flatten(1), ord=order, dim=1)
    theirs[answers(trained_net, points) == y] = torch.inf
    ours = bench.attack(name, trained_net, x, y, **options)
    assert int(ours.success.sum()) >= int(theirs.isfinite().sum())
    assert float(ours.distance.median()) <= float(theirs.median()) * 1.02


def linear(classes: int = 2) -> tuple[Linear, Tensor, Tensor, Tensor]:
    """Return a model, images in the middle of the box, their class and what leads to each other."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(classes, 64, generator=generator)
    bias = torch.zeros(classes)
    bias[0] = 4.0
    x = 0.45 + 0.1 * random_images(12, seed=1)
    y = torch.zeros(12, dtype=torch.int64)
    return Linear(weight, bias), x, y, weight[0] - weight[1:]


WITHIN = {
    **{"ddn-l2": 0.02, "fmn-l2": 0.02, "fmn-linf": 0.06, "cw-l2": 0.05},
    **{"deepfool-l2": 0.03, "deepfool-linf": 0.03, "fab-l2": 0.06, "fab-linf": 0.06},
}


@pytest.mark.parametrize(
    ("name", "classes"),
    # Only DeepFool and FAB look for the nearest class; the others go to that of the highest logit.
    [*((name, 2) for name in WITHIN), ("deepfool-l2", 5), ("deepfool-linf", 5)],
)
def test_a_linear_models_distance_is_the_geometric_one(name: str, classes: int) -> None:
    model, x, y, normals = linear(classes)
    logits = model(x).detach()
    dual = normals.abs().sum(dim=1) if name.endswith("linf") else normals.norm(dim=1)
    nearest = ((logits[:, :1] - logits[:, 1:]) / dual).amin(dim=1)
    assert float(nearest.min()) > 0.01
    if name.startswith("fab"):
        for factor, broken in ((1 - 1e-3, False), (1 + WITHIN[name], True)):
            found = [
                bench.attack(
                    name, model, x[i : i + 1], y[i : i + 1], eps=float(nearest[i]) * factor
                )
                for i in range(3)
            ]
            assert [bool(out.success) for out in found] == [broken] * 3
        return
    few: dict[str, Any] = {"steps": 200} if name == "cw-l2" else {}
    out = bench.attack(name, model, x, y, **few)
    assert out.success.all()
    assert (out.distance >= nearest * (1 - 1e-4)).all()
    assert (out.distance <= nearest * (1 + WITHIN[name])).all()


def test_l0_of_a_linear_model_is_near_the_fewest_entries() -> None:
    model, x, y, normals = linear()
    n, flat = normals[0], x.flatten(1)
    falls = torch.where(n > 0, n * flat, -n * (1 - flat))  # to the end of the box
    falls = falls.sort(dim=1, descending=True).values.cumsum(dim=1)
    logits = model(x).detach()
    fewest = (falls <= logits[:, :1] - logits[:, 1:]).sum(dim=1) + 1
    out = bench.attack("fmn-l0", model, x, y)
    assert out.success.all()
    assert (out.distance >= fewest).all()
    assert float(out.distance.mean()) <= float(fewest.double().mean()) + 2


@pytest.mark.parametrize("attack", ["BoundaryAttack", "HopSkipJumpAttack", "PointwiseAttack"])
def test_an_image_without_a_start_is_robust_and_the_batch_goes_on(attack: str) -> None:
    """bethgelab/foolbox#541; foolbox's own assertion ends the batch."""
    sea, islands = torch.full((1, 1, 8, 8), 0.95), 0.1 + 0.1 * random_images(2)
    x = torch.cat([islands[:1], sea, islands[1:]])
    model = Islands(islands + 0.01)
    kind = ATTACKS[f"foolbox:{attack}"]
    small: dict[str, Any] = {
        name: 3 for name in ("steps", "initial_gradient_eval_steps") if hasattr(kind, name)
    }
    out = bench.attack(f"foolbox:{attack}", model, x, [0, 1, 0], **small)
    assert out.success.tolist() == [True, False, True]
    assert torch.equal(out.x_adv[1], sea[0])
    assert out.distance[1] == torch.inf
    wrapped = foolbox.PyTorchModel(model.eval(), bounds=(0, 1), device="cpu")
    direct = getattr(foolbox.attacks, attack)()
    criterion = foolbox.criteria.Misclassification(torch.tensor([0, 1, 0]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises((AssertionError, ValueError)):
            direct.run(wrapped, x, criterion)


def test_starts_are_used_where_they_are_adversarial() -> None:
    model, x, y, _ = linear()
    far = random_images(200, seed=7)
    starts = far[answers(model, far) != 0][:12]
    starts[3] = x[3]
    good = torch.arange(12) != 3
    out = bench.attack("foolbox:BoundaryAttack", model, x, y, starts=starts, steps=5)
    assert torch.equal(out.success, good)
    assert (out.distance[good] < (starts - x)[good].flatten(1).norm(dim=1)).all()
    with pytest.raises(InputError, match="takes no starting points"):
        bench.attack("ddn-l2", model, x, y, starts=starts)


def test_pointwise_takes_budgets() -> None:
    """foolbox's has no distance, and fails for any ``epsilons`` but None."""
    model, x, y, _ = linear()
    out = bench.attack("foolbox:PointwiseAttack", model, x[:3], y[:3], eps=[1.0, 64.0])
    assert out.success[1].all()
    assert int(out.success[0].sum()) <= int(out.success[1].sum())
    assert (out.distance[1] <= 64).all()


@pytest.mark.parametrize("name", ["hopskipjump-l2", "foolbox:HopSkipJumpAttack"])
def test_hopskipjumps_step_does_not_shrink_with_the_batch(name: str) -> None:
    """In foolbox a direction is divided by the length of the whole batch's."""
    model, x, y, _ = linear()
    ours = bench.attack(name, model, x, y, steps=4).distance.mean()
    direct = foolbox.attacks.HopSkipJumpAttack(steps=4)
    wrapped = foolbox.PyTorchModel(model.eval(), bounds=(0, 1), device="cpu")
    means = []
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for size in (1, 12):
            found = [
                direct.run(
                    wrapped, x[i : i + size], foolbox.criteria.Misclassification(y[i : i + size])
                )
                for i in range(0, 12, size)
            ]
            means.append(float((torch.cat(found) - x).flatten(1).norm(dim=1).mean()))
    assert means[1] > 1.3 * means[0]
    assert float(ours) < 1.2 * means[0]


@pytest.mark.parametrize("name", ["torchattacks:APGD", "foolbox:L2PGD", "torchattacks:Pixle"])
def test_the_same_call_gives_the_same_bits_whatever_was_seeded_before(name: str) -> None:
    """torchattacks' APGD seeds the global generator, and so whatever is drawn after it."""
    model, x = Normed().eval(), colour_images(6)
    y = answers(model, x)
    eps = None if KINDS[name].minimum_norm else 0.05
    runs, after = [], []
    for outer, seed in ((0, 5), (1, 5), (1, 6)):
        torch.manual_seed(outer)
        np.random.seed(outer)
        runs.append(bench.attack(name, model, x, y, eps=eps, seed=seed).x_adv)
        after.append(float(torch.rand(1)))
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[1], runs[2])
    assert after[0] != after[1] == after[2]


@dataclass(frozen=True, kw_only=True)
class Rogue(Foreign):  # type: ignore[misc]
    """A library that breaks what it can."""

    def run(self, shown: nn.Module, x: Tensor, y: Tensor, starts: Tensor | None) -> Tensor:
        assert x.dtype == torch.float32
        assert y.dtype == torch.int64
        assert next(shown.parameters()).device == x.device
        shown.train()
        shown.zero_grad()
        torch.manual_seed(0)
        np.random.seed(0)
        point = x.double().requires_grad_()
        nn.functional.cross_entropy(shown(point), y).backward()  # type: ignore[no-untyped-call]
        for weight in shown.parameters():
            weight.data.fill_(7.0)
        if self.options()["how"] == "far":
            return x + 2
        if self.options()["how"] == "nan":
            return x * torch.nan
        raise IndexError("index 4 is out of bounds")


def rogue(how: str, **facts: Any) -> Any:
    made = sys.modules[Foreign.__module__].made
    return made(Rogue, "rogue", "Rogue", Norm.L2, {"how": how}, "A rogue.", **facts)


def test_a_rogue_library_reaches_nothing() -> None:
    model, x = Normed(), colour_images(4)
    y = answers(Normed().eval(), x)
    before = model.state()
    out = bench.attack(rogue("far")(eps=0.5), model, x, y, eps=0.5)
    assert (out.distance <= 0.5 * (1 + 1e-6)).all()
    assert model.state() == before
    assert out.queries.tolist() == [1] * 4
    with pytest.raises(InputError, match="nan"):
        bench.attack(rogue("nan")(eps=0.5), model, x, y, eps=0.5)
    with pytest.raises(BenchError, match=r"'rogue' with .*stopped inside its library with IndexE"):
        bench.attack(rogue("raise")(eps=0.5), model, x, y, eps=0.5)
    assert model.state() == before


def test_what_the_model_raises_stays_what_it_is() -> None:
    class Failing(nn.Module):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            if self.calls > 7:
                raise KeyError("planted")
            return torch.stack([x.flatten(1).sum(dim=1), 0 * x[:, 0, 0, 0]], dim=1)

    with pytest.raises(KeyError, match="planted"):
        bench.attack("foolbox:LinfPGD", Failing(), colour_images(2), [0, 0], eps=0.1)


def test_jsma_that_knows_ten_classes_only_is_named() -> None:
    model, x = Normed(classes=4).eval(), colour_images(60)
    x = x[answers(model, x) == 3][:2]
    with pytest.raises(BenchError, match=r"'torchattacks:JSMA' with .*stopped inside its library"):
        bench.attack("torchattacks:JSMA", model, x, answers(model, x))


def test_a_model_without_weights_and_the_nearest_image_seen() -> None:
    class Weightless(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shown: list[Tensor] = []

        def forward(self, x: Tensor) -> Tensor:
            self.shown.append(x.detach().clone())
            value = x.flatten(1).sum(dim=1) - 90
            return torch.stack([torch.zeros_like(value), value], dim=1)

    model, x = Weightless(), colour_images(3)
    y = torch.ones(3, dtype=torch.int64)
    for name in ("torchattacks:CW", "torchattacks:DeepFool", "foolbox:NewtonFoolAttack"):
        model.shown.clear()
        out = bench.attack(name, model, x[:1], y[:1])
        shown = torch.cat(model.shown)
        # A model is looked over first, with images of other kinds.
        probes = torch.stack([x[0] / 2, 1 - x[0]])
        shown = shown[~(shown[:, None] == probes).flatten(2).all(dim=2).any(dim=1)]
        wrong = shown.flatten(1).sum(dim=1) < 90
        nearest = (shown[wrong] - x[:1]).flatten(1).norm(dim=1).min()
        assert float(out.distance[0]) == pytest.approx(float(nearest), rel=1e-4)


def test_time_that_is_used_up_stops_a_library() -> None:
    model, x, y, _ = linear()
    calls = 0

    def late() -> bool:
        nonlocal calls
        calls += 1
        return calls > 30

    context = Context(noise=bound(0, "t", range(12)), out_of_time=late)
    found = ATTACKS["ddn-l2"](steps=10_000)(model, x, y, context)
    assert calls < 40
    assert (answers(model, found) != y).all()
    calls = 0
    found = ATTACKS["foolbox:LinfPGD"](eps=0.1, steps=10_000)(model, x, y, context)
    assert calls < 40
    assert torch.equal(found, x)


def test_draws_of_a_stochastic_model_belong_to_the_micro_batch_and_the_call() -> None:
    class Noted(NoisyWeights):
        seen: list[Tensor]

        def sample_logits(self, x: Tensor, noise: Any) -> Tensor:
            self.seen.append(noise.normal(2))
            return super().sample_logits(x, noise)

    attack = ATTACKS["foolbox:LinfPGD"](eps=0.05, steps=3)
    assert not attack.keyed
    w = torch.linspace(-1, 1, 64)
    x = torch.full((4, 1, 8, 8), 0.5)
    y = torch.zeros(4, dtype=torch.int64)
    runs = []
    for ids in (range(4), range(4), range(1, 5)):
        model = Noted(w, -0.5, 1.0)
        model.seen = []
        found = attack(model, x, y, Context(noise=bound(0, "t", ids)))
        runs.append((found, torch.cat(model.seen)))
    assert torch.equal(runs[0][0], runs[1][0])
    assert torch.equal(runs[0][1], runs[1][1])
    assert not torch.equal(runs[0][1], runs[2][1])
    assert len({tuple(draw) for draw in runs[0][1].tolist()}) == 12  # three calls, four images


def test_fab_is_as_strong_as_torchattacks_and_one_search_serves_all_budgets(
    trained_net: nn.Module, test_digits: Digits
) -> None:
    x, y = test_digits[0][:24], test_digits[1][:24]
    eps = [0.04, 0.07, 0.1]
    swept = bench.attack("fab-linf", trained_net, x, y, eps=eps, steps=10)
    one = bench.attack("fab-linf", trained_net, x, y, eps=0.07, steps=10)
    assert torch.equal(swept.success[1], one.success)
    assert torch.equal(swept.queries, one.queries)
    towards = bench.attack("fab-linf", trained_net, x, y, eps=0.07, steps=10, targeted=True)
    assert (towards.queries[one.queries > 0] > 3 * one.queries[one.queries > 0]).all()
    with torch.random.fork_rng():
        theirs = torchattacks.FAB(trained_net, eps=0.07, steps=10)(x, y)
    broken = int((answers(trained_net, theirs) != y).sum())
    assert 5 < broken < 24
    assert int(one.success.sum()) >= broken
    assert int(towards.success.sum()) >= broken - 1
    for p in trained_net.parameters():
        p.grad = None  # torchattacks leaves weight gradients


def test_the_table_names_options_that_foolbox_has() -> None:
    for name in ATTACKS:
        kind: Any = ATTACKS[name]
        if not kind.__module__.endswith("foolbox_adapter"):
            continue
        theirs = inspect.signature(getattr(foolbox.attacks, kind.attack)).parameters
        for option, default in ATTACKS.entry(name).options.items():
            if option == "eps" or (name, option) == ("cw-l2", "steps"):
                continue
            assert theirs[option].default == default, (name, option)


@pytest.mark.parametrize("name", ["ddn-l2", "fmn-linf"])
def test_no_image_of_the_batch_matters_to_another(name: str) -> None:
    model, x, y, _ = linear(5)
    whole = bench.attack(name, model, x, y)
    for i in (0, 7):
        alone = bench.attack(name, model, x[i : i + 1], y[i : i + 1], ids=[i])
        assert float(alone.distance[0]) == pytest.approx(float(whole.distance[i]), rel=1e-3)
