"""What the numbers of a benchmark are computed with: metrics and their intervals.

NumPy arrays, sequences or torch tensors in, float64 arithmetic, ties exact; NaN and empty
arrays are an `InputError`. Scores are higher for in-distribution images. docs/metrics.md has
every definition with its edge rule.
"""

from bench.metrics.calibrated import CalibratedECE, expected_calibrated_ece
from bench.metrics.calibration import (
    ReliabilityTable,
    adaptive_ece,
    classwise_ece,
    debiased_ece,
    ece,
    mce,
    reliability_table,
    rmsce,
)
from bench.metrics.delong import delong_logit, delong_variance
from bench.metrics.inputs import metric_inputs
from bench.metrics.intervals import interval, interval_method, joint_intervals
from bench.metrics.predictions import confidence_and_correct, ties
from bench.metrics.proper import accuracy, brier, nll
from bench.metrics.proportion import wilson
from bench.metrics.rank_counts import Ranking, rank
from bench.metrics.ranking import (
    aupr_in,
    aupr_out,
    auroc,
    average_precision,
    fpr95_id,
    fpr95_ood,
    fpr_at_tpr,
)
from bench.metrics.resampling import bootstrap_counts
from bench.metrics.selective import aurc, e_aurc

__all__ = [
    "CalibratedECE",
    "Ranking",
    "ReliabilityTable",
    "accuracy",
    "adaptive_ece",
    "aupr_in",
    "aupr_out",
    "aurc",
    "auroc",
    "average_precision",
    "bootstrap_counts",
    "brier",
    "classwise_ece",
    "confidence_and_correct",
    "debiased_ece",
    "delong_logit",
    "delong_variance",
    "e_aurc",
    "ece",
    "expected_calibrated_ece",
    "fpr95_id",
    "fpr95_ood",
    "fpr_at_tpr",
    "interval",
    "interval_method",
    "joint_intervals",
    "mce",
    "metric_inputs",
    "nll",
    "rank",
    "reliability_table",
    "rmsce",
    "ties",
    "wilson",
]
