"""Progress on stderr: one bar a task and one over all, with the time left.

Where stderr is no terminal, a line is printed when something fails, and now and then how far a long
run is.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

QUIET_SECONDS = 20.0


class TerminalProgress:
    """Implements `bench.runner.Progress` with rich."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("gone,"),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=self._console,
            disable=not self._console.is_terminal,
            transient=True,
        )
        self._overall: TaskID | None = None
        self._tasks: dict[str, TaskID] = {}
        self._said = time.monotonic()

    def __enter__(self) -> TerminalProgress:
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bars.stop()

    def start(self, totals: Mapping[str, int], stored: int) -> None:
        """Add a bar for each task, in images, and one over all."""
        if stored and totals:
            self._console.print(f"{stored} shards are stored already", style="dim")
        self._overall = self._bars.add_task("all", total=sum(totals.values()))
        for name, total in totals.items():
            self._tasks[name] = self._bars.add_task(name, total=total)

    def advance(self, task: str, images: int) -> None:
        """Move a bar; a finished one disappears."""
        assert self._overall is not None
        bar = self._tasks[task]
        self._bars.advance(bar, images)
        self._bars.advance(self._overall, images)
        if self._bars.tasks[self._bars.task_ids.index(bar)].finished:
            self._bars.update(bar, visible=False)
            self._log(task)

    def _log(self, task: str) -> None:
        """Where there is no terminal, say now and then how far a long run is."""
        now = time.monotonic()
        if not self._console.is_terminal and now - self._said >= QUIET_SECONDS:
            assert self._overall is not None
            done = self._bars.tasks[self._bars.task_ids.index(self._overall)].percentage
            self._console.print(f"{task}: done ({done:.0f} % of all)", markup=False)
            self._said = now

    def remark(self, text: str) -> None:
        """Print what the user may not expect."""
        self._console.print(f"note: {text}", style="yellow", markup=False, soft_wrap=True)

    def problem(self, text: str) -> None:
        """Print a failure above the bars; the run goes on."""
        self._console.print(f"failed: {text}", style="red", markup=False, soft_wrap=True)
