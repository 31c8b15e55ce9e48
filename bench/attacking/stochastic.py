"""Attack a stochastic model: many candidates, one winner an image, fresh draws for the score.

A worst case taken over attacks on the draws that score them is biased: among several attacks one
is always lucky. So for every image and budget one winner is chosen on selection draws, among the
clean image, the winner at the next smaller budget and what each gradient found; and only the
winner is scored, on draws that nothing before has seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from bench.attacking.draw_accuracy import mean_accuracy, vote_accuracy, worst_accuracy
from bench.attacking.inputs import (
    Arrays,
    Plan,
    around,
    as_images,
    as_labels,
    as_starts,
    home,
    noise_of,
    plan,
)
from bench.attacking.known_noise import unknowable
from bench.attacking.sources import FIXED_NOISE, GRADIENTS, Settings, sources_of
from bench.attacking.verifying import distances
from bench.attacking.winners import Contest, Part, broken
from bench.batching import in_parts
from bench.context import Context
from bench.errors import InputError
from bench.preserving import preserved
from bench.refinement import is_stochastic
from bench.specs import wrong_type
from bench.types import Attack, Norm

FULL_SAMPLES = 2  # draws behind a full gradient, which costs several times a straight-through one
STATIC_RESTARTS = 2  # of a search whose passes cost next to nothing


@dataclass(frozen=True, eq=False)
class StochasticResult:
    """What an attack on a stochastic model came to; budgets are in the order asked for.

    Attributes:
        attack: Its name.
        norm: The norm of the budgets.
        eps: The budgets; infinite where the nearest adversarial image was asked for.
        x_adv: The winners, ``(n_eps, B, C, H, W)``.
        source: Where each winner comes from, ``(n_eps, B)``: positions in `sources.SOURCES`.
        rank: Of the winners on the selection draws, ``(n_eps, B)`` float64: the number of draws
            that are right, and within it the mean margin. Among several attacks the one with the
            lowest rank may be taken for each image: its scoring draws had no part in it.
        broken: Whether at most half of the selection draws are right, ``(n_eps, B)`` bool.
        predictions: Of the winners, in every scoring draw, ``(n_eps, B, R)``.
        clean_predictions: Of the clean images, in the same draws, ``(B, R)``.
        margin: Mean over the scoring draws of true logit minus best other, ``(n_eps, B)``.
        clean_margin: The same for the clean images, ``(B,)``.
        distances: L0, L2 and L-infinity of each winner, ``(n_eps, B)`` float64.
        spent: By source, evaluations spent on each image over all budgets, ``(B,)``; a draw with
            all its chains is one.
        seconds: By source.
        skipped: Gradients that do not apply to this model or attack, with the reason.
        fixed_noise: With ``fixed-noise``: whether an image is right in the first scoring draw when
            the attack knows its noise, ``(n_eps, B)`` bool; a diagnostic, of no part in the rest.
        labels: The true classes, ``(B,)``.
    """

    attack: str
    norm: Norm
    eps: tuple[float, ...]
    x_adv: Tensor
    source: Tensor
    rank: Tensor
    broken: Tensor
    predictions: Tensor
    clean_predictions: Tensor
    margin: Tensor
    clean_margin: Tensor
    distances: dict[Norm, Tensor]
    spent: dict[str, Tensor]
    seconds: dict[str, float]
    skipped: dict[str, str]
    fixed_noise: Tensor | None
    labels: Tensor

    @property
    def queries(self) -> Tensor:
        """Evaluations spent in attacking, over all budgets and sources, ``(B,)``."""
        return torch.stack(list(self.spent.values())).sum(dim=0)

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


def attack_stochastic(
    attack: str | Attack,
    model: nn.Module,
    x: Arrays,
    y: Arrays | Sequence[int],
    *,
    eps: float | Sequence[float] | None = None,
    gradients: Sequence[str] = GRADIENTS,
    by_gradient: Settings | None = None,
    selection_draws: int = 10,
    scoring_draws: int = 20,
    starts: Arrays | None = None,
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
        model: With ``stochastic = True`` and ``sample_logits(x, noise)``; with what `Refining`
            names, all gradients apply.
        x: Images, ``(B, C, H, W)``.
        y: True classes, ``(B,)``.
        eps: One budget or several; ``None`` looks for the nearest image that is wrong in at least
            half of the selection draws.
        gradients: Out of ``static``, ``straight-through``, ``surrogate`` and ``full`` (see
            `bench.target`): each that applies is tried, from a cold start and from the static
            result. An attack without the option ``gradient`` asks the draws instead.
            ``fixed-noise`` adds the diagnostic of that name.
        by_gradient: Options of the attack for one gradient only, e.g.
            ``{"full": {"eot_samples": 1, "steps": 10}}``. What is not given is the same for all,
            but ``full`` has at most 2 samples, and ``static``, which costs next to nothing, at
            least 2 restarts.
        selection_draws: Draws on which the winner is chosen.
        scoring_draws: R, draws on which it is scored; none is a selection draw.
        starts: Where cold searches start, ``(B, C, H, W)``.
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
    _check(gradients, by_gradient, selection_draws, scoring_draws)
    images = as_images(x)
    labels = as_labels(y, len(images)).to(images.device)
    near = as_starts(starts, images)
    device = home(model, images.device)
    if not is_stochastic(model):
        raise InputError(
            f"{type(model).__name__} does not declare stochastic = True; use bench.attack, or wrap "
            "the model in Announced"
        )
    work = plan(attack, eps, options)
    if near is not None and not work.takes_starts:
        raise InputError(f"attack '{work.name}' takes no starting points; leave 'starts' out")
    noise = noise_of(context, len(images), seed, task or f"attack/{work.name}", ids, device)
    base = around(noise, context, micro_batch)
    sources, skipped = sources_of(work, model, gradients, _by_gradient(work, by_gradient or {}))
    if FIXED_NOISE in gradients and (reason := unknowable(work, model)):
        skipped[FIXED_NOISE] = reason
    known = FIXED_NOISE in gradients and FIXED_NOISE not in skipped
    run = Contest(work, model, sources, selection_draws, scoring_draws, known)

    def attack_rows(rows: Tensor) -> Part:
        local = replace(base, noise=noise.select(rows))
        rows = rows.to(images.device)
        start = None if near is None else near[rows].to(device)
        return run(images[rows].to(device), labels[rows].to(device), local, start)

    with preserved(model):
        parts = in_parts(len(images), base.micro_batch, attack_rows, noise.image_ids.device)
    return _joined(work, parts, images, labels, selection_draws, skipped)


def _check(gradients: Any, by_gradient: Any, selection: Any, scoring: Any) -> None:
    known = (*GRADIENTS, FIXED_NOISE)
    given = {} if by_gradient is None else by_gradient
    counts = not any(wrong_type(n, 1) or n < 1 for n in (selection, scoring))
    if (
        not isinstance(gradients, list | tuple | set)
        or not isinstance(given, Mapping)
        or not all(isinstance(options, Mapping) for options in given.values())
        or {*gradients, *given} - {*known}
        or not {*gradients} & {*GRADIENTS}
        or not counts
    ):
        raise InputError(
            f"gradients={gradients!r}, by_gradient={by_gradient!r}, selection_draws={selection}, "
            f"scoring_draws={scoring}; expected at least one draw of each kind, options by "
            f"gradient, and a list of gradients out of {', '.join(known)}, the last beside another"
        )


def _by_gradient(work: Plan, given: Settings) -> Settings:
    """Return what differs by gradient: what the caller says, and else what fits its cost."""
    usual: dict[str, dict[str, Any]] = {}
    if work.has("eot_samples"):
        usual["full"] = {"eot_samples": min(work.option("eot_samples"), FULL_SAMPLES)}
    if work.has("restarts") and work.has("loss"):
        usual["static"] = {"restarts": max(work.option("restarts"), STATIC_RESTARTS)}
    return {kind: {**usual.get(kind, {}), **given.get(kind, {})} for kind in {*usual, *given}}


def _joined(
    work: Plan,
    parts: list[Part],
    images: Tensor,
    labels: Tensor,
    selection: int,
    skipped: dict[str, str],
) -> StochasticResult:
    """Return the micro-batches as one result, budgets in the order asked for."""
    back = torch.tensor(work.order, device=images.device).argsort()

    def join(name: str) -> Tensor:
        return torch.cat([getattr(p, name).to(images.device) for p in parts], dim=1)[back]

    def rows(values: list[Tensor]) -> Tensor:
        return torch.cat([v.to(images.device) for v in values])

    x_adv, rank = join("x_adv"), join("rank")
    each = [distances(images, one) for one in x_adv]
    return StochasticResult(
        attack=work.name,
        norm=work.norm,
        eps=tuple(work.eps[i] for i in back.tolist()),
        x_adv=x_adv,
        source=join("source"),
        rank=rank,
        broken=broken(rank, selection),
        predictions=join("predictions"),
        clean_predictions=rows([p.clean_predictions for p in parts]),
        margin=join("margin"),
        clean_margin=rows([p.clean_margin for p in parts]),
        distances={norm: torch.stack([d[norm] for d in each]) for norm in Norm},
        spent={name: rows([p.spent[name] for p in parts]) for name in parts[0].spent},
        seconds={name: sum(p.seconds[name] for p in parts) for name in parts[0].seconds},
        skipped={**skipped, **parts[0].refused},
        fixed_noise=None if parts[0].fixed_noise is None else join("fixed_noise"),
        labels=labels,
    )
