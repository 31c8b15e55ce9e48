"""Killed at any moment, a run goes on from there; interrupted, it says so; two do not collide."""

from __future__ import annotations

import csv
import io
import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Spawn = Callable[..., "subprocess.Popen[str]"]
Cli = Callable[..., tuple[int, str, str]]
Undisturbed = tuple[list[dict[str, Any]], int]

RUN = (
    *("run", "--model", "py:model.py:slow", "--suite", "accuracy,robustness", "--limit", 450),
    *("--set", "robustness.attacks=pgd-l2", "--set", "robustness.l2=0.5"),
    *("--set", "robustness.steps=2", "--set", "robustness.restarts=1"),
    *("--set", "robustness.checks=false"),
)
SLOW = """

import time

class Slow(Net):
    def forward(self, x):
        time.sleep(0.03)
        return super().forward(x)

def slow():
    return Slow()
"""


@pytest.fixture(autouse=True)
def slow_model(model_file: Path) -> None:
    """A model that takes long enough to be killed at."""
    with model_file.open("a") as file:
        file.write(SLOW)


def shards() -> dict[str, tuple[int, int]]:
    """Each stored shard with its inode and time: a rewritten one has others."""
    found = {}
    folder = Path("runs/shards")
    for path in folder.glob("*.npz") if folder.is_dir() else ():
        stat = path.stat()
        found[path.name] = stat.st_ino, stat.st_mtime_ns
    return found


def wait_for(count: int, process: subprocess.Popen[str], seconds: float = 120) -> None:
    """Wait until so many shards are stored, or the process has ended."""
    end = time.monotonic() + seconds
    while len(shards()) < count and process.poll() is None:
        assert time.monotonic() < end, f"{len(shards())} of {count} shards in {seconds} s"
        time.sleep(0.01)


def rows(text: str) -> list[dict[str, Any]]:
    """Return the records without the run's name, which is another for a file elsewhere."""
    return [{**row, "run": None} for row in csv.DictReader(io.StringIO(text))]


def runs() -> list[Path]:
    """Return the runs that have a header: the same command is to find its own."""
    return list(Path("runs").glob("*/run.json"))


@pytest.fixture(scope="module")
def kept() -> list[Undisturbed]:
    """What a run that nothing disturbs has come to, once there was one."""
    return []


@pytest.fixture
def undisturbed(cli: Cli, kept: list[Undisturbed]) -> Undisturbed:
    """The rows of a run that nothing disturbs, elsewhere, and how many shards it has."""
    if not kept:
        code, out, _ = cli(*RUN, "--runs", "undisturbed", "--format", "csv")
        assert code == 0
        kept.append((rows(out), len(list(Path("undisturbed/shards").iterdir()))))
    return kept[0]


def killed_and_finished(
    undisturbed: Undisturbed, spawn: Spawn, cli: Cli, kills: int, *options: object
) -> None:
    expected, total = undisturbed
    rng = random.Random(kills)
    survivors: dict[str, tuple[int, int]] = {}
    interrupted = 0
    for _ in range(kills):
        process = spawn(*RUN, *options)
        wait_for(len(survivors) + 1, process)
        time.sleep(rng.random() * 0.3)
        process.kill()
        process.wait()
        interrupted += process.returncode == -signal.SIGKILL
        now = shards()
        assert survivors.items() <= now.items()  # nothing stored was computed again
        survivors = now
    assert interrupted >= min(kills, 2)
    code, out, _ = cli(*RUN, *options, "--format", "csv")
    assert code == 0
    assert survivors.items() <= shards().items()
    assert len(shards()) == total
    assert len(runs()) == 1
    assert rows(out) == expected


def test_a_run_killed_twice_ends_as_if_it_had_not_been(
    undisturbed: Undisturbed, spawn: Spawn, cli: Cli
) -> None:
    killed_and_finished(undisturbed, spawn, cli, 2)


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["local", "local:2"])
def test_a_run_killed_ten_times_ends_as_if_it_had_not_been(
    undisturbed: Undisturbed, spawn: Spawn, cli: Cli, executor: str
) -> None:
    killed_and_finished(undisturbed, spawn, cli, 10, "--executor", executor)


def children(pid: int) -> list[int]:
    """Return the processes below one, by what the kernel says."""
    if not Path("/proc").is_dir():
        pytest.skip("needs /proc")
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(path.parent.name))
    return [*found, *(grandchild for child in found for grandchild in children(child))]


def workers(process: subprocess.Popen[str]) -> list[int]:
    """Return the workers of a run, without Python's resource tracker."""

    def command(pid: int) -> str:
        try:
            return Path(f"/proc/{pid}/cmdline").read_text()
        except OSError:
            return ""

    return [pid for pid in children(process.pid) if "spawn_main" in command(pid)]


def gone(pids: list[int], seconds: float = 30) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not any(alive(pid) for pid in pids):
            return True
        time.sleep(0.05)
    return False


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def killed_worker(process: subprocess.Popen[str], count: int) -> list[int]:
    """Kill one of the workers, wait for the pool that replaces them, and return the new ones."""
    wait_for(1, process)
    first = second = workers(process)
    assert len(first) == count
    os.kill(first[0], signal.SIGKILL)
    while process.poll() is None and (set(first) & set(second) or len(second) < count):
        time.sleep(0.02)
        second = workers(process)
    assert process.poll() is None  # else the run is too short to show anything
    return second


def test_a_killed_worker_is_replaced_and_an_interruption_told(
    undisturbed: Undisturbed, spawn: Spawn, cli: Cli
) -> None:
    expected, total = undisturbed
    process = spawn(*RUN, "--executor", "local:1")
    pids = killed_worker(process, 1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    told = "interrupted; what was computed is saved, the same command goes on from there"
    assert err.splitlines()[-1] == told
    assert gone(pids)
    stored = shards()
    assert stored
    code, out, err = cli(*RUN, "--format", "csv")
    assert code == 0
    assert err.startswith(f"{len(stored)} shards are stored already\n")
    assert stored.items() <= shards().items()
    assert len(shards()) == total
    assert len(runs()) == 1
    assert rows(out) == expected


@pytest.mark.slow
def test_a_run_ends_right_though_a_worker_was_killed(
    undisturbed: Undisturbed, spawn: Spawn, cli: Cli
) -> None:
    expected, total = undisturbed
    process = spawn(*RUN, "--executor", "local:2", "--format", "csv")
    killed_worker(process, 2)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert len(shards()) == total
    assert rows(out) == expected


@pytest.mark.slow
def test_a_killed_driver_takes_its_workers_along(spawn: Spawn) -> None:
    process = spawn(*RUN, "--executor", "local:2")
    wait_for(1, process)
    pids = workers(process)
    assert len(pids) == 2
    process.kill()
    process.wait()
    assert gone(pids)


@pytest.mark.slow
def test_an_interruption_in_this_process_keeps_what_it_has(spawn: Spawn, cli: Cli) -> None:
    process = spawn(*RUN)
    wait_for(2, process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert len(shards()) >= 2


def test_two_runs_of_one_request_at_once_do_not_collide(
    undisturbed: Undisturbed, spawn: Spawn, cli: Cli
) -> None:
    expected, total = undisturbed
    both = [spawn(*RUN, "--format", "csv") for _ in range(2)]
    for process in both:
        out, err = process.communicate(timeout=240)
        assert process.returncode == 0, err
        assert rows(out) == expected
    assert len(shards()) == total
    assert not list(Path("runs").glob("**/.*"))
    (header,) = runs()
    assert json.loads(header.read_text())["complete"]
