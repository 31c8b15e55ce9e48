"""The checks for masked gradients as functions of what was measured: by hand, and by chance."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom, binomtest

from bench.attacking.checks import ALPHA, LATE, STEPS, all_checks, chance
from bench.types import Array

N = 64


def honest() -> dict[str, Array]:
    """A model without masking: 62 of 64 right, 30 of these under the white box."""
    right = np.arange(N) < 62
    white = np.arange(N) < 30
    climb = np.linspace(1.0, 0.5, N)
    return {
        "clean_right": right.astype(float),
        "white_right": white.astype(float),
        "grid_right": np.column_stack([np.arange(N) < k for k in (55, 30, 2)]).astype(float),
        "steps_margin": np.column_stack([-climb, -climb - 0.1, -climb - 0.1, -climb - 0.1]),
        "few_margin": climb,
        "huge_right": np.zeros(N),
        "fgsm_right": (np.arange(N) < 33).astype(float),
        "black_right": (np.arange(N) < 31).astype(float),
        "transfer_right": (np.arange(N) < 32).astype(float),
        "noise_right": (np.arange(N) < 50).astype(float),
        "flat_ce": np.zeros(N, dtype=bool),
        "flat_margin": np.zeros(N, dtype=bool),
        "cosine": np.full(N, 0.7),
        "differs": np.zeros(N, dtype=bool),
        "declared": np.zeros(N, dtype=bool),
        "unkeyed": np.zeros(N, dtype=bool),
        "probabilities": np.zeros(N, dtype=bool),
        "changed": np.zeros(N, dtype=int),
        "unfinished": np.zeros(N, dtype=bool),
    }


def failed(evidence: dict[str, Array]) -> list[str]:
    return [check.name for check in all_checks(evidence) if check.verdict == "fail"]


def test_an_honest_model_passes_all_of_them() -> None:
    checks = all_checks(honest())
    assert [check.verdict for check in checks] == ["pass"] * 12
    assert " ".join(check.name.split()[0] for check in checks) == "1 2 3 4 5 6 7 8 8 9 10 11"
    assert all(check.note == "" and check.passes for check in checks)


some = np.arange(N) < 8
every = np.ones(N, dtype=bool)

FAULTS: list[tuple[str, dict[str, Any]]] = [
    ("1 loss rises", {"few_margin": np.linspace(-1.0, -1.5, N)}),  # noise is as good as ten steps
    ("1 loss rises", {"steps_margin": np.full((N, 4), [-1.0, -1.0, -0.5, -1.0])}),  # and falls
    ("2 eps 0.5", {"huge_right": (np.arange(N) < 1).astype(float)}),
    ("3 larger eps", {"grid_right": np.column_stack([np.arange(N) < k for k in (30, 45, 2)])}),
    ("4 FGSM", {"fgsm_right": (np.arange(N) < 20).astype(float)}),
    ("5 black box", {"black_right": (np.arange(N) < 20).astype(float)}),
    ("6 transfer", {"transfer_right": (np.arange(N) < 20).astype(float)}),
    ("7 noise", {"noise_right": (np.arange(N) < 20).astype(float)}),
    ("8 zero gradient", {"flat_ce": some}),
    ("8 zero gradient", {"flat_margin": some, "flat_ce": some}),
    ("8 gradient signal", {"cosine": np.full(N, 0.05)}),
    ("9 randomness", {"differs": np.arange(N) == 3}),
    ("9 randomness", {"differs": every, "declared": every, "unkeyed": np.arange(N) == 3}),
    ("10 probabilities", {"probabilities": every}),
    ("11 model unchanged", {"changed": np.full(N, 2)}),
]


@pytest.mark.parametrize(("name", "fault"), FAULTS)
def test_each_check_fires_on_its_own_fault_and_alone(name: str, fault: dict[str, Any]) -> None:
    evidence = honest() | {k: np.asarray(v) for k, v in fault.items()}
    assert failed(evidence) == [name]
    (check,) = (c for c in all_checks(evidence) if c.verdict == "fail")
    assert check.note
    assert check.value is not None


@pytest.mark.parametrize(
    ("key", "right", "fails"),
    [
        # One-sided sign tests by hand: 7 images of 7 have chance 1/128, 6 of 6 have 1/64.
        ("black_right", np.r_[np.zeros(7), np.ones(23), np.zeros(34)], True),
        ("black_right", np.r_[np.zeros(6), np.ones(24), np.zeros(34)], False),
        # Ten against one: 12/2048; ten against three: 378/8192.
        ("fgsm_right", np.r_[np.zeros(10), np.ones(21), np.zeros(33)], True),
        ("fgsm_right", np.r_[np.zeros(10), np.ones(23), np.zeros(31)], False),
    ],
)
def test_attacks_are_compared_image_by_image(key: str, right: Array, fails: bool) -> None:
    evidence = honest() | {key: right}
    assert bool(failed(evidence)) is fails
    number = {"black_right": 5, "fgsm_right": 4}[key]
    check = next(c for c in all_checks(evidence) if c.name.startswith(str(number)))
    white = honest()["white_right"]
    assert check.numbers["only_other"] == int(((right == 0) & (white == 1)).sum())
    assert check.value == pytest.approx(float(right.mean() - white.mean()))


def test_a_converged_attack_may_wobble_but_not_fall() -> None:
    climb = np.linspace(1.0, 0.5, N)
    small = np.full(N, 0.05)  # every image, but little: 3 % of what ten steps gain
    wobble = np.column_stack([-climb, -climb, -climb + small, -climb])
    assert failed(honest() | {"steps_margin": wobble}) == []
    falling = wobble + np.array([0, 0, 0.3, 0])
    assert failed(honest() | {"steps_margin": falling}) == ["1 loss rises"]


def test_what_saturates_is_told_from_what_is_flat() -> None:
    def note(**flat: Array) -> str:
        checks = all_checks(honest() | flat)
        return next(c.note for c in checks if c.name == "8 zero gradient")

    assert "saturated" in note(flat_ce=every)
    assert "flat" in note(flat_ce=every, flat_margin=every)


def test_images_that_are_wrong_when_clean_need_no_gradient() -> None:
    wrong = honest()["clean_right"] == 0
    assert failed(honest() | {"flat_ce": wrong, "flat_margin": wrong}) == []


def test_what_is_missing_is_not_applicable_with_its_reason() -> None:
    whole = honest()
    del whole["transfer_right"], whole["cosine"]
    notes = {c.name: c.note for c in all_checks(whole) if c.verdict == "n/a"}
    assert notes.keys() == {"6 transfer", "8 gradient signal"}
    assert "no refinement" in notes["6 transfer"]
    late = {**whole, "unfinished": every}
    del late["black_right"], late["white_right"]
    notes = {c.name: c.note for c in all_checks(late) if c.verdict == "n/a"}
    assert notes["5 black box"] == notes["4 FGSM"] == LATE
    assert notes["8 gradient signal"] == "the gradient is not random"
    assert "no refinement" in notes["6 transfer"]
    drawn = {**late, "cosine": np.ones(N)}  # of a stochastic model nobody knows yet
    assert {c.name: c.note for c in all_checks(drawn)}["6 transfer"] == LATE


def test_what_cannot_be_had_again_is_worse_than_what_is_not_said() -> None:
    counting = honest() | {"differs": every, "unkeyed": every}
    (note,) = [c.note for c in all_checks(counting) if c.verdict == "fail"]
    assert "the same noise gives another answer" in note


def test_a_model_that_is_never_right_has_nothing_to_check() -> None:
    nothing = honest()
    for key in nothing:
        if key.endswith("_right"):
            nothing[key] = np.zeros_like(nothing[key])
    nothing["steps_margin"] = np.tile(nothing["few_margin"][:, None], (1, len(STEPS)))
    assert failed(nothing) == []


@pytest.mark.parametrize(("ups", "downs"), [(7, 0), (10, 3), (20, 30), (3, 0), (0, 4), (1, 1)])
def test_chance_is_the_sign_test(ups: int, downs: int) -> None:
    gains = np.r_[np.ones(ups), -np.ones(downs), np.zeros(11)]
    exact = binomtest(ups, ups + downs, alternative="greater").pvalue
    assert chance(gains) == pytest.approx(exact, abs=4 * np.sqrt(exact * (1 - exact) / 1e4) + 2e-4)


def test_chance_of_shares_counts_every_choice_of_signs() -> None:
    gains = np.array([0.3, -0.1, 0.2, 0.5, 0.05, -0.15])
    sums = [float(np.dot(s, gains)) for s in product([-1, 1], repeat=len(gains))]
    exact = np.mean([total >= gains.sum() - 1e-12 for total in sums])
    assert chance(gains) == pytest.approx(exact, abs=4 * np.sqrt(exact * (1 - exact) / 1e4))
    assert chance(np.zeros(5)) == 1


def test_chance_alone_rarely_fails_a_comparison() -> None:
    rng = np.random.default_rng(1)
    draws = 300
    alarms = sum(chance(rng.normal(size=24)) < ALPHA for _ in range(draws))
    assert alarms <= binom.ppf(0.999, draws, ALPHA)
