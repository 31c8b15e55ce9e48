"""Recheck the evidence of the checks for masked gradients, as far as it takes no search.

The images that the attacks found are not kept, and to search again would cost what the run did.
What passes and gradients tell of the clean images is asked of the model again.
"""

from __future__ import annotations

from torch import nn

from bench.attacking.evidence import PASSES, WHITE, Scene
from bench.context import Context
from bench.models import LoadedModel
from bench.refinement import is_stochastic
from bench.tasks.base import Batch
from bench.tasks.draws import classes_of, draw_answers
from bench.tasks.masking import Masking
from bench.tasks.rechecking import Finding, Stored, compare, note_verdicts, recheck, usual
from bench.tasks.rechecking_images import check_finished
from bench.types import Array

ALWAYS = ("changed", "unfinished")  # beside what is asked again
SEARCHED = (
    *("steps_margin", "few_margin", "white_right", "noise_right", "fgsm_right"),
    *("huge_right", "grid_right", "black_right"),
)


@recheck.register
def _(
    measure: Masking, model: LoadedModel | None, batch: Batch, context: Context, stored: Stored
) -> Finding:
    """Compare what passes and gradients at the clean images say; attacks are not made again."""
    assert model is not None
    assert batch.y is not None
    finding = Finding(len(batch.x))
    scene = Scene(model.module, batch.x, batch.y, context)
    found = {**scene.answers(), **scene.gradients(measure.eot_samples)}
    again = {name: values.cpu().numpy() for name, values in found.items()}
    missing = {*again, *ALWAYS, *_searched(measure, scene, stored)} - set(stored.arrays)
    if missing:
        finding.differences.append(f"holds no {', '.join(sorted(missing))}")
        return finding
    _check_right(finding, model.module, batch, again.pop("clean_right"), context, stored)
    for name, values in again.items():
        compare(finding, name, values, stored)
    check_finished(finding, measure.seconds_per_image, stored)
    known = {*again, "clean_right", "unfinished"}
    finding.unchecked += [name for name in stored.arrays if name not in known]
    return finding


def _searched(measure: Masking, scene: Scene, stored: Stored) -> set[str]:
    """Return what attacks have left, unless their time ran out before."""
    late = "unfinished" in stored.arrays and bool(stored.arrays["unfinished"].any())
    if late or measure.norm not in WHITE or not measure.eps:
        return set()
    return {*SEARCHED, *(("transfer_right",) if scene.refines else ())}


def _check_right(
    finding: Finding,
    module: nn.Module,
    batch: Batch,
    right: Array,
    context: Context,
    stored: Stored,
) -> None:
    """Compare the share of passes that are right, but for ties in one of them."""
    passes = PASSES if is_stochastic(module) else 1
    _, gaps = classes_of(draw_answers(module, batch.x, passes, context, "pass"))
    values = stored.arrays["clean_right"].round(9)
    smallest = gaps.min(axis=1)
    note_verdicts(finding, "clean_right", values, right.round(9), smallest, stored, usual(gaps))
