"""Runs the steps of documentation pages in one process; started by test_pages_run.py.

Reads JSON on stdin, a list of pages: {"page": name, "folder": where, "steps": [[kind, text], ...]}.
Writes JSON to the file that RESULTS names: for each page a list of [exit status, output].
A page stops at its first failure.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import runpy
import shlex
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any


def run_python(code: str, names: dict[str, Any]) -> int:
    """Run a block in the page's namespace."""
    try:
        exec(compile(code, "<page>", "exec"), names)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def run_bench(command: str) -> int:
    """Call the command line in this process: starting torch anew costs seconds."""
    from bench.cli import main

    sys.argv = shlex.split(command, comments=True)
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def run_script(path: str) -> int:
    """Run a file as ``python FILE`` does."""
    sys.path.insert(0, str(Path(path).resolve().parent))
    try:
        runpy.run_path(path, run_name="__main__")
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        del sys.path[0]
    return 0


def run_shell(command: str) -> int:
    """Run anything else."""
    done = subprocess.run(
        ["bash", "-ec", command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    print(done.stdout)
    return done.returncode


COMMANDS = {"bench": run_bench, "script": run_script, "shell": run_shell}


def run_page(folder: Path, steps: list[tuple[str, str]]) -> list[tuple[int, str]]:
    """Return exit status and output of each step, up to the first that fails."""
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    names: dict[str, Any] = {"__name__": "page"}
    results = []
    for kind, text in steps:
        output = io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            status = run_python(text, names) if kind == "python" else COMMANDS[kind](text)
        results.append((status, output.getvalue()))
        if status:
            break
    sys.path.remove(str(folder))
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(folder)):
            del sys.modules[name]
    return results


if __name__ == "__main__":
    found = {
        page["page"]: run_page(Path(page["folder"]), page["steps"]) for page in json.load(sys.stdin)
    }
    Path(os.environ["RESULTS"]).write_text(json.dumps(found))
