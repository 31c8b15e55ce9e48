"""Signs that gradients are masked: eleven checks of numbers taken on a few images.

Robust accuracy is the failure of an attack, and an attack also fails where the model hides its
gradient instead of being robust. The checks are those of Athalye et al. (2018, arXiv 1802.00420,
section 3.1) and Carlini et al. (2019, arXiv 1902.06705, section 3), with what AutoAttack and
RobustBench warn of. Each has a number and a threshold; none proves robustness.

Numbers of the same images under two attacks are compared by a paired one-sided test at `ALPHA`,
not by a fixed number of points: on 64 images one image is 1.6 points.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

from bench.types import Array

STEPS = (10, 20, 40, 100)  # of the attack whose loss must rise
ALPHA = 0.01  # of one comparison: 5 % a row over the five checks that compare
WORTH = 0.1  # of the first steps' gain: a smaller fall is not worth noting
FLAT = 0.05  # share of images that may have no gradient
SIGNAL = 0.1  # mean cosine of two independent gradients of a stochastic model
HUGE = 0.5  # L-infinity: every image can become the same grey
BROKEN = 0.01  # accuracy that may be left there
LOSSES = ("ce", "margin")  # whose gradients are looked at

Verdict = Literal["pass", "fail", "n/a"]
Evidence = Mapping[str, Array]


@dataclass(frozen=True)
class Check:
    """What one check came to.

    Attributes:
        name: Its number and name.
        passes: When it passes, in words, with the threshold.
        verdict: ``pass``, ``fail`` or ``n/a``.
        value: Its number; a share where ``percent``.
        percent: Whether tables show the number times 100.
        note: Why it does not apply, or what a failure means.
        numbers: What the verdict was made of.
    """

    name: str
    passes: str
    verdict: Verdict
    value: float | None = None
    percent: bool = True
    note: str = ""
    numbers: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)


def chance(gains: Array) -> float:
    """Return how often chance gives a mean gain as large (one-sided sign-flip test).

    Under the null hypothesis each image's gain is as likely to have the other sign. For gains of
    -1, 0 and 1 this is the sign test on the images where two attacks differ.

    Args:
        gains: ``(N,)``.
    """
    gains = np.asarray(gains, dtype=np.float64)
    gains = gains[gains != 0]
    if len(gains) == 0:
        return 1.0
    signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(9999, len(gains)))
    # A sum in another order rounds otherwise: what is equal must count as equal.
    reached = signs @ gains >= gains.sum() - 1e-9 * np.abs(gains).sum()
    return float((1 + reached.sum()) / (1 + len(signs)))


def all_checks(evidence: Evidence) -> tuple[Check, ...]:
    """Return every check, in order; what the evidence is missing is ``n/a``.

    Args:
        evidence: Arrays with one row an image, as `bench.tasks.masking.Masking` makes them.
    """
    return (
        _loss_rises(evidence),
        _huge_budget(evidence),
        _accuracy_falls(evidence),
        _no_stronger("4 FGSM", "fgsm_right", "one step", evidence),
        _no_stronger("5 black box", "black_right", "Square", evidence),
        _no_stronger("6 transfer", "transfer_right", "the static network's images", evidence),
        _no_stronger("7 noise", "noise_right", "random noise", evidence),
        _zero_gradient(evidence),
        _signal(evidence),
        _randomness(evidence),
        _probabilities(evidence),
        _unchanged(evidence),
    )


LATE = "the time ran out"
ABSENT = {
    "white_right": "no white-box attack in this norm",
    "transfer_right": "no refinement, so no static network behind it",
    "cosine": "the gradient is not random",
}


def _missing(name: str, passes: str, evidence: Evidence, *needs: str) -> Check | None:
    absent = [key for key in needs if key not in evidence]
    if not absent:
        return None
    reason = ABSENT.get(absent[0], ABSENT["white_right"])
    if evidence["unfinished"].any():
        # Of a deterministic model there is neither, however much time there is.
        never = "cosine" not in evidence and absent[-1] in ("cosine", "transfer_right")
        reason = ABSENT[absent[-1]] if never else LATE
    return Check(name, passes, "n/a", note=reason)


def _judged(
    name: str,
    passes: str,
    failed: bool,
    value: float,
    why: str,
    *,
    percent: bool = True,
    numbers: Mapping[str, Any] | None = None,
) -> Check:
    """Return a check with its verdict; ``why`` is what a failure means."""
    verdict: Verdict = "fail" if failed else "pass"
    return Check(name, passes, verdict, value, percent, why if failed else "", numbers or {})


def _loss_rises(e: Evidence) -> Check:
    """Check 1: more steps, a higher loss, and a higher one than as many random points have.

    Steps that converged give equal losses up to chance, so a fall must also be worth noting: a
    tenth of what the first steps gained.
    """
    name, passes = "1 loss rises", f"{'/'.join(map(str, STEPS))} steps: above noise, not falling"
    absent = _missing(name, passes, e, "steps_margin", "few_margin")
    if absent:
        return absent
    loss = np.column_stack([-e["few_margin"], -e["steps_margin"]])
    rises = np.diff(loss, axis=1)
    gained, *later = rises.mean(axis=0)
    climbs = chance(rises[:, 0])
    falls = [chance(-rise) for rise in rises[:, 1:].T]
    fell = any(
        p < ALPHA / len(falls) and -rise > WORTH * gained
        for p, rise in zip(falls, later, strict=True)
    )
    lost = climbs >= ALPHA and bool((e["clean_right"] > 0).any())
    return _judged(
        name,
        passes,
        lost or fell,
        float(loss[:, -1].mean() - loss[:, 0].mean()),
        "steps gain no more than noise" if lost else "more steps make it worse",
        percent=False,
        numbers={
            "loss": dict(zip(("noise", *map(str, STEPS)), loss.mean(axis=0).tolist(), strict=True)),
            "p_no_better_than_noise": climbs,
            "p_falls": min(falls),
        },
    )


def _huge_budget(e: Evidence) -> Check:
    """Check 2: a budget that allows any image leaves nothing right."""
    name, passes = "2 eps 0.5", f"at most {BROKEN:.0%} right"
    absent = _missing(name, passes, e, "huge_right")
    if absent:
        return absent
    left = float(e["huge_right"].mean())
    why = "where every image is allowed, a working attack finds a wrong one"
    return _judged(name, passes, left > BROKEN, left, why)


def _accuracy_falls(e: Evidence) -> Check:
    """Check 3: with a larger budget, attacked from scratch, no more images stay right."""
    name, passes = "3 larger eps", "accuracy does not rise"
    absent = _missing(name, passes, e, "grid_right")
    if absent:
        return absent
    grid = np.column_stack([e["clean_right"], e["grid_right"]])
    rises = np.diff(grid, axis=1)
    p = min(chance(rise) for rise in rises.T)
    return _judged(
        name,
        passes,
        p < ALPHA / rises.shape[1],
        float(max(0.0, rises.mean(axis=0).max())),
        "an attack with more room does worse",
        numbers={"accuracy": grid.mean(axis=0).tolist(), "p": p},
    )


def _no_stronger(name: str, key: str, what: str, e: Evidence) -> Check:
    """Check 4, 5, 6 or 7: what knows less breaks no more than the white box from scratch."""
    passes = "white box at least as strong"
    absent = _missing(name, passes, e, "white_right", key)
    if absent:
        return absent
    white, other = e["white_right"], e[key]
    p = chance(white - other)
    only = int((other < white).sum())
    return _judged(
        name,
        passes,
        p < ALPHA,
        float((other - white).mean()),
        f"{what} breaks {only} images that the gradient does not",
        numbers={
            "white_box": float(white.mean()),
            "other": float(other.mean()),
            "only_other": only,
            "p": p,
        },
    )


def _zero_gradient(e: Evidence) -> Check:
    """Check 8: cross-entropy and margin of the images that are right have a gradient."""
    right = e["clean_right"] > 0
    flat = {k: float(e[f"flat_{k}"][right].mean()) if right.any() else 0.0 for k in LOSSES}
    # The margin is linear in the logits: where the loss alone is flat, the logits are too large.
    why = "the logits are flat in the input" if flat["margin"] > FLAT else "the loss is saturated"
    share = max(flat.values())
    passes = f"at most {FLAT:.0%} of images"
    return _judged("8 zero gradient", passes, share > FLAT, share, why, numbers=flat)


def _signal(e: Evidence) -> Check:
    """Check 8, of a stochastic model: two independent gradients point the same way."""
    name, passes = "8 gradient signal", f"mean cosine at least {SIGNAL:g}"
    absent = _missing(name, passes, e, "cosine")
    if absent:
        return absent
    cosine = float(e["cosine"].mean())
    why = "the gradient is mostly noise: raise eot_samples"
    return _judged(name, passes, cosine < SIGNAL, cosine, why, percent=False)


def _randomness(e: Evidence) -> Check:
    """Check 9: five passes over one input agree, or the model says that they need not."""
    undeclared = bool((e["differs"] & ~e["declared"]).any())
    unkeyed = bool(e["unkeyed"].any())  # the worse of the two: no number of it can be had again
    again = "the same noise gives another answer: a second run, or norm, gives other numbers"
    return _judged(
        "9 randomness",
        "none, or declared and repeatable",
        undeclared or unkeyed,
        float(e["differs"].mean()),
        again if unkeyed else "the model draws numbers without saying so",
    )


def _probabilities(e: Evidence) -> Check:
    """Check 10: the outputs are logits, not probabilities."""
    share = float(e["probabilities"].mean())
    why = "a softmax before the loss flattens its gradient"
    return _judged("10 probabilities", f"at most {FLAT:.0%} of images", share > FLAT, share, why)


def _unchanged(e: Evidence) -> Check:
    """Check 11: flags, buffers, weights and their gradients are what they were."""
    changed = int(e["changed"].max())
    return _judged(
        "11 model unchanged",
        "no flag, buffer, weight or gradient",
        changed > 0,
        float(changed),
        "the model is not what it was before the attack",
        percent=False,
    )
