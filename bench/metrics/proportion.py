"""Intervals from binomial counts: Wilson's, and the one for data that never vary."""

from __future__ import annotations

import math

from scipy.special import ndtri

from bench.errors import InputError


def wilson(successes: float, trials: int, level: float = 0.95) -> tuple[float, float]:
    """Return Wilson's score interval of a proportion (Wilson 1927).

    Args:
        successes: How many of the trials succeeded.
        trials: How many independent trials.
        level: Two-sided confidence level, in (0, 1).

    Raises:
        InputError: There are no trials, or not ``0 <= successes <= trials``.
    """
    check_level(level)
    if trials < 1 or not 0 <= successes <= trials:
        raise InputError(
            f"{successes} successes of {trials} trials; expected at least one trial and "
            "0 <= successes <= trials"
        )
    z2 = normal_quantile(level) ** 2
    p = successes / trials
    centre = (p + z2 / (2 * trials)) / (1 + z2 / trials)
    half = math.sqrt(z2 * (p * (1 - p) / trials + z2 / (4 * trials**2))) / (1 + z2 / trials)
    # At the ends the exact bound is p itself; rounding must not move it past.
    low = 0.0 if successes == 0 else max(centre - half, 0.0)
    high = 1.0 if successes == trials else min(centre + half, 1.0)
    return low, high


def unvaried(
    estimate: float, units: int, bounds: tuple[float, float], level: float
) -> tuple[float, float]:
    """Return the interval of a statistic that no resample moves.

    ``units`` independent units looked alike, so at least (1 - level)^(1 / units) of the
    population does (exact and one-sided; about 1 - 3 / units at 95 %, the rule of three). The
    others may have any value within ``bounds``, and a mean moves by their share. For AUROC 1
    the units are min(M, N) disjoint (ID, OOD) pairs, all in order, which is again exact.
    """
    low, high = bounds
    if math.isinf(estimate):
        return bounds
    unseen = 1.0 - (1.0 - level) ** (1.0 / units)
    return _toward(estimate, low, unseen), _toward(estimate, high, unseen)


def _toward(estimate: float, bound: float, share: float) -> float:
    return estimate if estimate == bound else estimate + share * (bound - estimate)


def normal_quantile(level: float) -> float:
    """Return z with P(|N(0, 1)| < z) = level."""
    return float(ndtri((1.0 + level) / 2.0))


def check_level(level: float) -> None:
    """Refuse a confidence level outside (0, 1)."""
    if not 0.0 < level < 1.0:
        raise InputError(f"level={level}; expected a confidence level in (0, 1), e.g. 0.95")
