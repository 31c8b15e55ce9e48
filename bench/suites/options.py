"""What options of suites must be: told before anything is computed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from bench.errors import InputError
from bench.metrics.inputs import is_pair, metric_inputs


def require_counts(suite: str, **counts: Any) -> None:
    """Raise `InputError` unless every number of draws, images or steps is at least 1."""
    for name, value in counts.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InputError(
                f"'--set {suite}.{name}={value}': expected a whole number of at least 1"
            )


def require_budgets(suite: str, norm: str, budgets: Iterable[Any]) -> None:
    """Raise `InputError` unless the budgets, if any, are positive finite numbers, each once."""
    seen: list[Any] = []
    for eps in budgets:
        number = isinstance(eps, int | float) and not isinstance(eps, bool)
        if not number or not 0 < eps < math.inf or eps in seen:
            raise InputError(
                f"'--set {suite}.{norm}={eps}': expected positive finite numbers, each once, in "
                f"units of the [0, 1] pixel range, e.g. {suite}.{norm}=[0.01, 0.02]"
            )
        seen.append(eps)


def require_nested(suite: str, name: str, value: Any, example: str) -> None:
    """Raise `InputError` unless an option holds options by name, as ``{NAME={OPTION=VALUE}}``."""
    if isinstance(value, Mapping) and all(isinstance(v, Mapping) for v in value.values()):
        return
    raise InputError(
        f"'--set {suite}.{name}={value}': expected options by name, e.g. "
        f"'{suite}.{name}={{{example}}}'"
    )


def require_metrics(suite: str, names: Iterable[str], *, pair: bool) -> None:
    """Raise unless every metric takes what the suite has.

    Args:
        suite: Its name, for the message.
        names: Of the metrics.
        pair: Whether the suite has scores of two sets, rather than logits and labels of one.

    Raises:
        UnknownName: No metric has that name.
        InputError: The metric takes something else.
    """
    has = "scores of two sets" if pair else "logits and labels of one set"
    for name in names:
        if is_pair(name) is not pair:
            takes = ", ".join(metric_inputs(name))
            raise InputError(
                f"'--set {suite}.metrics={name}': the metric takes ({takes}), and suite '{suite}' "
                f"has {has}; choose metrics of those ('bench list metrics' shows all)"
            )
