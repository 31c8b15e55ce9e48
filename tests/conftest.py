"""The order in which files of tests run: those that take longest come first.

Each worker of ``pytest -n`` takes one file after the other (``--dist loadfile``). A long one that
came last would keep one worker busy while the others have nothing left to do.
"""

from __future__ import annotations

from pathlib import Path

import pytest

LONG = (
    "docs/test_pages_run.py",
    "frame/test_resume.py",
    "attacks/test_masking_measured.py",
    "plugins/test_plugins_used.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent

    def place(item: pytest.Item) -> int:
        name = item.path.relative_to(here).as_posix()
        return LONG.index(name) if name in LONG else len(LONG)

    items.sort(key=place)
