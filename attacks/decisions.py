"""What a decision-based attack may ask: whether a point is misclassified.

A stochastic model is asked for several draws at once, and a point counts as misclassified where at
most half of them are right, which is also what the measurement asks of a nearest image.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from bench.batching import in_parts
from bench.context import Context
from bench.noise import Noise
from bench.target import Target, target


class Decisions:
    """The answers of a model for the images of a batch; only the predicted class is used.

    Args:
        goal: The model; its samples are the votes.
        y: True classes, ``(B,)``.
        noise: One row an image.
        context: Progress and the time limit.

    Attributes:
        passes: ``(B,)`` int64; evaluations spent on each image so far.
    """

    def __init__(self, goal: Target, y: Tensor, noise: Noise, context: Context) -> None:
        self.noise, self._goal, self._y, self._context = noise, goal, y, context
        self.passes = torch.zeros_like(y)

    @property
    def stochastic(self) -> bool:
        """Whether the same question may be answered otherwise the next time."""
        return self._goal.stochastic

    def out_of_time(self) -> bool:
        """Say whether the attack is to return the best that it has."""
        return self._context.out_of_time()

    def select(self, rows: Tensor) -> Decisions:
        """Return the answers for some images, which count passes of their own."""
        return Decisions(self._goal, self._y[rows], self.noise.select(rows), self._context)

    def __call__(self, points: Tensor, rows: Tensor | None, *name: int | str) -> Tensor:
        """Say which points are misclassified, ``(b,)`` bool; all go through the model at once.

        Args:
            points: ``(b, C, H, W)``.
            rows: Which image each point belongs to, ``(b,)``, none twice; ``None``: all, in order.
            name: Of the draws of a stochastic model; another name gives other draws.
        """
        noise, y = self.noise, self._y
        if rows is not None:
            noise, y = noise.select(rows), y[rows]
        if self.stochastic:
            noise = noise.at("votes", *name)
        logits = self._goal(points, noise)
        votes = logits.shape[1]
        if votes == 1:
            # No answer is none that is right; the verdict refuses such a model.
            wrong = (logits[:, 0].argmax(dim=1) != y) | logits[:, 0].isnan().any(dim=1)
        else:
            wrong = 2 * (logits.argmax(dim=2) == y[:, None]).sum(dim=1) <= votes
        if rows is None:
            self.passes += votes
        else:
            self.passes[rows] += votes
        self._context.progress(1)
        return wrong

    def surely(self, points: Tensor, rows: Tensor | None, *name: int | str) -> Tensor:
        """Say the same; of a stochastic model only what two sets of votes agree on.

        Many questions are asked, and some answers are lucky: what a search builds upon, or what it
        returns, is asked for twice.
        """
        wrong = self(points, rows, *name)
        return wrong & self(points, rows, *name, "again") if self.stochastic else wrong


def search_in_parts(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    context: Context,
    votes: int,
    search: Callable[[Decisions, Tensor, Tensor], Tensor],
) -> Tensor:
    """Return what ``search`` finds, ``(B, C, H, W)``, for as many images at once as are allowed.

    Args:
        model: Returns logits.
        x: Clean images, ``(B, C, H, W)``.
        y: True classes, ``(B,)``.
        context: Its noise has one row an image; told what each image cost.
        votes: Draws of a stochastic model behind an answer.
        search: Takes the answers, some of the images, and their places in the batch.
    """
    goal = target(model, samples=votes)

    def part(rows: Tensor) -> tuple[Tensor, Tensor]:
        decide = Decisions(goal, y[rows], context.noise.select(rows), context)
        return search(decide, x[rows], rows), decide.passes

    with torch.no_grad():
        parts = in_parts(len(x), context.micro_batch // goal.rows, part, x.device)
    context.spent(torch.cat([passes for _, passes in parts]))
    return torch.cat([found for found, _ in parts])
