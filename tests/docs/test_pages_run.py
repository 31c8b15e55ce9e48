"""Every command and every Python block of README.md and docs/*.md runs and prints what is shown.

The convention is in CONTRIBUTING.md, "Documentation that runs". All pages run in one process, in
a folder each; results of one page serve the next. Attacks run on a few images.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bench.cli import COMMANDS
from bench.weights import find_weights

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.S | re.M)
FILE = re.compile(r"# ([\w./-]+\.\w+)\n")
COSTLY = {"gpu", "cluster", "hours"}
# Attacks take as many passes on a few images as on many; that a page's command works is shown by
# either.
ATTACKING = re.compile(r"^bench run .*--suite[ =]\S*(robustness|transfer)")
FEW = 6
NOT_RUN = ("make ", "pip ", "git ", "cd ", "source ", "pytest", "ruff ", "mypy", ".ci/")


@dataclass(frozen=True)
class Step:
    """A command with the output that the page shows, or a block of Python."""

    kind: str
    text: str
    shown: tuple[str, ...] = ()


@dataclass
class Page:
    """What a page asks for."""

    steps: list[Step] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    targets: list[str] = field(default_factory=list)


def read_page(text: str) -> Page:
    page = Page()
    for info, body in FENCE.findall(text):
        words = set(re.split(r"[\s,{}]+", info))
        page.targets += re.findall(r"^(?:\$ )?make ([\w-]+)$", body, re.M)
        named = FILE.match(body)
        if words & COSTLY:
            continue
        if named:
            page.files[named[1]] = body[named.end() :]
        elif "python" in words:
            page.steps.append(Step("python", body))
        elif words & {"console", "bash"}:
            page.steps += [s for s in read_commands(body) if not s.text.startswith(NOT_RUN)]
    return page


def read_commands(body: str) -> list[Step]:
    lines = body.replace("\\\n", "").splitlines()
    prompts = any(line.startswith("$ ") for line in lines)
    commands: list[tuple[str, list[str]]] = []
    for line in filter(str.strip, lines):
        if line.startswith("$ ") or not prompts:
            commands.append((line.removeprefix("$ ").strip(), []))
        elif commands:
            commands[-1][1].append(line)
    return [step_of(text, shown) for text, shown in commands if not text.startswith("#")]


def step_of(command: str, shown: Sequence[str]) -> Step:
    script = re.fullmatch(r"python ([\w./-]+\.py)", command)
    if script:
        return Step("script", script[1], tuple(shown))
    kind = "bench" if re.fullmatch(r"bench [^|<>;]*", command) else "shell"
    return Step(kind, command, tuple(shown))


def brief(step: Step) -> str:
    """Return what is run of a step: attacks on a few images, where no output is shown."""
    if step.kind != "bench" or step.shown or not ATTACKING.match(step.text):
        return step.text
    asked = re.search(r" --limit[ =](\d+)", step.text)
    if asked and int(asked[1]) <= FEW:
        return step.text
    return re.sub(r" --limit[ =]\d+", "", step.text) + f" --limit {FEW}"


def plain(line: str) -> str:
    """Return a line without what differs between machines: numbers, widths, rules."""
    line = re.sub(r"\d[\d.,]*", "#", line)
    return re.sub(r"[\s─-]+", " ", line).strip()


def missing_lines(shown: Sequence[str], output: str) -> list[str]:
    printed = {plain(line) for line in output.splitlines()}
    return [line for line in shown if plain(line) not in {*printed, "", "...", "…"}]


def run(pages: dict[str, Page], folder: Path) -> dict[str, list[tuple[int, str]]]:
    """Lay the files out, install what registers as a plug-in, and run all steps."""
    site, shards = folder / "site", folder / "shards"
    shards.mkdir()
    (site / "pages-1.dist-info").mkdir(parents=True)
    (site / "pages-1.dist-info" / "METADATA").write_text("Name: pages\nVersion: 1\n")
    points, request = ["[bench.plugins]"], []
    for name, page in pages.items():
        home = folder / name
        (home / "runs").mkdir(parents=True)
        (home / "runs" / "shards").symlink_to(shards)
        shutil.copytree(ROOT / "examples", home / "examples")
        for path, text in page.files.items():
            target = home / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
            if re.search(r"^@[A-Z]+\.register\(", text, re.M):
                shutil.copy(target, site)
                points.append(f"{target.stem} = {target.stem}")
        steps = [(step.kind, brief(step)) for step in page.steps]
        request.append({"page": name, "folder": str(home), "steps": steps})
    (site / "pages-1.dist-info" / "entry_points.txt").write_text("\n".join(points))
    results = folder / "results.json"
    bin_ = Path(sys.executable).parent
    environment = os.environ | {
        "PYTHONPATH": str(site),
        "OMP_NUM_THREADS": "1",
        "RESULTS": str(results),
        "PATH": f"{bin_}{os.pathsep}{os.environ['PATH']}",
    }
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("run_pages.py"))],
        input=json.dumps(request),
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, list[tuple[int, str]]] = json.loads(results.read_text())
    return found


def problems(page: Page, results: Sequence[tuple[int, str]]) -> list[str]:
    found = []
    for step, (status, output) in zip(page.steps, results, strict=False):
        if status:
            found.append(f"exit status {status} of:\n{step.text}\n{output}")
        else:
            lines = missing_lines(step.shown, output)
            if lines:
                shown = "\n".join(lines)
                found.append(f"{step.text}\ndoes not print:\n{shown}\nit prints:\n{output}")
    return found


SHIPPED = {
    path.name: read_page(path.read_text(encoding="utf-8")) for path in PAGES if path.is_file()
}
MODELS = ("baseline", "jem", "hdge", "hdge-jem")


def absent(page: Page) -> list[str]:
    """Return the shipped models that a page uses and whose weights are not there yet."""
    commands = [step.text for step in page.steps]
    takes_all = any(
        c.startswith("bench run") and not re.search("--(model|con)", c) for c in commands
    )
    return [
        model
        for model in MODELS
        if takes_all or any(re.search(rf"(?<![\w-]){model}(?![\w-])", c) for c in commands)
        if find_weights(model, "digits", "resnet-tiny", []) is None
    ]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[int, str]]]:
    pages = {name: page for name, page in SHIPPED.items() if not absent(page)}
    return run(pages, tmp_path_factory.mktemp("pages"))


@pytest.mark.parametrize("name", [name for name, page in SHIPPED.items() if page.steps])
def test_page_runs(name: str, results: dict[str, list[tuple[int, str]]]) -> None:
    if missing := absent(SHIPPED[name]):
        pytest.skip(f"the weights of {', '.join(missing)} are not there yet")
    found = problems(SHIPPED[name], results[name])
    assert not found, "\n\n".join(found)


def test_make_targets_exist() -> None:
    asked = {target for page in SHIPPED.values() for target in page.targets}
    assert {"demo", "test"} <= asked
    assert asked <= set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))


@pytest.mark.parametrize("name", [name for name, page in SHIPPED.items() if page.files])
def test_files_are_short_and_stand_in_examples(name: str) -> None:
    for path, text in SHIPPED[name].files.items():
        assert len(text.splitlines()) < 60, path
        example = ROOT / "examples" / path
        if name.startswith("add-a") or example.exists():
            assert example.read_text() == text, f"examples/{path} differs from the page"


def test_pyproject_of_the_plug_in_page_names_its_module() -> None:
    files = SHIPPED["plugins.md"].files
    points = tomllib.loads(files["pyproject.toml"])["project"]["entry-points"]["bench.plugins"]
    assert {f"{module}.py" for module in points.values()} <= set(files)


@pytest.mark.parametrize(
    "path", [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")], ids=lambda path: path.name
)
def test_links_lead_somewhere(path: Path) -> None:
    prose = re.sub(r"`[^`\n]+`", "", FENCE.sub("", path.read_text()))
    for target in re.findall(r"\]\((?!https?:|mailto:|#)([^)#\s]+)", prose):
        assert (path.parent / target).exists(), target


def test_every_command_has_an_example() -> None:
    texts = [step.text for step in SHIPPED["commands.md"].steps]
    assert not [c for c in COMMANDS if not any(t.startswith(f"bench {c}") for t in texts)]


GOOD = """
```console
$ bench list suites
suites
  ood                    Scores against every out-of-distribution set that the data set names.
```
```python
assert 1 + 1 == 2
```
```console gpu
$ bench run --model jem --dataset imagenet
```
"""


def test_faults_of_a_page_are_found(tmp_path: Path) -> None:
    faults = {
        "good": GOOD,
        "status": GOOD.replace("list suites", "list suits"),
        "output": GOOD.replace("suites\n  ood", "suites\n  out"),
        "python": GOOD.replace("== 2", "== 3"),
    }
    pages = {name: read_page(text) for name, text in faults.items()}
    assert [len(page.steps) for page in pages.values()] == [2] * 4
    found = run(pages, tmp_path)
    said = {name: problems(page, found[name]) for name, page in pages.items()}
    assert said["good"] == []
    assert "did you mean 'suites'?" in said["status"][0]
    assert "does not print:\n  out " in said["output"][0]
    assert "AssertionError" in said["python"][0]
