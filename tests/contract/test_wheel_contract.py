"""Every sub-package and every data file of the tree is in the package that is installed."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = {"attacks": "bench.attacks", "baselines": "bench.baselines", "datasets": "bench.datasets"}
LEFT_OUT = ("__pycache__", ".egg-info")

pytestmark = pytest.mark.skipif(
    not (ROOT / "attacks").is_dir(), reason="needs the repository, not the tests alone"
)


def tree() -> set[str]:
    """Return every file of the package and its rooms, as it is named in a wheel."""
    found = set()
    for folder in ("bench", *ROOMS):
        for path in (ROOT / folder).rglob("*"):
            relative = path.relative_to(ROOT).as_posix()
            if path.is_file() and not any(word in relative for word in LEFT_OUT):
                prefix = "" if folder == "bench" else "bench/"
                found.add(prefix + relative)
    return {name for name in found if ".partial/" not in name}


def settings() -> dict[str, Any]:
    tool: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    return dict(tool["setuptools"])


def test_every_package_and_data_file_is_listed() -> None:
    packages, data = settings()["packages"], settings()["package-data"]
    assert {p for p in packages if p.startswith("bench.")} >= set(ROOMS.values())
    for name in sorted(tree()):
        package = name.rpartition("/")[0].replace("/", ".")
        if name.endswith(".py"):
            assert package in packages, f"{name}: add '{package}' to packages in pyproject.toml"
        else:
            assert any(
                fnmatchcase(name, f"{owner.replace('.', '/')}/{pattern}")
                for owner, patterns in data.items()
                for pattern in patterns
            ), f"{name} matches no pattern of package-data in pyproject.toml"


@pytest.mark.slow
def test_wheel_holds_the_tree(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(copy)], check=True)
    done = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--outdir", str(tmp_path), str(copy)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    tracked = subprocess.run(
        ["git", "ls-files", "bench", *ROOMS], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    expected = {name if name.startswith("bench/") else f"bench/{name}" for name in tracked}
    assert names == expected
