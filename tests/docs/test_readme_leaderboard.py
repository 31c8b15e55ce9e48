"""The leaderboards in the README are what the command prints today."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.slow
def test_readme_shows_what_the_demo_prints(tmp_path: Path) -> None:
    shown = re.findall(r"```text\n(.*?)```", README.read_text(), flags=re.DOTALL)
    assert len(shown) == 2
    run = subprocess.run(
        [str(Path(sys.executable).with_name("bench")), "run", "--executor", "local:2"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=900,
    )
    printed = "\n".join(line.rstrip() for line in run.stdout.splitlines())
    # Training seconds are the card's; everything else is computed anew.
    for block in shown:
        assert block.strip() in printed
