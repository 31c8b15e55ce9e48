"""The training loop that all hybrid models share, with recovery from divergence.

Same data, augmentation, epochs and selection for every objective, so that a table compares
objectives. JEM's trainings diverge now and then (Grathwohl et al. 2019, arXiv 1912.03263; its
authors restart from the last checkpoint with another seed): here a divergence goes back two healthy
epochs, with new noise and smaller steps.
"""

from __future__ import annotations

import copy
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NoReturn

import torch
from torch import Tensor

from bench.errors import Diverged, InputError
from bench.training import Event, TrainContext, Trained
from bench.types import Dataset
from bench.weights import write_weights

from .batches import epoch_batches, flipped, pixels, shifted, stream, to_z
from .hybrid import EnergyClassifier
from .loop_options import LoopOptions
from .objectives import Step, Term, Unhealthy
from .snapshots import Progress, Snapshot, capture, load, restore, save


@dataclass(frozen=True, kw_only=True)
class Recipe(LoopOptions, ABC):
    """A trainer: the loop's options, and the terms of an objective."""

    @abstractmethod
    def terms(
        self, shape: tuple[int, int, int], num_classes: int, generator: torch.Generator
    ) -> dict[str, Term]:
        """Return the terms of the objective, by name."""

    def __call__(self, train: Dataset, validation: Dataset, context: TrainContext) -> Trained:
        """Train ``context.model``, an `EnergyClassifier`.

        Raises:
            InputError: There are no labels, or the model is of another kind.
            Diverged: More than ``max_restarts`` divergences; the last good weights are saved.
        """
        return Loop(self, train, validation, context).run()


class Loop:
    """One training under way."""

    def __init__(
        self, recipe: Recipe, train: Dataset, validation: Dataset, context: TrainContext
    ) -> None:
        if train.labels is None or validation.labels is None:
            raise InputError(f"data set '{train.name}' has no labels; training needs them")
        if not isinstance(context.model, EnergyClassifier):
            raise InputError(
                f"this trainer trains an EnergyClassifier, not {type(context.model).__name__}; "
                "register the model with a trainer of its own (docs/add-a-trainer.md)"
            )
        self.recipe, self.context, self.model = recipe, context, context.model
        self.device = context.device
        self.images, self.labels = pixels(train), torch.tensor(train.labels)
        self.validation_z = to_z(pixels(validation), self.device)
        self.validation_y = torch.tensor(validation.labels, device=self.device)
        fill = stream(self.device, context.seed, "memory")
        self.terms = recipe.terms(train.shape, len(train.classes), fill)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=recipe.learning_rate)
        self.progress = Progress()
        self.best = copy.deepcopy(self.model.state_dict())
        self.state_file = context.out / "state.pt"

    def run(self) -> Trained:
        """Train to the last epoch and return the best weights."""
        progress = self.progress
        good = self._resume() or [self._capture()]
        while progress.epoch < self.recipe.epochs:
            started = time.perf_counter()
            try:
                self._validate(self._epoch())
                # Two are kept: the last that looked healthy may already carry the fault.
                good = [good[-1], self._capture()]
            except Unhealthy as trouble:
                self._roll_back(good[0], str(trouble))
                good = good[:1]
            progress.seconds += time.perf_counter() - started
            save(self.state_file, good, progress, self.best)
        self.model.load_state_dict(self.best)
        return Trained(
            model=self.model.eval(),
            epochs=progress.epoch,
            best_epoch=progress.best_epoch,
            restarts=tuple(progress.restarts),
            seconds=progress.seconds,
        )

    def _epoch(self) -> dict[str, float]:
        """Take every step of one epoch; return the mean of each term."""
        progress, recipe = self.progress, self.recipe
        tries = len(progress.restarts)
        generator = stream(self.device, self.context.seed, "epoch", progress.epoch, tries)
        labelled = epoch_batches(len(self.labels), recipe.batch_size, generator)
        unlabelled = epoch_batches(len(self.labels), recipe.batch_size, generator)
        self.model.train()
        totals: dict[str, list[float]] = {name: [] for name in self.terms}
        for step, (rows, others) in enumerate(zip(labelled, unlabelled, strict=True)):
            self._set_learning_rate(step)
            for name, value in self._step(rows, others, generator).items():
                totals[name].append(value)
        return {name: sum(values) / len(values) for name, values in totals.items()}

    def _step(self, rows: Tensor, others: Tensor, generator: torch.Generator) -> dict[str, float]:
        """Take one step; return the value of each term."""
        z = self._batch(rows, generator)
        network = self.model.network
        step = Step(
            network=network,
            z=z,
            y=self.labels[rows].to(self.device),
            logits=network(z),
            unlabelled=self._batch(others, generator),
            generator=generator,
            caution=self._caution(),
        )
        losses = {name: term(step) for name, term in self.terms.items()}
        values = {name: float(loss.detach()) for name, loss in losses.items()}
        for name, value in values.items():
            if not abs(value) <= self.recipe.max_loss:  # also true for NaN
                raise Unhealthy(f"{name} is {value:.3g}, beyond {self.recipe.max_loss:g}")
        self.optimizer.zero_grad()
        torch.stack(list(losses.values())).sum().backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return values

    def _batch(self, rows: Tensor, generator: torch.Generator) -> Tensor:
        """Return augmented training images in z."""
        recipe = self.recipe
        z = to_z(self.images[rows], self.device)
        if recipe.shift:
            z = shifted(z, recipe.shift, generator)
        if recipe.flip:
            z = flipped(z, generator)
        noise = torch.randn(z.shape, generator=generator, device=self.device)
        return z + recipe.input_noise_std * noise

    def _validate(self, losses: dict[str, float]) -> None:
        """Close a healthy epoch: measure it, keep the weights if they are the best, tell."""
        if not all(bool(w.isfinite().all()) for w in self.model.state_dict().values()):
            raise Unhealthy("a weight is not finite")
        progress, recipe = self.progress, self.recipe
        accuracy, nll = self._evaluate()
        if not accuracy >= progress.best_accuracy - recipe.max_accuracy_drop:
            raise Unhealthy(
                f"validation accuracy fell to {accuracy:.3f} from {progress.best_accuracy:.3f}"
            )
        progress.epoch += 1
        if (accuracy, -nll) > (progress.best_accuracy, -progress.best_nll):
            progress.best_accuracy, progress.best_nll = accuracy, nll
            progress.best_epoch = progress.epoch
            self.best = copy.deepcopy(self.model.state_dict())
        values = {"loss": sum(losses.values()), **losses}
        values |= {"validation_accuracy": accuracy, "validation_nll": nll}
        self._tell("epoch", values=values)

    @torch.no_grad()
    def _evaluate(self) -> tuple[float, float]:
        """Return accuracy and mean negative log-likelihood on the clean validation images."""
        self.model.eval()
        parts = [self.model.network(z) for z in torch.split(self.validation_z, 512)]
        log_p = torch.cat(parts).double().log_softmax(dim=1)
        hit = log_p.argmax(dim=1) == self.validation_y
        nll = -log_p.gather(1, self.validation_y[:, None]).mean()
        return float(hit.double().mean()), float(nll)

    def _caution(self) -> float:
        return float(self.recipe.restart_factor ** len(self.progress.restarts))

    def _set_learning_rate(self, step: int) -> None:
        recipe, epoch = self.recipe, self.progress.epoch
        steps_done = epoch * max(1, len(self.labels) // recipe.batch_size) + step + 1
        rate = recipe.learning_rate * self._caution()
        rate *= min(1.0, steps_done / max(1, recipe.warmup_steps))
        for mark in (0.8, 0.9):
            rate *= 0.3 if epoch >= mark * recipe.epochs else 1.0
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    def _roll_back(self, good: Snapshot, reason: str) -> None:
        """Return to a healthy state with new noise and smaller steps, or give up."""
        progress, most = self.progress, self.recipe.max_restarts
        failed, progress.epoch = progress.epoch + 1, good.epoch
        if len(progress.restarts) >= most:
            self._give_up(good, failed, reason)
        restore(good, self.model, self.optimizer, self.terms)
        factor = self.recipe.restart_factor ** (len(progress.restarts) + 1)
        progress.restarts.append(
            {"epoch": failed, "reason": reason, "from_epoch": good.epoch, "factor": factor}
        )
        self._tell(
            "restart",
            message=f"diverged in epoch {failed} ({reason}); going on from epoch {good.epoch} with "
            f"new noise and steps times {factor:g} (restart {len(progress.restarts)} of {most})",
        )

    def _give_up(self, good: Snapshot, failed: int, reason: str) -> NoReturn:
        path = self.context.out / "last-good.safetensors"
        write_weights(path, good.model, {"epoch": good.epoch})
        raise Diverged(
            f"training diverged in epoch {failed} ({reason}) after {self.recipe.max_restarts} "
            f"restarts with smaller steps; the last good weights, of epoch {good.epoch}, are in "
            f"{path}; try another seed, a smaller learning_rate or sgld_step_size, or more "
            "sgld_steps"
        )

    def _resume(self) -> list[Snapshot]:
        """Go on where an earlier call stopped; return its snapshots, none if there was none."""
        if not (self.context.resume and self.state_file.exists()):
            return []
        good, progress, self.best = load(self.state_file)
        vars(self.progress).update(vars(progress))
        restore(good[-1], self.model, self.optimizer, self.terms)
        self._tell("resume", message=f"going on after epoch {progress.epoch}")
        return good

    def _capture(self) -> Snapshot:
        return capture(self.progress.epoch, self.model, self.optimizer, self.terms)

    def _tell(self, kind: str, values: dict[str, float] | None = None, message: str = "") -> None:
        self.context.events(
            Event(kind, self.progress.epoch, self.recipe.epochs, values or {}, message)
        )
