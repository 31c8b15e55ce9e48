"""Logistic regression on pixels, trained by full-batch gradient descent."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from bench.data import to_tensor
from bench.registry import MODELS, TRAINERS
from bench.training import Event, TrainContext, Trained
from bench.types import Dataset
from bench.weights import load_into, read_weights


@MODELS.register("logistic", trainer="gradient-descent")
def logistic(dataset: Dataset, checkpoint: Path | None = None) -> nn.Module:
    """Logistic regression on pixels."""
    size = dataset.shape[0] * dataset.shape[1] * dataset.shape[2]
    model = nn.Sequential(nn.Flatten(), nn.Linear(size, len(dataset.classes)))
    if checkpoint is not None:
        load_into(model, read_weights(checkpoint)[0], checkpoint)
    return model


@TRAINERS.register("gradient-descent")
@dataclass(frozen=True, kw_only=True)
class GradientDescent:
    """Cross-entropy by plain gradient descent on all images at once."""

    epochs: int = 100
    learning_rate: float = 0.5

    def __call__(self, train: Dataset, validation: Dataset, context: TrainContext) -> Trained:
        """Train and keep the last weights."""
        model, x = context.model, to_tensor(train.images, context.device)
        y = torch.as_tensor(train.labels, device=context.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=self.learning_rate)
        for epoch in range(1, self.epochs + 1):
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            context.events(Event("epoch", epoch, self.epochs, {"loss": float(loss.detach())}))
        return Trained(model=model.eval(), epochs=self.epochs, best_epoch=self.epochs)
