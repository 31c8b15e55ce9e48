"""What suite ``robustness`` does under ``--protocol paper``: the JEM paper's own attack.

Grathwohl et al. (2019, arXiv 1912.03263), section 5.3, Figure 5 and Appendix G. The attack is
theirs, with its script's faults corrected; `docs/paper-protocol.md` has the list.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, fields, replace
from typing import Any

from bench.errors import InputError
from bench.suites.budgets import attack_options, budgets_of, norm_of
from bench.tasks.base import Plan, Task
from bench.tasks.curves import Curve, Nearest
from bench.types import Norm

ATTACKS = ("pgd-linf", "pgd-l2")
IMAGES = 300
# One gradient sample is one evaluation of the model, which is the mean of its 5 chains.
OPTIONS = {
    "steps": 40,
    "restarts": 20,
    "loss": "ce",
    "gradient": "straight-through",
    "eot_samples": 1,
}
OF_ATTACK = ("steps", "restarts", "loss", "eot_samples")  # options of the suite that are kept
NOT_HERE = ("attacks", "gradients", "by_gradient", "l0", "minutes")
# Distances of Figure 5 and Appendix G on CIFAR-10: to 20/255, and to 525/255 in L2.
GRIDS = {
    Norm.LINF: tuple(k / 255 for k in (1, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20)),
    Norm.L2: tuple(35 * k / 255 for k in range(1, 16)),
}
PAPER_SHAPE = (3, 32, 32)
NOTE = (
    "the JEM paper's attack, corrected: the nearest of all restarts counts, not the last; no image "
    "is dropped, whether a search or a draw fails it; answers are of fresh draws, and "
    "one_draw_accuracy believes the one evaluation inside the attack, as the paper does. What only "
    "just fools one evaluation often fools no other: how robust the model is, the default protocol "
    "tells"
)
SCALED = "the paper's grid, scaled to end at the data set's largest budget instead of {}"


def paper_tasks(plan: Plan, suite: Any) -> Sequence[Task]:
    """Return a task for each norm.

    Args:
        plan: The model and the data set.
        suite: The options of suite ``robustness``; steps, restarts, loss and samples of the attack
            where they are given, draws, distances, and options by attack. Others do not apply.

    Raises:
        InputError: An option does not apply or is impossible, or there is nothing to scale the
            grid to.
    """
    _refuse_others(suite)
    data = replace(plan.data, limit=min(IMAGES, plan.data.limit or IMAGES))
    common = OPTIONS | {name: v for name in OF_ATTACK if (v := getattr(suite, name))}
    tasks = []
    for attack in ATTACKS:
        norm = norm_of(attack)
        measure = Nearest(
            data=data,
            attack=attack,
            options=attack_options(attack, common, suite.settings.get(attack, {}), eps=None),
            selection_draws=suite.selection_draws,
            scoring_draws=suite.scoring_draws,
        )
        grid, remark = _grid(plan, norm, getattr(suite, norm.value))
        note = f"{NOTE}; {remark}" if remark else NOTE
        tasks.append(Curve(norm, measure, grid, note, plan.refine_steps))
    return tasks


def _refuse_others(suite: Any) -> None:
    """Raise `InputError` where an option was changed that the paper's attack does not have."""
    for field in fields(suite):
        usual = field.default if field.default is not MISSING else None
        if field.name in NOT_HERE and getattr(suite, field.name) not in (usual, {}):
            raise InputError(
                f"'--set robustness.{field.name}' does not apply to '--protocol paper', whose "
                f"attacks are {' and '.join(ATTACKS)} with the straight-through gradient; leave "
                "one of the two out"
            )


def _grid(plan: Plan, norm: Norm, own: Sequence[float]) -> tuple[tuple[float, ...], str]:
    """Return the distances of a norm, and what must be said of them."""
    if own:
        return tuple(sorted(map(float, own))), ""
    if plan.dataset.shape == PAPER_SHAPE:
        return GRIDS[norm], ""
    paper, largest = GRIDS[norm], budgets_of("robustness", plan, norm, {})[-1]
    scaled = tuple(largest * eps / paper[-1] for eps in paper)
    return scaled, SCALED.format(f"{round(paper[-1] * 255)}/255")
