"""Printing records on stdout."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence

import click

from bench.records import Record
from bench.report import render


def print_records(records: Sequence[Record], format_: str, metric: str | None = None) -> None:
    """Print records on stdout, as wide as the terminal where there is one."""
    terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if terminal else None
    text = render(records, format_, metric=metric, width=width, colour=terminal)
    click.echo(text, nl=False)
