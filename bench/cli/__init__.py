"""The command ``bench``: parse, call, print.

Results go to stdout, progress and log to stderr. Exit status: 0; 1 when a task failed (the rest is
saved and shown); 2 for a bad request; 130 when interrupted (what was computed is saved).

Sub-commands are imported when they are called, so that ``bench --help`` is quick.
"""

from __future__ import annotations

import importlib
import sys

import click

from bench.errors import BenchError, Diverged

COMMANDS = {
    "run": "Run suites on models and print the leaderboards.",
    "train": "Train a model from a seed.",
    "list": "List what is registered, or what was run.",
    "leaderboard": "Print the leaderboards of all stored runs.",
    "show": "Print one stored run.",
    "verify": "Recheck a stored run: verdicts, distances, scores and records.",
    "doctor": "Say what is installed, what works, and what to do about the rest.",
}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands."""
        return [*COMMANDS]  # not list(): the sub-module of that name takes its place here

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"bench.cli.{cmd_name}")
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; click's message for an unknown one lists the nearest names."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], COMMANDS, n=2, cutoff=0.4)
            guess = f"did you mean {' or '.join(near)}?" if near else "try 'bench --help'"
            raise click.UsageError(f"'{args[0]}' is not a command; {guess}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([*COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="robust-ood-bench", prog_name="bench")
def bench() -> None:
    """Measure classifiers that are also energy models, and any other classifier beside them.

    Accuracy, calibration, out-of-distribution detection and robustness, every number with its
    interval. Try:

    \b
      bench run --model jem --suite ood
      bench run --model baseline,jem --suite robustness --refine-steps 0,1
      bench list models
    """


def main() -> None:
    """Run the command line and exit."""
    try:
        status = bench.main(standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        sys.exit(2)
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        hint = f" (see '{context.command_path} --help')" if context else ""
        click.echo(f"error: {error.format_message()}{hint}", err=True)
        sys.exit(2)
    except Diverged as error:
        click.echo(f"diverged: {error}", err=True)
        sys.exit(1)
    except BenchError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)
    except (KeyboardInterrupt, click.Abort):
        click.echo(
            "interrupted; what was computed is saved, the same command goes on from there",
            err=True,
        )
        sys.exit(130)
    except BrokenPipeError:  # the reader of a pipe, e.g. `head`, has gone
        sys.stderr.close()
        sys.exit(0)
    sys.exit(status if isinstance(status, int) else 0)
