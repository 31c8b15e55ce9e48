"""What suites of attacks share: the budgets of a norm, and options that an attack can take."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from bench.attacking.inputs import plan as plan_attack
from bench.errors import BenchError, InputError, MissingExtra, Unsupported
from bench.registry import ATTACKS
from bench.tasks.base import Plan
from bench.types import Norm


def norm_of(attack: str) -> Norm:
    """Return the norm of a registered attack."""
    return Norm(ATTACKS.entry(attack).facts["norm"])


def budgets_of(
    suite: str, plan: Plan, norm: Norm, own: Mapping[Norm, Sequence[float]]
) -> tuple[float, ...]:
    """Return the budgets of a norm, increasing: the suite's own, else those of the data set.

    Raises:
        InputError: There are none.
    """
    budgets = own.get(norm) or plan.dataset.eps.get(norm.value, ())
    if not budgets:
        raise InputError(
            f"data set '{plan.dataset.name}' names no budgets for {norm}; give some with "
            f"'--set {suite}.{norm}=[0.01, 0.02]'"
        )
    return tuple(sorted(float(e) for e in budgets))


def require_order(suite: str, norm: Norm, own: Sequence[float], options: Mapping[str, Any]) -> None:
    """Raise `InputError` where a list of step sizes would go with budgets that get sorted."""
    sizes = options.get("step_size")
    if isinstance(sizes, list | tuple) and list(own) != sorted(own):
        raise InputError(
            f"'--set {suite}.{norm}={list(own)}' with a list of step sizes, {list(sizes)}: budgets "
            "are sorted and step sizes are not; write both in the order of increasing budgets"
        )


def attack_options(
    attack: str,
    common: Mapping[str, Any],
    given: Mapping[str, Any],
    eps: float | None = 0.1,
) -> dict[str, Any]:
    """Return those common options that the attack has, and what the user gives, in their place.

    ``eps`` is tried with them; ``None`` is no budget.

    Raises:
        InputError: The attack cannot be made with them.
    """
    known = inspect.signature(ATTACKS[attack]).parameters
    options = {**{k: v for k, v in common.items() if k in known}, **given}
    try:
        plan_attack(attack, eps, options)
    except (MissingExtra, Unsupported):  # its rows will say so
        return options
    except BenchError:
        raise
    except (TypeError, ValueError) as error:
        raise InputError(
            f"attack '{attack}' cannot be made with {options}: {error}; 'bench list attacks' shows "
            "its options"
        ) from error
    return options
