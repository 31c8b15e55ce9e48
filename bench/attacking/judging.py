"""Show images to a stochastic model under named draws: those that choose, those that score."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bench.attacking.verifying import check_logits, margin
from bench.noise import Noise
from bench.refinement import draw_logits

SELECT, LEAVE, SCORE = "select", "leave", "score"  # branches of the noise; attacks have others


@dataclass(frozen=True)
class Judge:
    """Evaluates candidates; all candidates of an image meet the same draws.

    Attributes:
        model: Stochastic.
        y: True classes, ``(B,)``.
        noise: Of the images.
        selection: Draws that rank candidates.
        scoring: Draws that score the winners.
    """

    model: nn.Module
    y: Tensor
    noise: Noise
    selection: int
    scoring: int

    @torch.no_grad()
    def draws(
        self, x: Tensor, branch: str, count: int, rows: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return classes and margins, ``(b, count)`` each, of the images at ``rows``."""
        y = self.y if rows is None else self.y[rows]
        noise = self.noise if rows is None else self.noise.select(rows)
        predictions, margins = [], []
        for d in range(count):
            logits = self._logits(x, y, noise.at(branch, d))
            predictions.append(logits.argmax(dim=1))
            margins.append(margin(logits, y))
        return torch.stack(predictions, dim=1), torch.stack(margins, dim=1)

    def _logits(self, x: Tensor, y: Tensor, noise: Noise) -> Tensor:
        """Return the logits of one draw, ``(b, K)``."""
        return check_logits(draw_logits(self.model, x, noise), noise.image_ids, y)

    def rank(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return how well each image resists, ``(b,)`` float64: lower is weaker.

        It is the number of selection draws that are right, and within one number the mean margin
        decides: that moves the rank by less than half a draw.
        """
        predictions, margins = self.draws(x, SELECT, self.selection, rows)
        y = self.y if rows is None else self.y[rows]
        right = (predictions == y[:, None]).double().sum(dim=1)
        mean = margins.double().mean(dim=1)
        return right + 0.49 * mean / (1 + mean.abs())

    def score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return classes and margins in the scoring draws, ``(B, scoring)`` each."""
        return self.draws(x, SCORE, self.scoring)
