"""AutoAttack: the worst case of every image over parts that are looked up, checked and charged."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from bench.attacking import attack
from bench.context import Context
from bench.errors import BenchError, InputError, Unsupported
from bench.noise import bound
from bench.registry import ATTACKS, Entry, discover
from bench.types import Norm
from tests.attacks.toys import NoisyWeights, Recorder, answers, random_images, small_net

discover()  # before anything is planted
SMALL: dict[str, Any] = {"apgd_steps": 8, "targets": 2, "fab_steps": 3, "square_queries": 60}
PARTS = ["apgd-linf", "apgd-t-linf", "fab-linf", "square-linf"]


class Bright(nn.Module):
    """Class 1 where the mean is above 1/2."""

    def forward(self, x: Tensor) -> Tensor:
        value = 10 * (x.flatten(1).mean(dim=1) - 0.5)
        return torch.stack([-value, value], dim=1)


@dataclass(frozen=True, kw_only=True)
class Planted:
    """Makes some images dark, and leaves the others nearer to the boundary but right."""

    eps: float
    steps: int = 0
    targets: int = 0
    targeted: bool = False
    queries: int = 0
    early_stop: bool = True
    loss: str = ""
    eot_samples: int = 1
    gradient: str = ""
    norm: Norm = field(default=Norm.LINF, init=False)

    breaks: ClassVar[frozenset[int]] = frozenset()
    fails: ClassVar[Exception | None] = None
    seen: ClassVar[list[list[int]]] = []
    budgets: ClassVar[list[tuple[float, ...]]] = []

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, context: Context) -> Tensor:
        return self.sweep(model, x, y, context, (self.eps,))[0]

    def sweep(
        self, model: nn.Module, x: Tensor, y: Tensor, context: Context, eps: tuple[float, ...]
    ) -> Tensor:
        if self.fails:
            raise self.fails
        ids = context.noise.image_ids
        self.seen.append(ids.tolist())
        self.budgets.append(eps)
        model(x[:1])
        hits = torch.tensor([int(i) in self.breaks for i in ids])[:, None, None, None]
        return torch.stack([torch.where(hits, x - e, x - e / 100) for e in eps])


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Put parts in the registry that break the images of the given numbers."""

    def planted(**broken: Any) -> dict[str, Any]:
        kinds = {}
        for name in PARTS:
            what = broken.get(name.removesuffix("-linf").replace("-", "_"), ())
            failing = what if isinstance(what, Exception) else None
            facts: dict[str, Any] = {
                "breaks": frozenset(() if failing else what),
                "fails": failing,
                "seen": [],
                "budgets": [],
            }
            kinds[name] = type("Part", (Planted,), facts)
            entry = Entry(name, kinds[name], __name__, {"norm": Norm.LINF})
            monkeypatch.setitem(ATTACKS._entries, name, entry)
        return kinds

    return planted


X, Y = torch.full((10, 1, 2, 2), 0.55), torch.ones(10, dtype=torch.long)


def test_the_worst_part_counts_for_every_image(plant: Callable[..., dict[str, Any]]) -> None:
    kinds = plant(apgd=range(5), apgd_t=range(5, 10))
    out = attack("autoattack-linf", Bright(), X, Y, eps=0.1)
    assert out.success.all()  # not one half, which is the mean of the two
    assert kinds["apgd-linf"].seen == [list(range(10))]
    assert kinds["apgd-t-linf"].seen == [list(range(5, 10))]  # only on what is left
    assert kinds["fab-linf"].seen == []
    assert kinds["square-linf"].seen == []


def test_what_no_part_breaks_is_robust_and_nearest_to_wrong(
    plant: Callable[..., dict[str, Any]],
) -> None:
    kinds = plant(apgd=[1], fab=[2], square=[3])
    out = attack("autoattack-linf", Bright(), X, Y, eps=0.1)
    assert out.success.nonzero()[:, 0].tolist() == [1, 2, 3]
    assert [len(kinds[name].seen[0]) for name in PARTS] == [10, 9, 9, 8]
    assert out.x_adv[0] == pytest.approx(0.549)  # the better of the candidates, all in vain
    # A part's own passes are charged to those it got, and a pass to check what it found.
    assert out.queries.tolist() == [8, 2, 6, *[8] * 7]


def test_broken_images_are_carried_and_fab_searches_once(
    plant: Callable[..., dict[str, Any]],
) -> None:
    kinds = plant(apgd=[0, 1], fab=[4])
    out = attack("autoattack-linf", Bright(), X, Y, eps=[0.02, 0.0, 0.08, 0.3])
    assert out.success.sum(dim=1).tolist() == [0, 0, 3, 3]
    assert kinds["apgd-linf"].budgets == [(0.02,), (0.08,), (0.3,)]
    assert [len(ids) for ids in kinds["apgd-linf"].seen] == [10, 10, 7]
    assert kinds["fab-linf"].budgets == [(0.02, 0.08, 0.3)]
    assert kinds["fab-linf"].seen == [list(range(10))]
    assert torch.equal(out.x_adv[3, :2], out.x_adv[2, :2])


class Odd(Exception):
    """Takes more than words."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__(a, b)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RuntimeError("planted"), RuntimeError),
        (Unsupported("planted"), Unsupported),
        (Odd(1, 2), BenchError),
    ],
)
def test_a_part_that_fails_is_named(
    plant: Callable[..., dict[str, Any]], error: Exception, kind: type[Exception]
) -> None:
    plant(apgd=range(5), square=error)
    with pytest.raises(kind, match="part 'square-linf' of autoattack-linf failed: "):
        attack("autoattack-linf", Bright(), X, Y, eps=0.1)


def test_without_the_package_of_fab_the_name_says_so(
    plant: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ATTACKS["autoattack-linf"](eps=0.1).title == "autoattack-linf"
    assert ATTACKS["autoattack-l2"](eps=0.1, version="rand").title == "autoattack-rand-l2"
    kinds = plant(square=[3])
    monkeypatch.setitem(sys.modules, "torchattacks", None)
    out = attack("autoattack-linf", Bright(), X, Y, eps=0.1)
    assert out.success.nonzero()[:, 0].tolist() == [3]
    assert kinds["fab-linf"].seen == []
    assert ATTACKS["autoattack-linf"](eps=0.1).title == "autoattack-nofab-linf"
    assert ATTACKS["autoattack-l2"](eps=0.1).title == "autoattack-nofab-l2"


def test_when_time_is_up_the_best_so_far_is_returned(
    plant: Callable[..., dict[str, Any]],
) -> None:
    kinds = plant(apgd=[1], square=[3])
    left = iter([False])
    context = Context(noise=bound(0, "t", range(10)), out_of_time=lambda: next(left, True))
    found = ATTACKS["autoattack-linf"](eps=0.1)(Bright(), X, Y, context)
    assert kinds["apgd-t-linf"].seen == []
    assert answers(Bright(), found).tolist() == [1, 0, *[1] * 8]


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_no_part_alone_breaks_more(norm: str) -> None:
    x, net = random_images(24), small_net()
    y = answers(net, x)
    eps = [0.01, 0.03] if norm == "linf" else [0.1, 0.25]
    whole = attack(f"autoattack-{norm}", net, x, y, eps=eps, **SMALL)
    assert 0 < int(whole.success[1].sum()) < 24
    each = {
        f"apgd-{norm}": {"steps": 8},
        f"apgd-t-{norm}": {"steps": 8, "targets": 2},
        f"square-{norm}": {"queries": 60},
    }
    for name, options in each.items():
        alone = attack(name, net, x, y, eps=eps, **options)  # type: ignore[arg-type]
        # Its random start differs: a start that happens to be better may win one image.
        assert int((alone.success & ~whole.success).sum()) <= 1
    single = attack(f"autoattack-{norm}", net, x, y, eps=eps[1], **SMALL)
    assert int((single.success != whole.success[1]).sum()) <= 1


def test_batch_size_does_not_matter_and_all_passes_are_charged() -> None:
    x, net = random_images(24), small_net()
    y, eps = answers(net, x), [0.01, 0.03]
    options = {**SMALL, "fab_steps": 1}
    runs = [
        attack("autoattack-linf", net, x, y, eps=eps, micro_batch=size, **options)
        for size in (5, 24)
    ]
    ties = runs[1].margin.abs() < 1e-4
    assert torch.equal(runs[0].success[~ties], runs[1].success[~ties])
    far = (runs[0].x_adv - runs[1].x_adv).abs() > 1e-4
    assert far.double().mean() < 0.02
    model = Recorder(net)
    charged: list[Tensor] = []
    context = Context(noise=bound(0, "t", range(24)), spent=charged.append)
    ATTACKS["autoattack-linf"](eps=0.01, **options)(model, x, y, context)
    shown = sum(len(batch) for batch in model.shown)
    assert shown - 24 <= int(charged[0].sum()) <= shown + 24 * 4  # what is shared is rounded up


def test_a_stochastic_model_is_attacked_to_the_end_by_both_losses() -> None:
    w = torch.linspace(0.5, 1.5, 64)
    model = NoisyWeights(w, -1e3, spread=0.1)  # wrong in every draw from the start
    x, y = torch.full((4, 1, 8, 8), 0.5), torch.ones(4, dtype=torch.long)
    charged: list[Tensor] = []
    context = Context(noise=bound(0, "t", range(4)), spent=charged.append)
    options = {"apgd_steps": 6, "eot_samples": 3}
    found = ATTACKS["autoattack-linf"](eps=0.1, **options)(model, x, y, context)
    each = 7 * 3 + 3  # six steps and a last pass, and a fresh one to choose
    assert charged[0].tolist() == [2 * each] * 4
    fall = ((0.5 - found).flatten(1) @ w) / (0.1 * w.sum())
    assert float(fall.min()) > 0.95
    with pytest.raises(Unsupported, match="version='rand'"):
        ATTACKS["autoattack-linf"](eps=0.1, version="standard")(model, x, y, context)


def test_of_a_stochastic_model_fresh_draws_choose_between_the_losses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Half(Planted):
        """One loss finds the way for even numbers, the other for odd ones."""

        def __call__(self, model: nn.Module, x: Tensor, y: Tensor, context: Context) -> Tensor:
            even = context.noise.image_ids[:, None, None, None] % 2 == 0
            return torch.where(even == (self.loss == "ce"), x - self.eps, x + self.eps)

    entry = Entry("apgd-linf", Half, __name__, {"norm": Norm.LINF})
    monkeypatch.setitem(ATTACKS._entries, "apgd-linf", entry)
    w = torch.ones(64)
    x, y = torch.full((6, 1, 8, 8), 0.5), torch.ones(6, dtype=torch.long)
    context = Context(noise=bound(0, "t", range(6)))

    class Three(NoisyWeights):
        def sample_logits(self, x: Tensor, noise: Any) -> Tensor:
            two = super().sample_logits(x, noise)
            return torch.cat([two, two[:, :1] - 99], dim=1)

    made = ATTACKS["autoattack-linf"](eps=0.1, version="rand")
    assert made(Three(w, 0.2, 0.1), x, y, context) == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"eps": -0.1}, "eps a finite number"),
        ({"version": "plus"}, "version one of standard, rand"),
        ({"apgd_steps": 0}, "steps, restarts"),
        ({"targets": 0}, "targets"),
        ({"square_queries": 0}, "queries"),
        ({"fab_steps": 0}, "steps"),
        ({"gradient": "none"}, "gradient"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        ATTACKS["autoattack-linf"](**{"eps": 0.1, **options})
