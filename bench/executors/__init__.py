"""Where shards run: here, or in spawned processes."""

from bench.errors import InputError, UnknownName
from bench.executors.base import Executor, Lost
from bench.executors.local import InProcess, Spawned

__all__ = ["Executor", "Lost", "make_executor"]


def make_executor(text: str, threads: int, retries: int) -> Executor:
    """Return the executor that ``text`` names: ``local`` or ``local:N``.

    Raises:
        UnknownName: No executor has that name.
        InputError: N is not a positive number.
    """
    name, colon, count = text.partition(":")
    if name != "local":
        raise UnknownName("executor", text, ["local", "local:2"])
    if not colon:
        return InProcess()
    if not count.isdigit() or int(count) < 1:
        raise InputError(f"executor '{text}': expected local:N with a number of processes N >= 1")
    return Spawned(int(count), threads, retries)
