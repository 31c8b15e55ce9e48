"""Attack a model and measure what came of it: `bench.attack`.

An image that the model gets wrong when clean is broken at eps 0 and costs nothing; what breaks at
one budget is broken at every larger one and is not attacked again. Success and distance are
measured here, by a fresh float32 pass over the returned images.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from bench.announcing import looked_over
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
from bench.attacking.stochastic import StochasticResult, attack_stochastic
from bench.attacking.sweeping import Sweep
from bench.attacking.verifying import distances, verdict
from bench.batching import in_parts
from bench.context import Context
from bench.errors import InputError
from bench.preserving import preserved
from bench.refinement import is_stochastic
from bench.types import Attack, Norm

_DETECTION_IMAGES = 4  # of six passes each: sixteen would cost as much as a step of the attack


@dataclass(frozen=True, eq=False, repr=False)
class AttackResult:
    """What an attack came to; for a list of budgets most fields have a leading axis ``n_eps``.

    Attributes:
        attack: Its name.
        norm: The norm of ``eps`` and ``distance``.
        eps: The budget or budgets, as asked for; ``None`` where the nearest adversarial image was.
        x_adv: The images returned, broken or not, ``(B, C, H, W)``.
        success: Whether the image is misclassified, ``(B,)`` bool; of a stochastic model the
            share of scoring draws in which it is, float64.
        margin: True logit minus best other, ``(B,)``; of a stochastic model its mean.
        distances: L0 (entries), L2 and L-infinity of the change, ``(B,)`` float64 each.
        queries: Forward passes that the attack spent on each image over all budgets, always
            ``(B,)``; the passes of the measurement are not counted.
        clean_pred: The class predicted for the clean image, always ``(B,)``; of a stochastic
            model the most frequent one.
        draws: The full protocol's result where the model is stochastic.
    """

    attack: str
    norm: Norm
    eps: float | tuple[float, ...] | None
    x_adv: Tensor
    success: Tensor
    margin: Tensor
    distances: dict[Norm, Tensor]
    queries: Tensor
    clean_pred: Tensor
    draws: StochasticResult | None = None

    def __repr__(self) -> str:
        """Return what it came to in a line, without the images."""
        shares = self.success.double().reshape(-1, len(self.queries)).mean(dim=1).tolist()
        success = ", ".join(f"{share:.3f}" for share in shares)
        return (
            f"AttackResult({self.attack!r}, eps={self.eps}, images={len(self.queries)}, "
            f"success={success})"
        )

    @property
    def distance(self) -> Tensor:
        """The distance in the attack's norm; without a budget, infinite where nothing was found."""
        distance = self.distances[self.norm]
        if self.eps is None:
            # A stochastic model is wrong in some draw of many an image that is not broken.
            found = self.success > 0 if self.draws is None else self.draws.broken[0]
            distance = torch.where(found.to(distance.device), distance, torch.inf)
        return distance


@dataclass(frozen=True)
class _Part:
    """The results of some images, budgets increasing."""

    x_adv: Tensor
    success: Tensor
    margin: Tensor
    queries: Tensor


def _attack_right(
    task: Plan,
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    margin: Tensor,
    context: Context,
    starts: Tensor | None,
) -> _Part:
    """Attack images that are right when clean; broken ones are carried to larger budgets."""
    sweep = Sweep(task, model, x, y, context, starts)
    current, broken = x.clone(), torch.zeros_like(y, dtype=torch.bool)
    margin = margin.clone()
    stages, ids = [], context.noise.image_ids
    for i, eps in enumerate(task.eps):
        rows = (~broken).nonzero()[:, 0]
        if len(rows) and eps > 0:
            found = sweep.at(i, rows)
            predicted, margin[rows] = verdict(model, found, y[rows], ids[rows])
            current[rows], broken[rows] = found, predicted != y[rows]
        stages.append((current.clone(), broken.clone(), margin.clone()))
    x_adv, success, margins = (torch.stack(s) for s in zip(*stages, strict=True))
    return _Part(x_adv, success, margins, sweep.passes)


def _attack_part(
    task: Plan, model: nn.Module, x: Tensor, y: Tensor, context: Context, starts: Tensor | None
) -> tuple[_Part, Tensor]:
    """Attack one micro-batch; also return the clean predictions."""
    clean, clean_margin = verdict(model, x, y, context.noise.image_ids)
    right = (clean == y).nonzero()[:, 0]
    many = len(task.eps)
    whole = _Part(
        x.expand(many, *x.shape).clone(),
        (clean != y).expand(many, -1).clone(),
        clean_margin.expand(many, -1).clone(),
        torch.zeros_like(y),
    )
    if len(right):
        local = replace(context, noise=context.noise.select(right))
        near = None if starts is None else starts[right].expand(many, -1, -1, -1, -1)
        part = _attack_right(task, model, x[right], y[right], clean_margin[right], local, near)
        whole.x_adv[:, right], whole.success[:, right] = part.x_adv, part.success
        whole.margin[:, right], whole.queries[right] = part.margin, part.queries
    return whole, clean


def _attack_deterministic(
    task: Plan,
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    context: Context,
    starts: Tensor | None,
    device: torch.device,
) -> AttackResult:
    """Attack in micro-batches and put the budgets back into the order asked for."""

    def attack_rows(rows: Tensor) -> tuple[_Part, Tensor]:
        local = replace(context, noise=context.noise.select(rows))
        rows = rows.to(x.device)
        near = None if starts is None else starts[rows].to(device)
        return _attack_part(task, model, x[rows].to(device), y[rows].to(device), local, near)

    with preserved(model):
        done = in_parts(len(x), context.micro_batch, attack_rows, context.noise.image_ids.device)
    parts, cleans = zip(*done, strict=True)
    back = torch.tensor(task.order, device=x.device).argsort()

    def join(name: str) -> Tensor:
        return torch.cat([getattr(p, name).to(x.device) for p in parts], dim=1)[back]

    x_adv = join("x_adv")
    each = [distances(x, one) for one in x_adv]
    return AttackResult(
        attack=task.name,
        norm=task.norm,
        eps=tuple(task.eps[i] for i in back.tolist()),
        x_adv=x_adv,
        success=join("success"),
        margin=join("margin"),
        distances={norm: torch.stack([d[norm] for d in each]) for norm in Norm},
        queries=torch.cat([p.queries.to(x.device) for p in parts]),
        clean_pred=torch.cat(cleans).to(x.device),
    )


def _of_draws(result: StochasticResult) -> AttackResult:
    """Return the result on a stochastic model in the common form."""
    wrong = (result.predictions != result.labels[:, None]).double().mean(dim=-1)
    return AttackResult(
        attack=result.attack,
        norm=result.norm,
        eps=result.eps,
        x_adv=result.x_adv,
        success=wrong,
        margin=result.margin,
        distances=result.distances,
        queries=result.queries,
        clean_pred=result.clean_predictions.mode(dim=1).values,
        draws=result,
    )


def _first(result: AttackResult) -> AttackResult:
    """Return the result of a single budget, or of none, without the leading axis."""
    assert isinstance(result.eps, tuple)
    return replace(
        result,
        eps=None if result.eps == (math.inf,) else result.eps[0],
        x_adv=result.x_adv[0],
        success=result.success[0],
        margin=result.margin[0],
        distances={norm: values[0] for norm, values in result.distances.items()},
    )


def attack(
    attack: str | Attack,
    model: nn.Module,
    x: Arrays,
    y: Arrays | Sequence[int],
    *,
    eps: float | Sequence[float] | None = None,
    starts: Arrays | None = None,
    seed: int = 0,
    ids: Any | None = None,
    task: str | None = None,
    micro_batch: int = 128,
    context: Context | None = None,
    **options: Any,
) -> AttackResult:
    """Attack a model and return the measured outcome.

    The attack runs in eval mode; the model's flags, statistics and gradients and the global random
    state are afterwards what they were. A model that is random without declaring it is found out
    (`looked_over`) and treated as the stochastic model that it is; one whose answer to an image
    depends on the rest of the batch is refused.

    Args:
        attack: Its name, e.g. ``"pgd-linf"``, or an attack with its options.
        model: Takes float32 images in [0, 1] and returns logits.
        x: Images, ``(B, C, H, W)``: uint8, or floating point in [0, 1].
        y: True classes, ``(B,)`` integers.
        eps: One budget or several, in units of the [0, 1] pixel range; with several, the fields of
            the result have a leading axis. ``None`` looks for the nearest adversarial image.
        starts: Where to start, ``(B, C, H, W)``; for decision attacks images that are already
            misclassified.
        seed: Seed of all draws, with ``task`` and ``ids``.
        ids: Number of each image in its data set; 0, 1, ... by default. The draws of an image
            depend on its number, not on the batch it is in.
        task: What the draws are for; ``attack/<name>`` by default.
        micro_batch: Images sent through the model at once.
        context: Takes the place of seed, ids, task and micro_batch.
        **options: Options of the attack (``bench list attacks``); ``step_size`` may have one value
            for each budget. For a stochastic model also ``gradient`` (one of the gradients instead
            of all) and those of `attack_stochastic`.

    Raises:
        InputError: An argument is not what it must be, or the attack left the box or the ball.
        ModelError: The model does not return finite logits, or they depend on the batch.
        UnknownName: No attack has that name.
    """
    images = as_images(x)
    labels = as_labels(y, len(images)).to(images.device)
    device = home(model, images.device)
    model = looked_over(model, images[:_DETECTION_IMAGES].to(device))
    if is_stochastic(model):
        if starts is not None:
            options["starts"] = starts
        if "gradient" in options:
            options["gradients"] = (options.pop("gradient"),)
        result = _of_draws(
            attack_stochastic(
                attack,
                model,
                images,
                labels,
                eps=eps,
                seed=seed,
                ids=ids,
                task=task,
                micro_batch=micro_batch,
                context=context,
                **options,
            )
        )
    else:
        work = plan(attack, eps, options)
        noise = noise_of(context, len(images), seed, task or f"attack/{work.name}", ids, device)
        near = as_starts(starts, images)
        if near is not None and not work.takes_starts:
            raise InputError(f"attack '{work.name}' takes no starting points; leave 'starts' out")
        surroundings = around(noise, context, micro_batch)
        result = _attack_deterministic(work, model, images, labels, surroundings, near, device)
    return result if isinstance(eps, Sequence | torch.Tensor) or _is_array(eps) else _first(result)


def _is_array(eps: object) -> bool:
    """Say whether several budgets were asked for, though perhaps one only."""
    return getattr(eps, "ndim", 0) > 0
