"""The command line: quick, quiet on stdout but for results, and true to its exit statuses."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.cli.requests import split_names

Cli = Callable[..., tuple[int, str, str]]

RUN = ("run", "--model", "py:model.py:make", "--suite", "accuracy", "--limit", 20)
FIELDS = (
    "schema run model label variant network weights_sha256 dataset suite suite_version protocol "
    "task metric value low high level interval n n_ood settings seed versions seconds status note"
)


def test_help_imports_nothing_heavy() -> None:
    """In a process of its own, which says what it has loaded and how long it worked."""
    code = """
import sys, time
sys.argv = ["bench", "--help"]
from bench.cli import main
try:
    main()
except SystemExit as error:
    status = error.code
heavy = [m for m in ("torch", "numpy", "rich", "scipy", "sklearn") if m in sys.modules]
print(status, heavy, time.process_time(), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    status, rest = done.stderr.split(" ", 1)
    heavy, seconds = rest.rsplit(" ", 1)
    print(f"bench --help: {float(seconds):.3f} s of CPU")
    assert (status, heavy) == ("0", "[]")
    assert "Measure classifiers that are also energy models" in done.stdout
    for command in ("run", "train", "list", "leaderboard", "show"):
        assert f"\n  {command} " in done.stdout


def test_import_bench_is_light() -> None:
    code = "import bench, sys; print([m for m in ('torch', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_json_has_every_field_and_stdout_nothing_else(cli: Cli) -> None:
    code, out, err = cli(*RUN, "--json")
    assert (code, err) == (0, "")
    records = json.loads(out)
    assert [r["metric"] for r in records] == ["accuracy", "nll", "brier"]
    for record in records:
        assert set(FIELDS.split()) <= set(record)
        assert record["settings"]["limit"] == 20
        assert str(Path.cwd()) not in json.dumps({**record, "versions": None})


def test_the_same_command_prints_the_same(cli: Cli) -> None:
    first, second = cli(*RUN), cli(*RUN)
    assert first == second
    assert first[0] == 0
    assert "accuracy ↑" in first[1]


def test_a_lost_header_is_made_anew(cli: Cli) -> None:
    _, first, _ = cli(*RUN)
    Path("model.py").touch()
    (header,) = Path("runs").glob("*/run.json")
    header.unlink()
    code, second, err = cli(*RUN)
    assert (code, second) == (0, first)
    assert err == ""  # nothing is left to do


def test_a_dry_run_says_what_is_to_do_and_does_nothing(cli: Cli) -> None:
    code, out, _ = cli(*RUN, "--dry-run")
    assert code == 0
    assert "1 of 1 shards to compute" in out
    assert "accuracy" in out
    assert not Path("runs").exists()
    cli(*RUN)
    _, out, _ = cli(*RUN, "--dry-run")
    assert "0 of 1 shards to compute" in out


def test_a_stored_request_runs_again(cli: Cli) -> None:
    _, first, _ = cli(*RUN, "--refine-steps", "0,1", "--seed", 3, "--set", "accuracy.draws=2")
    (header,) = Path("runs").glob("*/run.json")
    code, again, err = cli("run", "--from", header)
    assert (code, again, err) == (0, first, "")
    code, elsewhere, _ = cli("run", "--from", header, "--runs", "other")
    assert code == 0
    # Only the path of the file is spelt in full: the numbers and rows are those of the first.
    assert elsewhere == first


@pytest.mark.parametrize(
    "text", ["", "{}", '{"request": 3}', '{"request": "{}"}', '{"request": "[]"}']
)
def test_a_file_without_a_request_is_told(cli: Cli, text: str) -> None:
    Path("run.json").write_text(text)
    code, _, err = cli("run", "--from", "run.json")
    assert code == 2
    assert err.startswith("error: '--from run.json' holds no request")
    assert len(err.splitlines()) == 1


def test_a_configuration_is_the_same_as_options(cli: Cli) -> None:
    _, expected, _ = cli(*RUN, "--refine-steps", "0,1", "--set", "accuracy.draws=2", "--json")
    Path("c.toml").write_text(
        'model = "py:model.py:make"\nsuite = ["accuracy"]\nlimit = 30\nrefine-steps = [0, 1]\n'
        'set = ["accuracy.draws=2"]\njson = true\nruns = "elsewhere"\n'
    )
    code, got, _ = cli("run", "--config", "c.toml", "--limit", 20)  # the command line wins
    assert code == 0
    assert Path("elsewhere/shards").is_dir()

    def plain(text: str) -> list[dict[str, object]]:
        return [{**record, "seconds": None} for record in json.loads(text)]

    assert plain(got) == plain(expected)


def test_a_spec_with_options_is_not_cut_at_a_comma() -> None:
    texts = ("jem, hdge", "ckpt:resnet-tiny@w.pt?mean=.4,.5", "baseline")
    assert split_names(texts) == ("jem", "hdge", "ckpt:resnet-tiny@w.pt?mean=.4,.5", "baseline")


def test_comma_lists_and_repeated_options(cli: Cli) -> None:
    code, out, _ = cli(
        *("run", "--model", "py:model.py:make", "--model", "py:model.py:make?temperature=1"),
        *("--suite", "accuracy, calibration", "--limit", 20, "--refine-steps", "0,1,0"),
        "--json",
    )
    assert code == 0
    rows = [(r["model"], r["variant"]["refine_steps"], r["suite"]) for r in json.loads(out)]
    assert list(dict.fromkeys(rows)) == [
        (model, steps, suite)
        for model in ("py:model.py:make", "py:model.py:make?temperature=1")
        for steps in (0, 1)
        for suite in ("accuracy", "calibration")
    ]


@pytest.mark.parametrize("format_", ["table", "markdown", "csv", "json", "latex"])
def test_every_format(cli: Cli, format_: str) -> None:
    code, out, _ = cli(*RUN, "--format", format_)
    assert code == 0
    if format_ == "csv":
        rows = list(csv.DictReader(io.StringIO(out)))
        assert [r["metric"] for r in rows] == ["accuracy", "nll", "brier"]
        assert 0 <= float(rows[0]["low"]) <= float(rows[0]["value"]) <= float(rows[0]["high"]) <= 1
    elif format_ == "json":
        assert len(json.loads(out)) == 3
    else:
        mark = {"table": "───", "markdown": "| --- |", "latex": "\\midrule"}[format_]
        assert mark in out
        assert out.count("brier") == 1


def test_a_failed_task_is_shown_and_exits_with_one(cli: Cli) -> None:
    code, out, err = cli(
        *("run", "--model", "py:model.py:broken?how=wide", "--model", "py:model.py:make"),
        *("--suite", "accuracy", "--limit", 20),
    )
    assert code == 1
    assert "failed [1]" in out
    assert "[1] the model has 20 classes" in out
    assert err.startswith("failed: py:model.py:broken")
    assert cli("leaderboard")[0] == 0


def test_show_list_and_leaderboard_read_what_is_stored(cli: Cli) -> None:
    _, table, _ = cli(*RUN)
    (header,) = Path("runs").glob("*/run.json")
    run_id = header.parent.name
    code, out, _ = cli("list", "runs")
    assert code == 0
    assert run_id in out
    assert "complete" in out
    code, out, _ = cli("show", run_id)
    assert code == 0
    assert out.endswith(table)
    assert '"limit"' not in out.split("accuracy on digits")[0]
    code, out, _ = cli("leaderboard", "--suite", "accuracy")
    assert (code, out) == (0, table)
    code, _, err = cli("leaderboard", "--suite", "ood")
    assert code == 2
    assert "of suite 'ood'" in err


def test_a_newer_cell_replaces_an_older_one_in_the_leaderboard(cli: Cli) -> None:
    cli(*RUN)
    cli(*RUN, "--set", "calibration.draws=3")  # another request, the same cells
    _, out, _ = cli("leaderboard", "--format", "csv")
    assert len(list(csv.DictReader(io.StringIO(out)))) == 3


def test_list_shows_options_with_defaults(cli: Cli) -> None:
    code, out, _ = cli("list", "suites")
    assert code == 0
    assert "robustness" in out
    assert "steps=20" in out
    code, out, _ = cli("list")
    assert code == 0
    for heading in ("models", "attacks", "datasets", "scores", "metrics", "suites"):
        assert f"{heading}\n" in out


def test_without_arguments_the_help_is_shown(cli: Cli) -> None:
    cli("list", "suites")  # importing bench.cli.list must not hide Python's list from bench.cli
    code, out, _ = cli()
    assert code == 2
    assert "Usage: bench" in out
    code, out, _ = cli("--version")
    assert code == 0
    assert out.startswith("bench, version ")
