"""What an executor is: it runs a pure function on jobs, somewhere, and yields what comes back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from bench.errors import InputError, UnknownName


@dataclass(frozen=True)
class Lost:
    """A job whose worker died more often than it may."""

    reason: str


class Executor(Protocol):
    """Yields ``(number of the job, result)`` as they finish; the driver stores each at once."""

    def run(
        self, function: Callable[[Any], Any], jobs: Sequence[Any]
    ) -> Iterator[tuple[int, Any | Lost]]:
        """Run ``function`` on every job, in any order."""
        ...

    def close(self) -> None:
        """Stop what still runs."""
        ...


def make_executor(text: str, threads: int, retries: int) -> Executor:
    """Return the executor that ``text`` names: ``local`` or ``local:N``.

    Raises:
        UnknownName: No executor has that name.
        InputError: N is not a positive number.
    """
    from bench.executors.local import InProcess, Spawned

    name, colon, count = text.partition(":")
    if name != "local":
        raise UnknownName("executor", text, ["local", "local:2"])
    if not colon:
        return InProcess()
    if not count.isdigit() or int(count) < 1:
        raise InputError(f"executor '{text}': expected local:N with a number of processes N >= 1")
    return Spawned(int(count), threads, retries)
