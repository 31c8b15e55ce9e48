"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path

import click

runs = click.option(
    "--runs",
    type=click.Path(path_type=Path),
    default=Path("runs"),
    show_default=True,
    help="Folder of results.",
)
output_format = click.option(
    "--format",
    "format_",
    default="table",
    show_default=True,
    help="table, markdown, csv, json or latex.",
)
metric = click.option("--metric", help="What out-of-distribution tables show.  [default: auroc]")
