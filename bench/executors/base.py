"""What an executor is: it runs a pure function on jobs, somewhere, and yields what comes back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


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
