"""Whatever is wrong with the input: one line that says what, where and what to do."""

from __future__ import annotations

import errno
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bench
from bench.types import Array

Cli = Callable[..., tuple[int, str, str]]

MODEL = ("--model", "py:model.py:make")
FEW = ("--suite", "accuracy", "--limit", 20)


def images(count: int = 20) -> tuple[Array, Array]:
    data = bench.load_dataset("digits", limit=count)
    assert data.labels is not None
    return data.images, data.labels


def one_line(text: str, *words: str) -> str:
    """Check that stderr is one line, without a traceback, that holds these words."""
    lines = text.strip().splitlines()
    assert len(lines) == 1, text
    for word in words:
        assert word in lines[0], lines[0]
    return lines[0]


def failed(cli: Cli, how: str, suite: str, *words: str) -> list[dict[str, Any]]:
    """Run a broken model beside a sound one; return the records of the broken one."""
    code, out, err = cli(
        *("run", "--model", f"py:model.py:broken?how={how}", *MODEL, "--suite", suite),
        *("--limit", 30, "--json", "--set", "ood.sets=interp", "--set", "ood.scores=max-softmax"),
        *("--set", "robustness.steps=1", "--set", "robustness.l2=0.5"),
        *("--set", "robustness.attacks=pgd-l2"),
    )
    assert code == 1
    line = one_line(err, "failed: py:model.py:broken", *words)
    records = json.loads(out)
    broken = [r for r in records if "broken" in r["label"]]
    others = [r for r in records if "broken" not in r["label"]]
    assert {r["status"] for r in others} == {"ok"}  # nothing else is lost
    assert {r["status"] for r in broken} == {"failed"}
    assert all(r["note"] in line and r["value"] is None for r in broken)
    return broken


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (
            "some-nan",
            ["NaN or infinity for 2 of 30 images, numbers 23, 25", "check its arithmetic"],
        ),
        ("some-inf", ["NaN or infinity for 2 of 30 images, numbers 23, 25"]),
        ("wide", ["the model has 20 classes, the data set 10", "use a model trained on"]),
        ("narrow", ["the model has 7 classes, the data set 10"]),
        ("probabilities", ["returned probabilities", "remove its softmax"]),
    ],
)
def test_broken_answers_make_failed_rows(cli: Cli, how: str, words: list[str]) -> None:
    failed(cli, how, "accuracy", *words)


@pytest.mark.parametrize(
    ("suite", "how", "word"),
    [
        ("ood", "probabilities", "returned probabilities"),
        ("robustness", "probabilities", "returned probabilities"),
        ("robustness", "wide", "the model has 20 classes, the data set 10"),
        ("robustness", "narrow", "the model has 7 classes, the data set 10"),
    ],
)
def test_every_suite_looks_at_the_answers(cli: Cli, suite: str, how: str, word: str) -> None:
    code, out, err = cli(
        *("run", "--model", f"py:model.py:broken?how={how}", "--suite", suite, "--limit", 20),
        *("--set", "ood.sets=interp", "--json", "--set", "robustness.attacks=pgd-linf"),
    )
    assert code == 1
    own = [r for r in json.loads(out) if r["model"]]
    assert own
    assert all(r["status"] == "failed" and word in r["note"] for r in own)
    assert "Traceback" not in err


def test_infinite_scores_are_legal(cli: Cli) -> None:
    """A density may be zero: minus infinity has its place in a ranking."""
    code, out, err = cli(
        *("run", "--model", "py:model.py:broken?how=some-inf", "--suite", "ood", "--limit", 30),
        *("--set", "ood.sets=interp", "--set", "ood.scores=log-density", "--json"),
    )
    assert (code, err) == (0, "")
    assert {r["status"] for r in json.loads(out)} == {"ok"}


def test_a_model_that_raises_at_a_later_batch_is_told_in_one_line(cli: Cli) -> None:
    code, out, err = cli(
        *("run", "--model", "py:model.py:broken?how=third", "--suite", "accuracy"),
        *("--limit", 20, "--batch-size", 6, "--json"),
    )
    assert code == 1
    one_line(err, "RuntimeError", "the third batch is one too many", "1x8x8", "numbers")
    assert {r["status"] for r in json.loads(out)} == {"failed"}
    (header,) = Path("runs").glob("*/run.json")
    (trace,) = json.loads(header.read_text())["traces"]
    assert "model.py" in trace
    assert "with a second line" in trace


def test_a_model_for_other_images_is_told(cli: Cli) -> None:
    code, out, err = cli("run", "--model", "py:model.py:colour", *FEW)
    assert code == 1
    one_line(err, "failed: py:model.py:colour", "RuntimeError", "1x8x8")
    assert "failed" in out


def test_a_density_without_classes_has_rows_that_say_so(cli: Cli) -> None:
    code, out, err = cli(
        *("run", "--model", "py:model.py:density", "--suite", "accuracy,ood,robustness"),
        *("--limit", 20, "--set", "ood.sets=interp", "--json"),
    )
    assert (code, err) == (0, "")
    by_suite: dict[str, set[str]] = {}
    for record in json.loads(out):
        if record["model"]:
            key = record["settings"].get("score", record["suite"])
            by_suite.setdefault(key, set()).add(record["status"])
    assert by_suite == {
        "accuracy": {"n/a"},
        "log-density": {"ok"},
        "max-softmax": {"n/a"},
        "approx-mass": {"ok"},
        "robustness": {"n/a"},
    }
    assert "it is a density without classes" in out
    _, table, _ = cli(*("run", "--model", "py:model.py:density"), *FEW)
    assert "n/a [1]" in table
    assert "[1] py:model.py:density has no logits: it is a density without classes" in table


def test_an_unlabelled_set_has_rows_that_say_so(cli: Cli) -> None:
    x, _ = images()
    np.savez("plain.npz", x=x)
    code, out, err = cli(
        *("run", *MODEL, "--dataset", "npz:plain.npz", "--suite", "accuracy,ood", "--json"),
    )
    assert (code, err) == (0, "")
    records = json.loads(out)
    accuracy = [r for r in records if r["suite"] == "accuracy"]
    assert {r["status"] for r in accuracy} == {"n/a"}
    assert all("has no labels" in r["note"] for r in accuracy)
    assert {r["status"] for r in records if r["suite"] == "ood"} == {"ok"}


def test_fewer_outside_images_than_a_batch_are_enough(cli: Cli) -> None:
    x, _ = images()
    np.savez("few.npz", x=x[:3, :, ::-1])
    code, out, err = cli(
        *("run", *MODEL, "--suite", "ood", "--limit", 20, "--set", "ood.sets=npz:few.npz"),
        "--json",
    )
    assert (code, err) == (0, "")
    records = json.loads(out)
    assert {r["n_ood"] for r in records} == {3}
    assert {r["status"] for r in records} == {"ok"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x: x * 255, ["pixel values run from 0 to 255", "divide by 255"]),
        (lambda x: 2 * x - 1, ["pixel values run from -1 to 1", "undo the normalisation"]),
        (lambda x: np.where(x > 0.9, np.nan, x), ["pixel values run from nan"]),
        (lambda x: x[:0], ["is empty", "at least one image"]),
        (lambda x: x[:, 0, 0], ["have shape (20, 8)"]),
        (lambda x: x.astype(np.int32), ["images are int32"]),
    ],
)
def test_images_that_are_not_images_are_refused(
    cli: Cli, change: Callable[[Array], Array], words: list[str]
) -> None:
    x, y = images()
    changed = change(x)
    np.savez("d.npz", x=changed, y=y[: len(changed)])
    code, out, err = cli("run", *MODEL, "--dataset", "npz:d.npz", "--suite", "accuracy")
    assert (code, out) == (2, "")
    one_line(err, "d.npz", *words)


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, ("exploded",))


def write_weights(path: str, kind: str) -> None:
    if kind == "page":
        Path(path).write_text("<!DOCTYPE html><html>sign in</html>")
    elif kind == "bomb":
        Path(path).write_bytes(pickle.dumps({"weight": Bomb()}))
    elif kind == "zipped bomb":
        torch.save({"weight": Bomb()}, path)
    elif kind == "empty":
        Path(path).write_bytes(b"")
    else:
        net = bench.NETWORKS["resnet-tiny"]((1, 8, 8), 7 if kind == "of 7 classes" else 10)
        torch.save(net.state_dict(), path)
        if kind == "truncated":
            data = Path(path).read_bytes()
            Path(path).write_bytes(data[: len(data) // 2])


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("truncated", ["is cut off", "download or train it again"]),
        ("page", ["is a web page, not weights"]),
        ("bomb", ["would run code", "mkdir", "none of it was run", "--trust"]),
        ("zipped bomb", ["would run code", "mkdir", "none of it was run", "--trust"]),
        ("empty", ["is empty (0 bytes)"]),
        ("of 7 classes", ["do not fit", "of another shape", "number of classes"]),
    ],
)
def test_files_that_are_not_the_weights_are_refused(cli: Cli, kind: str, words: list[str]) -> None:
    write_weights("w.pt", kind)
    code, out, err = cli("run", "--model", "ckpt:resnet-tiny@w.pt", *FEW)
    assert (code, out) == (2, "")
    one_line(err, "w.pt", *words)
    assert not Path("exploded").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--model", "bselin"), ["'bselin' is not a model", "'baseline'", "bench list models"]),
        (("--suite", "acuracy"), ["'acuracy' is not a suite", "'accuracy'"]),
        (("--dataset", "digts"), ["'digts' is not a data set", "'digits'"]),
        (
            ("--network", "resnet-tny", "--model", "jem"),
            ["'resnet-tny' is not a network", "'resnet-tiny'"],
        ),
        (("--format", "mardown"), ["'mardown' is not a format", "'markdown'"]),
        (("--executor", "locl"), ["'locl' is not an executor", "'local'"]),
        (("--executor", "local:many"), ["expected local:N"]),
        (("--device", "cudaa"), ["device 'cudaa' cannot be used here", "'cpu'"]),
        (("--set", "pgd-lnf.steps=3"), ["'pgd-lnf' is not an attack", "'pgd-linf'"]),
        (("--set", "pgd-linf.step=3"), ["'step' is not an option of attack", "'steps'"]),
        (("--set", "accuracy.draw=3"), ["'draw' is not an option of suite", "'draws'"]),
        (("--set", "accuracy.draws=few"), ["accuracy.draws=few", "expected a whole number"]),
        (("--set", "accuracy=3"), ["is not NAME.OPTION=VALUE"]),
        (("--refine-steps", "1,x"), ["--refine-steps 1,x", "e.g. 0,1,10"]),
        (("--refine-steps", "-1"), ["expected numbers of at least 0"]),
        (("--limit", "0"), ["limit 0", "at least 1"]),
        (("--seed", "-1"), ["seed -1", "at least 0"]),
        (("--batch-size", "0"), ["micro_batch 0", "at least 1"]),
        (("--batch-size", "big"), ["--batch-size big", "whole number"]),
        (("--threads", "0"), ["threads 0", "at least 1"]),
        (("--config", "absent.toml"), ["absent.toml", "No such file"]),
        (("--from", "absent.json"), ["absent.json", "expected RUNS/<run id>/run.json"]),
        (("--checkpoint", "absent.pt", "--model", "jem"), ["absent.pt", "there is no file"]),
        (("--model", "py:absent.py:make"), ["absent.py", "there is no file"]),
        (("--model", "py:model.py:mak"), ["'mak' is not a function of", "'make'"]),
        (("--model", "py:model.py"), ["is not py:PACKAGE.MODULE:FACTORY"]),
        (("--model", "py:nosuchmodule:make"), ["'nosuchmodule' does not import"]),
        (("--model", "py:model.py:make?temprature=1"), ["'temprature' is not", "'temperature'"]),
        (("--model", "ckp:net@w.pt"), ["'ckp' is not a model scheme", "'ckpt'"]),
        (("--model", "jem,jem"), ["'jem' is named twice"]),
        (("--dataset", "npz:absent.npz"), ["absent.npz", "there is no file"]),
    ],
)
def test_requests_that_cannot_be_met_are_refused_in_one_line(
    cli: Cli, arguments: tuple[str, ...], words: list[str]
) -> None:
    own = [] if "--model" in arguments else MODEL
    suite = [] if "--suite" in arguments else ["--suite", "accuracy"]
    code, out, err = cli("run", *own, *suite, "--limit", 20, *arguments)
    assert (code, out) == (2, "")
    one_line(err, "error: ", *words)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "--modl", "jem"), ["--modl", "--model"]),
        (("run", "--limit", "x"), ["--limit", "'x' is not a valid integer"]),
        (("run", "--protocol", "pape"), ["'pape'", "'paper'"]),
        (("rn",), ["'rn' is not a command; did you mean run"]),
        (("list", "modls"), ["'modls'", "'models'"]),
        (("show", "nothing"), ["'nothing' is not a run"]),
        (("leaderboard",), ["no records in 'runs'", "bench run"]),
    ],
)
def test_misspelt_commands_and_options_are_told(
    cli: Cli, arguments: tuple[str, ...], words: list[str]
) -> None:
    code, out, err = cli(*arguments)
    assert (code, out) == (2, "")
    assert "Traceback" not in err
    last = err.strip().splitlines()[-1]
    for word in words:
        assert word in last


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("limit =", ["c.toml' is not TOML"]),
        ("limits = 3", ["'limits' is not an option in 'c.toml'", "'limit'"]),
        ('limit = "many"', ["--limit", "not a valid integer"]),
        ("set = [3]", ["'--set 3' is not NAME.OPTION=VALUE"]),
        ("[set.accuracy]\ndraws = 3", ["is not NAME.OPTION=VALUE"]),
        ('protocol = "journal"', ["'journal'", "'paper'"]),
    ],
)
def test_configurations_that_cannot_be_used_are_told(cli: Cli, text: str, words: list[str]) -> None:
    Path("c.toml").write_text(text)
    code, out, err = cli("run", *MODEL, "--suite", "accuracy", "--config", "c.toml")
    assert (code, out) == (2, "")
    last = err.strip().splitlines()[-1]
    for word in words:
        assert word in last


def test_a_full_disk_is_told_and_nothing_is_lost(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli("run", *MODEL, *FEW)[0] == 0
    stored = {p: p.stat().st_mtime_ns for p in Path("runs/shards").iterdir()}

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        code, out, err = cli("run", *MODEL, "--suite", "accuracy", "--limit", 21)
    assert (code, out) == (2, "")
    one_line(err, "the disk is full", "give the same command again")
    assert {p: p.stat().st_mtime_ns for p in Path("runs/shards").iterdir()} == stored


def test_a_runs_folder_that_is_a_file_is_told(cli: Cli) -> None:
    Path("file").write_text("")
    code, out, err = cli("run", *MODEL, *FEW, "--runs", "file")
    assert (code, out) == (2, "")
    one_line(err, "'file'", "it is not a folder", "--runs")


def test_a_newer_run_is_refused_by_name(cli: Cli) -> None:
    assert cli("run", *MODEL, *FEW)[0] == 0
    (header,) = Path("runs").glob("*/run.json")
    header.write_text(json.dumps({**json.loads(header.read_text()), "schema": 99}))
    code, _, err = cli("run", *MODEL, *FEW)
    assert code == 2
    one_line(err, "run.json", "has schema 99", "upgrade")
