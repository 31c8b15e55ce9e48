"""Attack a stochastic model: many candidates, one winner an image, fresh draws for the score.

A worst case taken over attacks on the draws that score them is biased: among several attacks one
is always lucky. So for every image and budget one winner is chosen on selection draws, among the
clean image, the winner at the next smaller budget and what each gradient found; and only the
winner is scored, on draws that nothing before has seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import torch
from torch import Tensor, nn

from bench.attacking.draw_accuracy import mean_accuracy, vote_accuracy, worst_accuracy
from bench.attacking.inputs import Arrays, Plan, as_images, as_labels, home, noise_of, plan
from bench.attacking.sweeping import Sweep
from bench.attacking.verifying import check_logits, distances, margin
from bench.context import Context
from bench.errors import InputError, Unsupported
from bench.noise import Noise
from bench.preserving import preserved
from bench.refinement import draw_logits, is_stochastic, unrefined
from bench.target import Gradient
from bench.types import Attack, Norm

SOURCES = ("clean", "static", "straight-through", "straight-through from static")


@dataclass(frozen=True, eq=False)
class StochasticResult:
    """What an attack on a stochastic model came to; budgets are in the order asked for.

    Attributes:
        attack: Its name.
        norm: The norm of the budgets.
        eps: The budgets.
        x_adv: The winners, ``(n_eps, B, C, H, W)``.
        source: Where each winner comes from, ``(n_eps, B)``: positions in `SOURCES`.
        predictions: Of the winners, in every scoring draw, ``(n_eps, B, R)``.
        clean_predictions: Of the clean images, in the same draws, ``(B, R)``.
        margin: Mean over the scoring draws of true logit minus best other, ``(n_eps, B)``.
        clean_margin: The same for the clean images, ``(B,)``.
        distances: L0, L2 and L-infinity of each winner, ``(n_eps, B)`` float64.
        queries: Evaluations spent in attacking, over all budgets and gradients, ``(B,)``; a draw
            with all its chains is one.
        labels: The true classes, ``(B,)``.
    """

    attack: str
    norm: Norm
    eps: tuple[float, ...]
    x_adv: Tensor
    source: Tensor
    predictions: Tensor
    clean_predictions: Tensor
    margin: Tensor
    clean_margin: Tensor
    distances: dict[Norm, Tensor]
    queries: Tensor
    labels: Tensor

    def accuracies(self) -> dict[str, tuple[Tensor, float]]:
        """Return ``mean``, ``vote`` and ``worst``: ``(n_eps,)`` under attack, and clean."""
        kinds = {"mean": mean_accuracy, "vote": vote_accuracy, "worst": worst_accuracy}
        return {
            name: (
                kind(self.predictions, self.labels),
                float(kind(self.clean_predictions, self.labels)),
            )
            for name, kind in kinds.items()
        }


@dataclass(frozen=True)
class _Judge:
    """Shows images to the model under named draws.

    Every candidate of an image meets the same draws: what differs is the image.
    """

    model: nn.Module
    y: Tensor
    noise: Noise

    @torch.no_grad()
    def draws(self, x: Tensor, branch: str, count: int) -> tuple[Tensor, Tensor]:
        """Return predictions and margins, ``(B, count)`` each."""
        predictions, margins = [], []
        for d in range(count):
            logits = draw_logits(self.model, x, self.noise.at(branch, d))
            logits = check_logits(logits, len(x), self.y)
            predictions.append(logits.argmax(dim=1))
            margins.append(margin(logits, self.y))
        return torch.stack(predictions, dim=1), torch.stack(margins, dim=1)

    def rank(self, x: Tensor, count: int) -> Tensor:
        """Return how well each image resists, ``(B,)``: draws it gets right, then mean margin."""
        predictions, margins = self.draws(x, "select", count)
        right = (predictions == self.y[:, None]).double().sum(dim=1)
        mean = margins.double().mean(dim=1)
        return right + 0.5 * mean / (1 + mean.abs())  # within half a draw: the count decides


@dataclass(frozen=True)
class _Part:
    """The results of one micro-batch, budgets increasing."""

    x_adv: Tensor
    source: Tensor
    predictions: Tensor
    clean_predictions: Tensor
    margin: Tensor
    clean_margin: Tensor
    queries: Tensor


def _searches(
    task: Plan, model: nn.Module, x: Tensor, y: Tensor, context: Context, wanted: Sequence[str]
) -> dict[str, Sweep]:
    """Return the candidates of every gradient that is asked for and possible, by source."""
    plain, aware = unrefined(model), task.has("gradient")
    found: dict[str, Sweep] = {}
    every = torch.arange(len(x), device=x.device)
    starts = None
    if "static" in wanted and not is_stochastic(plain):
        # A point that only just breaks the static network transfers badly: search to the end.
        static = task.varied(gradient="static", early_stop=False)
        found["static"] = Sweep(static, plain, x, y, context)
        starts = torch.stack([found["static"].at(i, every) for i in range(len(task.eps))])
    if "straight-through" in wanted and aware:
        through = task.varied(gradient="straight-through")
        found["straight-through"] = Sweep(through, model, x, y, context)
        if starts is not None and task.whole is not None:
            found["straight-through from static"] = Sweep(through, model, x, y, context, starts)
    if not found:
        raise Unsupported(
            f"attack '{task.name}' with gradients {', '.join(wanted)} cannot attack "
            f"{type(model).__name__}: 'static' needs a refinement of a deterministic network, "
            "'straight-through' an attack with the option 'gradient', e.g. 'pgd-linf'"
        )
    return found


def _attack_part(
    task: Plan,
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    context: Context,
    wanted: Sequence[str],
    draws: tuple[int, int],
) -> _Part:
    """Attack one micro-batch: search, choose the winners, score them."""
    select, score = draws
    judge = _Judge(model, y, context.noise)
    clean_predictions, clean_margin = judge.draws(x, "score", score)
    searches = _searches(task, model, x, y, context, wanted)
    every = torch.arange(len(x), device=x.device)
    best, rank = x.clone(), judge.rank(x, select)
    source = torch.zeros_like(y)
    parts = []
    for i in range(len(task.eps)):
        for name, search in searches.items() if task.eps[i] > 0 else ():
            candidate = search.at(i, every)
            its = judge.rank(candidate, select)
            better = its < rank  # a tie stays with the older, smaller perturbation
            best = torch.where(better[:, None, None, None], candidate, best)
            source = torch.where(better, SOURCES.index(name), source)
            rank = torch.where(better, its, rank)
        predictions, margins = judge.draws(best, "score", score)
        parts.append((best, source, predictions, margins.double().mean(dim=1)))
    x_adv, sources, predictions, margins = (torch.stack(p) for p in zip(*parts, strict=True))
    spent = torch.stack([search.passes for search in searches.values()]).sum(dim=0)
    return _Part(
        x_adv,
        sources,
        predictions,
        clean_predictions,
        margins,
        clean_margin.double().mean(dim=1),
        spent,
    )


def attack_stochastic(
    attack: str | Attack,
    model: nn.Module,
    x: Arrays,
    y: Arrays | Sequence[int],
    *,
    eps: float | Sequence[float] | None,
    gradients: Sequence[str] = get_args(Gradient),
    selection_draws: int = 10,
    scoring_draws: int = 20,
    seed: int = 0,
    ids: Any | None = None,
    task: str | None = None,
    micro_batch: int = 128,
    context: Context | None = None,
    **options: Any,
) -> StochasticResult:
    """Return the winners of an attack on a stochastic model and how they fare on fresh draws.

    No image is left out for being wrong in some draw. The arguments are those of `bench.attack`;
    the others:

    Args:
        attack: Its name, or an attack with its options.
        model: With ``stochastic = True`` and ``sample_logits(x, noise)``.
        x: Images, ``(B, C, H, W)``.
        y: True classes, ``(B,)``.
        eps: One budget or several.
        gradients: ``static`` attacks the network behind the refinement, ``straight-through`` the
            draws themselves, from a cold start and from the static result.
        selection_draws: Draws on which the winner is chosen.
        scoring_draws: R, draws on which it is scored; none is a selection draw.
        seed: Seed of all draws, with ``task`` and ``ids``.
        ids: Number of each image in its data set; 0, 1, ... by default.
        task: What the draws are for; the attack's name by default.
        micro_batch: Images sent through the model at once.
        context: Takes the place of seed, ids, task and micro_batch.
        **options: Options of the attack.

    Raises:
        InputError: An argument is not what it must be, or the attack breaks the rules.
        Unsupported: None of the gradients can attack this model.
    """
    unknown = sorted(set(gradients) - set(get_args(Gradient)))
    if unknown or not gradients or selection_draws < 1 or scoring_draws < 1:
        raise InputError(
            f"gradients={list(gradients)}, selection_draws={selection_draws}, "
            f"scoring_draws={scoring_draws}; expected at least one draw of each kind and at least "
            f"one gradient out of {', '.join(get_args(Gradient))}"
        )
    images = as_images(x)
    labels = as_labels(y, len(images))
    device = home(model, images.device)
    if not is_stochastic(model):
        raise InputError(
            f"{type(model).__name__} does not declare stochastic = True; use bench.attack, or wrap "
            "the model in Announced"
        )
    work = plan(attack, eps, options)
    noise = noise_of(context, len(images), seed, task or f"attack/{work.name}", ids, device)
    base = replace(context or Context(noise=noise, micro_batch=micro_batch), noise=noise)
    parts = []
    with preserved(model):
        for rows in torch.split(torch.arange(len(images)), base.micro_batch):
            local = replace(base, noise=noise.select(rows.to(noise.image_ids.device)))
            x_part, y_part = images[rows].to(device), labels.to(images.device)[rows].to(device)
            parts.append(
                _attack_part(
                    work,
                    model,
                    x_part,
                    y_part,
                    local,
                    gradients,
                    (selection_draws, scoring_draws),
                )
            )
    return _joined(work, parts, images, labels)


def _joined(work: Plan, parts: list[_Part], images: Tensor, labels: Tensor) -> StochasticResult:
    """Return the micro-batches as one result, budgets in the order asked for, on the CPU's side."""
    back = torch.tensor(work.order).argsort()

    def join(name: str, axis: int) -> Tensor:
        whole = torch.cat([getattr(p, name) for p in parts], dim=axis).to(images.device)
        return whole[back.to(images.device)] if axis == 1 else whole

    x_adv = join("x_adv", 1)
    each = [distances(images, one) for one in x_adv]
    return StochasticResult(
        attack=work.name,
        norm=work.norm,
        eps=tuple(work.eps[i] for i in back.tolist()),
        x_adv=x_adv,
        source=join("source", 1),
        predictions=join("predictions", 1),
        clean_predictions=join("clean_predictions", 0),
        margin=join("margin", 1),
        clean_margin=join("clean_margin", 0),
        distances={norm: torch.stack([d[norm] for d in each]) for norm in Norm},
        queries=join("queries", 0),
        labels=labels.to(images.device),
    )
