"""Executors of one machine: this process, or N spawned ones."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection
from typing import Any

from bench.executors.base import Lost


class InProcess:
    """``local``: one job after the other, here."""

    def run(
        self, function: Callable[[Any], Any], jobs: Sequence[Any]
    ) -> Iterator[tuple[int, Any | Lost]]:
        """Yield each result when it is there."""
        for number, job in enumerate(jobs):
            yield number, function(job)

    def close(self) -> None:
        """Nothing runs elsewhere."""


class Spawned:
    """``local:N``: N processes, started afresh (never forked: CUDA and threads do not survive it).

    A worker that dies breaks the whole pool, so the pool is built anew and what was in flight is
    given out again, one at a time, so that only the job that kills its worker is given up, after
    ``retries`` more tries.
    """

    def __init__(self, processes: int, threads: int, retries: int = 2) -> None:
        self.processes, self.threads, self.retries = processes, threads, retries
        self._pool: ProcessPoolExecutor | None = None

    def run(
        self, function: Callable[[Any], Any], jobs: Sequence[Any]
    ) -> Iterator[tuple[int, Any | Lost]]:
        """Yield results as they finish."""
        tries = [0] * len(jobs)
        waiting = list(reversed(range(len(jobs))))
        flying: dict[Future[Any], int] = {}
        while waiting or flying:
            try:
                # A bounded window: results are stored before many more are begun.
                while waiting and len(flying) < self._window(tries, waiting[-1], flying):
                    flying[self._submit(function, jobs[waiting[-1]])] = waiting[-1]
                    waiting.pop()
                done, _ = wait(flying, return_when=FIRST_COMPLETED)
                for future in done:
                    result = future.result()
                    yield flying.pop(future), result
            except BrokenProcessPool:
                self.close()
                lost = sorted(flying.values(), reverse=True)
                flying.clear()
                for number in lost:
                    tries[number] += 1
                    if tries[number] <= self.retries:
                        waiting.append(number)
                    else:
                        yield (
                            number,
                            Lost(
                                f"its worker process died {tries[number]} times (killed, or out of "
                                "memory?); try a smaller --batch-size or fewer processes"
                            ),
                        )

    def _window(self, tries: list[int], number: int, flying: Mapping[Future[Any], int]) -> int:
        """Return how many jobs may be out: one, while one that a death is laid to is out."""
        suspect = any(tries[n] for n in (number, *flying.values()))
        return 1 if suspect else 2 * self.processes

    def _submit(self, function: Callable[[Any], Any], job: Any) -> Future[Any]:
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                max_workers=self.processes,
                mp_context=multiprocessing.get_context("spawn"),
                initializer=_start_worker,
                initargs=(self.threads,),
            )
        return self._pool.submit(function, job)

    def close(self) -> None:
        """Stop the workers at once; what they were at is redone by the next run."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        workers = list((pool._processes or {}).values())
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.join()


def _start_worker(threads: int) -> None:
    """Prepare a worker: Ctrl-C is the driver's to handle, and threads are fixed early."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["OMP_NUM_THREADS"] = str(threads)
    threading.Thread(target=_follow_parent, daemon=True).start()


def _follow_parent() -> None:
    """End with the driver, also when it was killed: nobody would read the results."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
