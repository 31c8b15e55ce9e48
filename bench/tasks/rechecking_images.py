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
from bench.attacking.sources import SOURCES
from bench.attacking.verifying import distances, verdict
from bench.context import Context
from bench.models import LoadedModel
from bench.refinement import is_stochastic
from bench.registry import ATTACKS
from bench.tasks.attacked import Attacked, smallest_eps
from bench.tasks.base import Batch
from bench.tasks.curves import Nearest
from bench.tasks.distal import Distal
from bench.tasks.draws import classes_of, draw_answers, draw_classes
from bench.tasks.rechecking import (
    Finding,
    Stored,
    compare,
    listed,
    note_verdicts,
    recheck,
    usual,
)
from bench.tasks.transfer import Transferred
from bench.types import Array, Norm

# What an attack's shard holds, of every model and of the two kinds.
COMMON = (
    *("label", "clean_pred", "x_adv", "margin", "l0", "l2", "linf"),
    *("queries", "unfinished", "changed"),
)
OF_VERDICTS = ("broken", "smallest_eps")
OF_DRAWS = ("drawn", "clean_drawn", "rank", "found", "source")
_SLACK = 1e-6  # of a distance: it is measured in float64 from the same numbers


@recheck.register
def _(
    measure: Attacked, model: LoadedModel | None, batch: Batch, context: Context, stored: Stored
) -> Finding:
    """Show the stored images to the model again: verdicts, distances, budgets, labels.

    What the search cost, and what it did to the model, only a new search could tell.
    """
    assert model is not None
    assert batch.y is not None
    finding = Finding(len(batch.x))
    drawn = is_stochastic(model.module)
    missing = {*COMMON, *(OF_DRAWS if drawn else OF_VERDICTS)} - set(stored.arrays)
    if missing:
        finding.differences.append(f"holds no {', '.join(sorted(missing))}")
        return finding
    compare(finding, "label", batch.y.cpu().numpy(), stored)
    x_adv = _shown(finding, "x_adv", stored, batch.x)
    _check_distances(finding, batch.x, x_adv, measure.attack, measure.eps, stored)
    if drawn:
        scale = _check_all_drawn(finding, model, batch, x_adv, context, stored)
        _check_ranks(finding, measure, model, batch, x_adv, context, stored, scale)
        _check_winners(finding, measure, stored)
    else:
        _check_verdicts(finding, model, batch, x_adv, context, stored)
        columns = (*measure.eps, *((math.inf,) if measure.nearest else ()))
        wrong = stored.arrays["clean_pred"] != stored.arrays["label"]
        compare(
            finding, "smallest_eps", smallest_eps(stored.arrays["broken"], columns, wrong), stored
        )
    check_finished(finding, measure.seconds_per_image, stored)
    known = (*COMMON, *OF_DRAWS, *OF_VERDICTS)
    searched = [name for name in stored.arrays if name not in known]
    finding.unchecked += [*searched, "changed", *(["source"] if drawn else ["queries"])]
    return finding


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
    _check_all_drawn(finding, model, batch, x_adv, context, stored)
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
        _check_all_drawn(finding, model, batch, x_adv, context, stored, name, branch)
    finding.unchecked.append("queries")
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
    batch: Batch,
    x_adv: Tensor,
    context: Context,
    stored: Stored,
    name: str = "drawn",
    branch: str = SCORE,
) -> float:
    """Draw the classes of clean and stored images again: the noise is that of the first time.

    Returns the usual margin of clean images.
    """
    assert batch.y is not None
    classes = stored.arrays[f"clean_{name}"]
    answers = [
        draw_answers(model.module, images, classes.shape[1], context, branch)
        for images in (batch.x, *x_adv.unbind(dim=1))
    ]
    scale = usual(classes_of(answers[0])[1])
    names = [f"clean_{name}", *(f"{name}[{e}]" for e in range(x_adv.shape[1]))]
    columns = [classes, *np.moveaxis(stored.arrays[name], 1, 0)]
    for where, values, logits in zip(names, columns, answers, strict=True):
        found, gaps = classes_of(logits)
        note_verdicts(finding, where, values, found.astype(values.dtype), gaps, stored, scale)
    if "margin" in stored.arrays:
        means = [_margins(logits, batch.y.cpu().numpy()).mean(axis=1) for logits in answers]
        compare(finding, "margin", np.stack(means[1:], axis=1), stored, np.abs(means).max())
    if "clean_pred" in stored.arrays:
        most = torch.from_numpy(classes).mode(dim=1).values.numpy()
        compare(finding, "clean_pred", most.astype(stored.arrays["clean_pred"].dtype), stored)
    return scale


def _margins(logits: Array, y: Array) -> Array:
    """Return true logit minus best other one of ``(B, R, K)``, ``(B, R)`` float64."""
    true = np.arange(logits.shape[2]) == y[:, None, None]
    own = np.where(true, logits, -np.inf).max(axis=2).astype(np.float64)
    return np.asarray(own - np.where(true, -np.inf, logits).max(axis=2))


def _check_ranks(
    finding: Finding,
    measure: Attacked,
    model: LoadedModel,
    batch: Batch,
    x_adv: Tensor,
    context: Context,
    stored: Stored,
    scale: float,
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
        # Within one number of right draws, small margins tell winners apart by little.
        differs = np.abs(values - found) > stored.tolerance * min(1.0, scale)
        # A tie in one draw moves the rank by one.
        near = gaps.min(axis=1) < stored.tolerance * scale
        tied = differs & near & (np.abs(values - found) < 1.5)
        finding.ties += int(tied.sum())
        finding.differences += listed(f"rank[{e}]", differs & ~tied, values, found, stored)


def _check_winners(finding: Finding, measure: Attacked, stored: Stored) -> None:
    """Check what follows from other arrays: who won, and what was spent in all."""
    arrays = stored.arrays
    found = np.round(arrays["rank"]) <= measure.options["selection_draws"] / 2
    compare(finding, "found", found, stored)
    spent = {name: values for name, values in arrays.items() if name.startswith("spent_")}
    compare(finding, "queries", np.sum([*spent.values()], axis=0), stored)
    won = [i for i, name in enumerate(SOURCES) if f"spent_{name}" in spent]
    source, moved = arrays["source"], arrays["l0"] > 0
    wrong = np.where(moved, ~np.isin(source, won), source != SOURCES.index("clean"))
    for row in np.flatnonzero(wrong.any(axis=1)):
        finding.differences.append(
            f"image {stored.numbers[row]}: source is stored as {source[row].tolist()}, which did "
            "not search, or not change the image"
        )
    if "fixed_noise" in arrays:  # the winners count in it
        right = arrays["drawn"][:, :, 0] == arrays["label"][:, None]
        wrong = arrays["fixed_noise"] & ~right
        finding.differences += listed("fixed_noise", wrong, arrays["fixed_noise"], right, stored)


def check_finished(finding: Finding, seconds: float | None, stored: Stored) -> None:
    """Note a search that is said to be broken off where it had no limit."""
    late = stored.arrays["unfinished"] & (seconds is None)
    finding.differences += listed("unfinished", late, late, ~late, stored)


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
    predicted, clean = _verdicts(model, batch.x, batch.y, context)
    scale, columns = usual(clean), [clean]
    values = stored.arrays["clean_pred"]
    note_verdicts(finding, "clean_pred", values, predicted, clean, stored, scale)
    for e in range(x_adv.shape[1]):
        predicted, margins = _verdicts(model, x_adv[:, e], batch.y, context)
        broken, values = predicted != batch.y.cpu().numpy(), stored.arrays["broken"][:, e]
        note_verdicts(finding, f"broken[{e}]", values, broken, margins, stored, scale)
        columns.append(margins)
    largest = float(np.abs(columns).max())
    compare(finding, "margin", np.stack(columns[1:], axis=1), stored, largest)


def _verdicts(model: LoadedModel, x: Tensor, y: Tensor, context: Context) -> tuple[Array, Array]:
    """Return classes and margins ``(B,)`` of one fresh pass, as the attack's own verdict."""
    parts = [
        verdict(model.module, x[rows], y[rows])
        for rows in torch.split(torch.arange(len(x), device=x.device), context.micro_batch)
    ]
    predicted, margins = (torch.cat(p).cpu().numpy() for p in zip(*parts, strict=True))
    return predicted, margins.astype(np.float64)
