"""How well a score separates in-distribution (ID) from out-of-distribution (OOD) images.

Scores are higher for ID images; ties and infinities are exact, and scores are never squashed.
"""

from __future__ import annotations

import numpy.typing as npt

from bench.errors import InputError
from bench.metrics.rank_counts import Side, check_side, rank
from bench.registry import METRICS


@METRICS.register("auroc", better="higher", interval="delong-logit", bounds=(0.0, 1.0))
def auroc(id_scores: npt.ArrayLike, ood_scores: npt.ArrayLike) -> float:
    """Return P(ID > OOD) + P(ID = OOD) / 2, the area under the ROC curve.

    The Mann-Whitney statistic in integers, divided once (Hanley & McNeil 1982).

    Args:
        id_scores: ``(M,)``, higher = more in-distribution.
        ood_scores: ``(N,)``.

    Raises:
        InputError: A side is empty or holds NaN.
    """
    return float(rank(id_scores, ood_scores).auroc())


def fpr_at_tpr(
    id_scores: npt.ArrayLike, ood_scores: npt.ArrayLike, tpr: float = 0.95, positive: Side = "ood"
) -> float:
    """Return the false positive rate at the first threshold that reaches ``tpr``.

    ``positive="ood"`` (OpenOOD v1.5): flag the lowest scores until at least ``tpr`` of the OOD
    images are flagged; the share of ID images flagged. ``positive="id"`` (ODIN, most tables of
    2018-23): keep the highest scores until at least ``tpr`` of the ID images are kept; the share
    of OOD images kept. Images of equal score go together; nothing is interpolated.

    Args:
        id_scores: ``(M,)``, higher = more in-distribution.
        ood_scores: ``(N,)``.
        tpr: The share of positives to reach, in (0, 1].
        positive: Which side is positive.

    Raises:
        InputError: A side is empty or holds NaN, or an option is out of range.
    """
    check_side(positive)
    if not 0.0 < tpr <= 1.0:
        raise InputError(f"tpr={tpr} is not a share of positives; expected 0 < tpr <= 1")
    return float(rank(id_scores, ood_scores).fpr_at_tpr(tpr, positive))


def average_precision(
    id_scores: npt.ArrayLike, ood_scores: npt.ArrayLike, positive: Side = "id"
) -> float:
    """Return the area under the precision-recall curve, as a sum of steps.

    Sum over groups of equal score of (recall step) * precision, as scikit-learn's
    ``average_precision_score``; OpenOOD publishes the trapezoid, which is another number. It
    moves with the share of positives, N / (M + N): print both counts beside it.

    Args:
        id_scores: ``(M,)``, higher = more in-distribution.
        ood_scores: ``(N,)``.
        positive: Which side is positive: ``"id"`` is AUPR-in, ``"ood"`` is AUPR-out.

    Raises:
        InputError: A side is empty or holds NaN, or ``positive`` names no side.
    """
    check_side(positive)
    return float(rank(id_scores, ood_scores).average_precision(positive))


@METRICS.register("fpr95_ood", better="lower", interval="bootstrap", bounds=(0.0, 1.0))
def fpr95_ood(id_scores: npt.ArrayLike, ood_scores: npt.ArrayLike) -> float:
    """Return the share of ID images flagged where 95 % of the OOD images are (`fpr_at_tpr`)."""
    return fpr_at_tpr(id_scores, ood_scores, 0.95, "ood")


@METRICS.register("fpr95_id", better="lower", interval="bootstrap", bounds=(0.0, 1.0))
def fpr95_id(id_scores: npt.ArrayLike, ood_scores: npt.ArrayLike) -> float:
    """Return the share of OOD images kept where 95 % of the ID images are (`fpr_at_tpr`)."""
    return fpr_at_tpr(id_scores, ood_scores, 0.95, "id")


@METRICS.register("aupr_in", better="higher", interval="bootstrap", bounds=(0.0, 1.0))
def aupr_in(id_scores: npt.ArrayLike, ood_scores: npt.ArrayLike) -> float:
    """Return the average precision with ID images positive."""
    return average_precision(id_scores, ood_scores, "id")


@METRICS.register("aupr_out", better="higher", interval="bootstrap", bounds=(0.0, 1.0))
def aupr_out(id_scores: npt.ArrayLike, ood_scores: npt.ArrayLike) -> float:
    """Return the average precision with OOD images positive."""
    return average_precision(id_scores, ood_scores, "ood")
