"""Images of a batch in parts that go through the model at once, shared by what looks at them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bench.context import Context
from bench.models import LoadedModel
from bench.noise import Noise
from bench.refinement import OneDraw, is_stochastic, unrefined
from bench.sharing import Shared, shared
from bench.tasks.base import Batch


@dataclass(frozen=True, eq=False)
class Part:
    """Some images, their labels and noise, and the unrefined model, which answers for them once."""

    model: Shared | None
    x: Tensor
    y: Tensor | None
    noise: Noise


def parts_of(
    model: LoadedModel | None,
    batch: Batch,
    context: Context,
    *,
    input_noise: float,
    gradient: bool,
) -> Sequence[Part]:
    """Return the images in parts, those of an earlier measure of the batch where there are any.

    Parts that were made smaller because memory ran out stay; larger ones are made anew.

    Args:
        model: The model, or ``None`` for what needs none.
        batch: The images.
        context: Their noise, and how many go through the model at once.
        input_noise: Standard deviation of noise added to each image once, x units.
        gradient: Whether any measure of the batch needs the gradient of log p(x).
    """
    name = f"parts, noise {input_noise}"
    size, parts = batch.shared.get(name, (0, ()))
    if not 0 < size <= context.micro_batch:
        parts = tuple(_split(model, batch, context, input_noise, gradient))
        batch.shared[name] = context.micro_batch, parts
    made: Sequence[Part] = parts
    return made


def _split(
    model: LoadedModel | None, batch: Batch, context: Context, input_noise: float, gradient: bool
) -> Iterator[Part]:
    positions = torch.arange(len(batch.x), device=batch.x.device)
    for rows in torch.split(positions, context.micro_batch):
        noise = context.noise.select(rows)
        x = batch.x[rows]
        y = None if batch.y is None else batch.y[rows]
        if input_noise:
            x = x + input_noise * noise.at("input").normal(*x.shape[1:])
        yield Part(_answering(model, x, noise, gradient), x, y, noise)


def _answering(model: LoadedModel | None, x: Tensor, noise: Noise, gradient: bool) -> Shared | None:
    """Return the model held at these images; a random one is held at one draw too."""
    if model is None:
        return None
    module = unrefined(model.module)
    if is_stochastic(module):
        module = OneDraw(module, noise.at("draw", 0))
    return shared(module, x, gradient=gradient)
