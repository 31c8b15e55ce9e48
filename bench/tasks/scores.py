"""What a registered score says of itself: what it needs, and whether it is random or fitted."""

from __future__ import annotations

from bench.errors import InputError
from bench.registry import SCORES

NEEDS = ("logits", "features", "gradient", "noise")


def needs_of(score: str) -> tuple[str, ...]:
    """Return what a score says it needs.

    ``logits``, the ``features`` under them, the ``gradient`` of log p(x), ``noise``.

    A score that needs noise is random, and called with keyed noise as its third argument.

    Raises:
        UnknownName: There is no such score.
        InputError: It needs what nobody gives.
    """
    told = SCORES.entry(score).facts.get("needs", ())
    needs = (told,) if isinstance(told, str) else tuple(told)
    for need in needs:
        if need not in NEEDS:
            raise InputError(
                f"score '{score}' is registered with needs={told!r}; expected some of "
                f"{', '.join(NEEDS)}"
            )
    return needs


def is_random(score: str) -> bool:
    """Say whether a score depends on noise of its own."""
    return "noise" in needs_of(score)


def is_fitted(score: str) -> bool:
    """Say whether a score learns from training images first."""
    return hasattr(SCORES[score], "fit")
