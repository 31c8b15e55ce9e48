"""``bench train``: train a model and leave weights with a card."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from bench.training import Event

LINES = 20  # how many lines of progress a whole training writes where there is no terminal


@click.command("train")
@click.option("--model", required=True, help="A registered model ('bench list models').")
@click.option("--dataset", default="digits", show_default=True, help="What to train on.")
@click.option("--network", help="A registered network; by default one for the images' size.")
@click.option("--seed", default=0, show_default=True, help="Source of every random draw.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("runs/weights"),
    show_default=True,
    help="Folder for weights and card; 'bench run' looks into the default one.",
)
@click.option("--epochs", type=click.IntRange(min=1), help="Passes over the training images.")
@click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="NAME.OPTION=VALUE",
    help="E.g. jem.sgld_steps=40",
)
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda, cuda:N, mps.")
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--data-root", type=click.Path(path_type=Path), help="Folder with data sets.")
@click.option("--fresh", is_flag=True, help="Start anew and replace what is there.")
def command(assignments: tuple[str, ...], epochs: int | None, **request: Any) -> None:
    """Train a model; the same command resumes a training that was interrupted.

    A training that diverges goes back to its last healthy epoch, with new noise and smaller
    steps, and says so. Exit code 1: it did not come back; the last good weights are saved.
    """
    from bench.training.job import TrainJob

    options = _options(request["model"], assignments, epochs)
    job = TrainJob(options=options, **request)
    with Watch() as watch:
        weights = job.run(watch)
    _print_result(weights)


def _options(model: str, assignments: tuple[str, ...], epochs: int | None) -> dict[str, Any]:
    """Return the trainer's options from ``--set`` and ``--epochs``."""
    from bench.errors import UnknownName
    from bench.registry import MODELS
    from bench.specs import parse_settings

    names = {model, MODELS.entry(model).facts.get("trainer") or model}
    options: dict[str, Any] = {}
    for name, values in parse_settings(assignments).items():
        if name not in names:
            raise UnknownName("name that --set can change here", name, names)
        options |= values
    return options | ({} if epochs is None else {"epochs": epochs})


def _print_result(weights: Path) -> None:
    from bench.weights import read_card

    card = read_card(weights)
    accuracy = card["accuracy"]
    click.echo(f"weights              {weights}")
    click.echo(f"validation accuracy  {100 * accuracy['validation']:.2f} %")
    click.echo(f"test accuracy        {100 * accuracy['test']:.2f} %")
    click.echo(f"best epoch           {card['best_epoch']} of {card['epochs']}")
    click.echo(f"restarts             {len(card['restarts'])}")
    click.echo(f"seconds              {card['seconds']:.0f}")
    dataset = "" if card["dataset"] == "digits" else f" --dataset {card['dataset']}"
    click.echo(
        f"measure them         bench run --model {card['model']}{dataset} --checkpoint {weights}"
    )


class Watch:
    """Shows a training on stderr: a bar with the time left on a terminal, lines elsewhere."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(stderr=True)
        self._terminal = console.is_terminal
        self._bar = Progress(
            TextColumn("epoch {task.completed:.0f}/{task.total:.0f}"),
            BarColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.description}"),
            console=console,
            disable=not self._terminal,
        )
        self._task = self._bar.add_task("starting", total=1)

    def __enter__(self) -> Watch:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def __call__(self, event: Event) -> None:
        """Show one event."""
        shown = {"loss": "loss", "validation": "validation_accuracy"}
        text = ", ".join(
            f"{word} {event.values[name]:.3f}"
            for word, name in shown.items()
            if name in event.values
        )
        if self._terminal:
            self._bar.update(self._task, completed=event.epoch, total=event.epochs)
            if event.kind == "epoch":
                self._bar.update(self._task, description=text)
            else:
                self._bar.console.print(event.message)
        elif event.kind != "epoch":
            click.echo(event.message, err=True)
        elif event.epoch == event.epochs or event.epoch % max(1, event.epochs // LINES) == 0:
            click.echo(f"epoch {event.epoch}/{event.epochs}: {text}", err=True)
