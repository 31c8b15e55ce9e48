"""What a registered metric takes: its positional parameters, by name."""

from __future__ import annotations

import inspect

from bench.errors import InputError
from bench.registry import METRICS

PAIR = ("id_scores", "ood_scores")
IMAGES = ("logits", "labels", "probs", "confidence", "correct")


def metric_inputs(name: str) -> tuple[str, ...]:
    """Return the names of the arrays the metric takes, in order.

    Raises:
        UnknownName: No metric has that name.
        InputError: The metric asks for arrays that the harness does not have.
    """
    parameters = inspect.signature(METRICS[name]).parameters.values()
    inputs = tuple(
        p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD and p.default is p.empty
    )
    if inputs != PAIR and not (inputs and set(inputs) <= set(IMAGES)):
        raise InputError(
            f"metric '{name}' takes ({', '.join(inputs)}); expected ({', '.join(PAIR)}), or some "
            f"of {', '.join(IMAGES)}; make options keyword-only"
        )
    return inputs


def is_pair(name: str) -> bool:
    """Say whether the metric compares ID with OOD scores."""
    return metric_inputs(name) == PAIR
