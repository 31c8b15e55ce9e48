"""Where shards run: here, or in spawned processes."""

from bench.executors.base import Executor, Lost
from bench.executors.local import InProcess, Spawned
from bench.request import processes_of

__all__ = ["Executor", "Lost", "make_executor"]


def make_executor(text: str, threads: int, retries: int) -> Executor:
    """Return the executor that ``text`` names: ``local`` or ``local:N``.

    Raises:
        UnknownName: No executor has that name.
        InputError: N is not a positive number.
    """
    processes = processes_of(text)
    return InProcess() if processes is None else Spawned(processes, threads, retries)
