"""From tables to text: terminal, Markdown, CSV, LaTeX (booktabs)."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence

from bench.records import Record
from bench.report.table import Table

PLAIN_WIDTH = 120  # where there is no terminal to ask


def markdown(tables: Sequence[Table]) -> str:
    """Return the tables in GitHub's Markdown."""
    parts = []
    for table in tables:
        headings = table.headings()
        rule = ["---"] * len(table.keys) + ["---:"] * len(table.columns)
        lines = [headings, rule, *table.texts()]
        parts.append(f"### {table.title}\n")
        parts += ["| " + " | ".join(_escape(c) for c in line) + " |" for line in lines]
        parts += ["", *(f"{note}  " for note in table.notes), ""]
    return "\n".join(parts)


def _escape(text: str) -> str:
    return text.replace("|", "\\|")


def latex(tables: Sequence[Table]) -> str:
    """Return the tables for LaTeX with the package booktabs."""
    parts = []
    for table in tables:
        columns = "l" * len(table.keys) + "r" * len(table.columns)
        parts += ["\\begin{table}", "\\centering", f"\\caption{{{_tex(table.title)}}}"]
        parts += [f"\\begin{{tabular}}{{{columns}}}", "\\toprule"]
        parts += [" & ".join(_tex(h) for h in table.headings()) + " \\\\", "\\midrule"]
        parts += [" & ".join(_tex(text) for text in row) + " \\\\" for row in table.texts()]
        parts += ["\\bottomrule", "\\end{tabular}"]
        parts += [f"\\par\\footnotesize {_tex(note)}" for note in table.notes]
        parts += ["\\end{table}", ""]
    return "\n".join(parts)


_TEX = str.maketrans(
    {
        "\\": "\\textbackslash{}",
        **{char: f"\\{char}" for char in "&%_#${}"},
        "~": "\\textasciitilde{}",
        "^": "\\textasciicircum{}",
        "|": "\\textbar{}",
        "<": "\\textless{}",
        ">": "\\textgreater{}",
        "±": "$\\pm$",
        "↑": "$\\uparrow$",
        "↓": "$\\downarrow$",
        "∞": "$\\infty$",
        "–": "--",
        "—": "---",
    }
)


def _tex(text: str) -> str:
    return text.translate(_TEX)


def csv_text(records: Sequence[Record]) -> str:
    """Return one line a record: flat, with both ends of every interval."""
    names = ["label", "model", "dataset", "protocol", "suite", "task", "metric", "value", "low"]
    names += ["high", "level", "interval", "n", "n_ood", "status", "note", "settings", "seed"]
    names += ["weights_sha256", "run"]
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(names)
    for record in records:
        row = record.as_dict()
        row["settings"] = json.dumps(row["settings"], sort_keys=True)
        writer.writerow(["" if row[name] is None else row[name] for name in names])
    return buffer.getvalue()


def json_text(records: Sequence[Record]) -> str:
    """Return the records as one JSON array."""
    return json.dumps([r.as_dict() for r in records], indent=1, allow_nan=False) + "\n"


def terminal(tables: Sequence[Table], width: int | None = None, colour: bool = False) -> str:
    """Return the tables drawn for a terminal of ``width`` columns."""
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable

    console = Console(
        file=io.StringIO(),
        width=width or PLAIN_WIDTH,
        force_terminal=colour,
        color_system="standard" if colour else None,
        highlight=False,
        emoji=False,
        markup=False,
    )
    for table in tables:
        console.print(table.title, style="bold")
        for columns in _folded(table, width or PLAIN_WIDTH):
            drawn = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
            for number, heading in enumerate(table.headings()):
                if number in columns:
                    name = number < len(table.keys)
                    drawn.add_column(heading, justify="left" if name else "right", no_wrap=True)
            for row in table.texts():
                drawn.add_row(*(row[number] for number in columns))
            console.print(drawn)
        for note in table.notes:
            console.print(note, style="dim")
        console.print()
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def _folded(table: Table, width: int) -> list[list[int]]:
    """Return which columns stand side by side, so that nothing is cut off; names repeat."""
    lines = [table.headings(), *table.texts()]
    need = [max(len(line[c]) for line in lines) + 3 for c in range(len(lines[0]))]
    names = list(range(len(table.keys)))
    room = width - sum(need[c] for c in names)
    parts: list[list[int]] = []
    used = room + 1
    for column in range(len(names), len(need)):
        if used + need[column] > room:
            parts.append(list(names))
            used = 0
        parts[-1].append(column)
        used += need[column]
    return parts
