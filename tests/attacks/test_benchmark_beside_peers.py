"""The benchmark beside the peers runs on what a clone has, and its figures are what it says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "attacks.py"


@pytest.mark.slow
def test_quick_run_on_four_images(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    options = ["--quick", "--images", "4", "--rounds", "1", "--steps", "4", "--json", str(out)]
    done = subprocess.run(
        [sys.executable, "-W", "error", str(SCRIPT), *options],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(out.read_text())
    sections = {
        name: part["rows"]
        for name, part in figures.items()
        if isinstance(part, dict) and "rows" in part
    }
    assert len(sections) == 11
    for name, rows in sections.items():
        assert rows["floor"]["x floor"] == 1
        ours = {who: row for who, row in rows.items() if who.startswith("bench")}
        assert ours, name
        for who, row in ours.items():
            assert "skipped" not in row, (name, who, row)
            assert row["cpu"] > 0
            assert row.get("over eps", 0) <= 1e-6
    falling = sections["sweep"]["bench"]["robust"]
    assert falling == sorted(falling, reverse=True)
    # The peers of the tests' environment were there, and their images were judged by our pass.
    assert 0 <= sections["pgd-linf"]["foolbox"]["robust"] <= 1
    assert sections["boundary"]["foolbox"]["queries"] >= 200
