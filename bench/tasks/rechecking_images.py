"""Recheck measures whose shards hold images, by showing these to the model again.

Verdicts come out as before but for ties, the classes in the draws that scored them as well, and
distances are measured anew and held to their budgets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from bench.attacking.judging import SCORE, SELECT, Judge
from bench.attacking.verifying import distances, verdict
from bench.context import Context
from bench.models import LoadedModel
from bench.registry import ATTACKS
from bench.tasks.attacked import Attacked
from bench.tasks.base import Batch
from bench.tasks.curves import Nearest
from bench.tasks.distal import Distal
from bench.tasks.draws import draw_classes
from bench.tasks.masking import Masking
from bench.tasks.rechecking import Finding, Stored, compare, listed, recheck
from bench.tasks.transfer import Transferred
from bench.types import Array, Norm

_SLACK = 1e-6  # of a distance: it is measured in float64 from the same numbers


@recheck.register
def _(
    measure: Attacked, model: LoadedModel | None, batch: Batch, context: Context, stored: Stored
) -> Finding:
    """Show the stored images to the model again: verdicts, distances, budgets, labels."""
    assert model is not None
    assert batch.y is not None
    finding = Finding(len(batch.x))
    compare(finding, "label", batch.y.cpu().numpy(), stored)
    x_adv = _shown(finding, "x_adv", stored, batch.x)
    _check_distances(finding, batch.x, x_adv, measure.attack, measure.eps, stored)
    if "drawn" in stored.arrays:
        _check_all_drawn(finding, model, batch.x, x_adv, context, stored)
        _check_ranks(finding, measure, model, batch, x_adv, context, stored)
    else:
        _check_verdicts(finding, model, batch, x_adv, context, stored)
    return finding


@recheck.register
def _(
    measure: Masking, model: LoadedModel | None, batch: Batch, context: Context, stored: Stored
) -> Finding:
    """Look at nothing: the evidence is of searches whose images are not kept.

    To search again would cost what the run did. Its checks are reduced again, as all records are.
    """
    return Finding()


@recheck.register
def _(
    measure: Transferred, model: LoadedModel | None, batch: Batch, context: Context, stored: Stored
) -> Finding:
    """Show the transferred images to the model again."""
    assert model is not None
    assert batch.y is not None
    finding = Finding(len(batch.x))
    compare(finding, "label", batch.y.cpu().numpy(), stored)
    x_adv = _shown(finding, "x_adv", stored, batch.x)
    _check_distances(finding, batch.x, x_adv, measure.attack, measure.eps, stored)
    _check_all_drawn(finding, model, batch.x, x_adv, context, stored)
    return finding


@recheck.register
def _(
    measure: Nearest, model: LoadedModel | None, batch: Batch, context: Context, stored: Stored
) -> Finding:
    """Show the nearest images to the model again, in the draws that select and that score."""
    assert model is not None
    assert batch.y is not None
    finding = Finding(len(batch.x))
    compare(finding, "label", batch.y.cpu().numpy(), stored)
    x_adv = _shown(finding, "x_adv", stored, batch.x)
    _check_distances(finding, batch.x, x_adv, measure.attack, (None,), stored)
    for name, branch, _ in measure.draws:
        _check_all_drawn(finding, model, batch.x, x_adv, context, stored, name, branch)
    return finding


@recheck.register
def _(
    measure: Distal, model: LoadedModel | None, batch: Batch, context: Context, stored: Stored
) -> Finding:
    """Ask the model again how certain it is of the distal images, and how likely they are."""
    assert model is not None
    finding = Finding(len(batch.x))
    x = _shown(finding, "x_distal", stored, batch.x)
    for name, values in measure.judge(model, x, batch.num_classes or 1, context).items():
        compare(finding, name, values, stored)
    return finding


def _check_distances(
    finding: Finding,
    x: Tensor,
    x_adv: Tensor,
    attack: str,
    eps: Sequence[float | None],
    stored: Stored,
) -> None:
    """Measure the distances ``(B, E)`` of stored images again, and hold them to their budgets."""
    each = [distances(x, x_adv[:, e]) for e in range(x_adv.shape[1])]
    exact = replace(stored, tolerance=_SLACK)
    far = {n: torch.stack([d[n] for d in each], dim=1).numpy() for n in Norm}
    for norm, found in far.items():
        compare(finding, norm.value, found, exact)
    norm = Norm(ATTACKS.entry(attack).facts["norm"])
    for e, budget in enumerate(eps):
        limit = math.inf if budget is None else budget  # the nearest image has none
        for row in np.flatnonzero(far[norm][:, e] > limit * (1 + _SLACK)):
            finding.differences.append(
                f"image {stored.numbers[row]}: {norm} is {far[norm][row, e]:.9g} and eps {limit:g}"
            )


def _shown(finding: Finding, name: str, stored: Stored, like: Tensor) -> Tensor:
    """Return stored images; what is outside [0, 1] is noted, and moved so that models take it."""
    x = torch.from_numpy(stored.arrays[name]).to(like.device)
    inside = ((x >= 0) & (x <= 1)).flatten(1).all(dim=1).cpu().numpy()  # false for NaN
    for row in np.flatnonzero(~inside):
        finding.differences.append(f"image {stored.numbers[row]}: {name} leaves [0, 1]")
    return x.nan_to_num(0.0).clamp(0, 1)


def _check_all_drawn(
    finding: Finding,
    model: LoadedModel,
    x: Tensor,
    x_adv: Tensor,
    context: Context,
    stored: Stored,
    name: str = "drawn",
    branch: str = SCORE,
) -> None:
    """Draw the classes of clean and stored images again: the noise is that of the first time."""
    values = {f"clean_{name}": (x, stored.arrays[f"clean_{name}"])}
    for e in range(x_adv.shape[1]):
        values[f"{name}[{e}]"] = x_adv[:, e], stored.arrays[name][:, e]
    for where, (images, classes) in values.items():
        found, gaps = draw_classes(model.module, images, classes.shape[1], context, branch)
        _note(finding, where, classes, found.astype(classes.dtype), gaps, stored)


def _check_ranks(
    finding: Finding,
    measure: Attacked,
    model: LoadedModel,
    batch: Batch,
    x_adv: Tensor,
    context: Context,
    stored: Stored,
) -> None:
    """Rank the winners again: among several attacks it is the rank that chooses."""
    assert batch.y is not None
    draws = measure.options["selection_draws"]
    for e in range(x_adv.shape[1]):
        parts = []
        for rows in torch.split(
            torch.arange(len(batch.x), device=x_adv.device), context.micro_batch
        ):
            noise = context.noise.select(rows)
            judge = Judge(model.module, batch.y[rows], noise, selection=draws, scoring=0)
            parts.append(judge.rank(x_adv[rows, e]))
        values, found = stored.arrays["rank"][:, e], torch.cat(parts).cpu().numpy()
        _, gaps = draw_classes(model.module, x_adv[:, e], draws, context, SELECT)
        differs = np.abs(values - found) > stored.tolerance
        # A tie in one draw moves the rank by one.
        tied = differs & (gaps.min(axis=1) < stored.tolerance) & (np.abs(values - found) < 1.5)
        finding.ties += int(tied.sum())
        finding.differences += listed(f"rank[{e}]", differs & ~tied, values, found, stored)


def _check_verdicts(
    finding: Finding,
    model: LoadedModel,
    batch: Batch,
    x_adv: Tensor,
    context: Context,
    stored: Stored,
) -> None:
    """Compare the clean predictions, and at every budget the verdict and the margin."""
    assert batch.y is not None
    predicted, margins = _verdicts(model, batch.x, batch.y, context)
    arrays = stored.arrays
    _note(finding, "clean_pred", arrays["clean_pred"], predicted, margins, stored)
    for e in range(x_adv.shape[1]):
        predicted, margins = _verdicts(model, x_adv[:, e], batch.y, context)
        broken = predicted != batch.y.cpu().numpy()
        _note(finding, f"broken[{e}]", arrays["broken"][:, e], broken, margins, stored)
        compare(finding, "margin", margins, stored, arrays["margin"][:, e])


def _note(
    finding: Finding, name: str, values: Array, found: Array, margins: Array, stored: Stored
) -> None:
    """Note verdicts that are not as stored; a small margin makes a tie of one."""
    differs = values != found
    tied = differs & (np.abs(margins) < stored.tolerance)
    finding.ties += int(tied.sum())
    finding.differences += listed(name, differs & ~tied, values, found, stored)


def _verdicts(model: LoadedModel, x: Tensor, y: Tensor, context: Context) -> tuple[Array, Array]:
    """Return classes and margins ``(B,)`` of one fresh pass, as the attack's own verdict."""
    parts = [
        verdict(model.module, x[rows], y[rows])
        for rows in torch.split(torch.arange(len(x), device=x.device), context.micro_batch)
    ]
    predicted, margins = (torch.cat(p).cpu().numpy() for p in zip(*parts, strict=True))
    return predicted, margins.astype(np.float64)
