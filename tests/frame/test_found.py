"""What users ran into: each request is refused in one line, before anything is computed."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torch import nn

import bench
from bench.errors import InputError, StoreError, UnknownName
from bench.records import Record
from bench.request import Machine, Request
from bench.store import Store

Cli = Callable[..., tuple[int, str, str]]
MODEL = ("--model", "py:model.py:make")


def refused(cli: Cli, arguments: tuple[Any, ...], *words: str) -> None:
    """Check that the command ends with one line that holds the words, and computed nothing."""
    code, out, err = cli("run", *arguments)
    assert (code, out) == (2, ""), err
    assert err.startswith("error: ")
    assert len(err.strip().splitlines()) == 1
    for word in words:
        assert word in err
    assert not list(Path("runs").glob("shards/*.npz"))


@pytest.mark.parametrize(
    ("suite", "setting", "words"),
    [
        ("robustness", "robustness.linf=abc", ["robustness.linf=abc", "positive finite numbers"]),
        ("robustness", "robustness.linf=[]", ["robustness.linf=[]", "at least one value"]),
        ("robustness", "robustness.linf=[0.1, -0.1]", ["linf=-0.1", "positive finite"]),
        ("robustness", "robustness.linf=inf", ["linf=inf", "positive finite"]),
        ("robustness", "robustness.l2=nan", ["l2=nan", "positive finite"]),
        ("robustness", "robustness.l2=true", ["l2=True", "positive finite"]),
        ("robustness", "robustness.l2=[0.5, 0.5]", ["l2=0.5", "each once"]),
        ("accuracy", "accuracy.draws=0", ["accuracy.draws=0", "at least 1"]),
        ("calibration", "calibration.draws=-1", ["calibration.draws=-1", "at least 1"]),
        ("ood", "ood.n=0", ["ood.n=0", "at least 1"]),
        ("smoke", "smoke.images=0", ["smoke.images=0", "at least 1"]),
        ("robustness", "robustness.steps=0", ["robustness.steps=0", "at least 1"]),
        ("robustness", "robustness.restarts=0", ["robustness.restarts=0", "at least 1"]),
        ("robustness", "robustness.scoring_draws=0", ["scoring_draws=0", "at least 1"]),
        ("accuracy", "accuracy.metrics=auroc", ["metrics=auroc", "id_scores", "logits and labels"]),
        ("calibration", "calibration.metrics=auroc", ["metrics=auroc", "suite 'calibration'"]),
        ("ood", "ood.metrics=accuracy", ["metrics=accuracy", "scores of two sets"]),
        ("ood", "ood.metrics=aurok", ["'aurok' is not a metric", "'auroc'"]),
        ("accuracy", "accuracy.metrics=5", ["accuracy.metrics=5", "expected names"]),
        ("accuracy", "accuracy.metrics=nll,nll", ["'nll' is named twice"]),
        ("accuracy", "accuracy.metrics=[]", ["at least one value"]),
        ("ood", 'ood.sets=["interp", "interp"]', ["'interp' is named twice"]),
        ("ood", "ood.sets=digits", ["'digits' holds the test images of 'digits'"]),
        ("ood", "ood.sets=5", ["ood.sets=5", "names of data sets"]),
        ("robustness", "pgd-linf.steps=abc", ["pgd-linf.steps=abc", "whole number"]),
        ("robustness", "pgd-linf.steps=1.5", ["pgd-linf.steps=1.5", "whole number"]),
        ("robustness", "pgd-linf.momentum=abc", ["pgd-linf.momentum=abc", "a number"]),
        ("robustness", "pgd-linf.early_stop=1", ["early_stop=1", "true or false"]),
        ("robustness", "pgd-linf.loss=3", ["pgd-linf.loss=3", "expected text"]),
        ("robustness", "pgd-linf.loss=hinge", ["loss one of"]),
        ("robustness", "pgd-linf.steps=0", ["steps, restarts and eot_samples at least 1"]),
        ("robustness", "pgd-linf.step_size=abc", ["attack 'pgd-linf' cannot be made", "abc"]),
        ("robustness", "pgd-linf.step_size=[0.1, 0.2]", ["2 step sizes for 5 values of eps"]),
        ("robustness", "pgd-linf.eps=0.3", ["pgd-linf.eps=0.3", "robustness.linf=[0.3]"]),
        ("robustness", "pgd-l2.eps=0.3", ["robustness.l2=[0.3]"]),
        ("robustness", "robustness.by_gradient=5", ["by_gradient=5", "full={steps=10}"]),
        ("robustness", "robustness.by_gradient={full=5}", ["by_gradient=", "full={steps=10}"]),
        ("robustness", "robustness.scoring_draws=2.5", ["scoring_draws=2.5", "whole number"]),
        ("robustness", "square-linf.queries=7", ["square-linf.queries", "would change nothing"]),
        ("transfer", "apgd-linf.steps=7", ["apgd-linf.steps", "would change nothing"]),
    ],
)
def test_options_that_cannot_be(cli: Cli, suite: str, setting: str, words: list[str]) -> None:
    refused(cli, (*MODEL, "--suite", suite, "--limit", 10, "--set", setting), *words)


def test_two_files_of_one_name_and_a_copy_of_the_test_images(cli: Cli) -> None:
    images = bench.load_dataset("digits").images
    for folder, x in (("a", 1 - images[:5]), ("b", images[:7])):
        Path(folder).mkdir()
        np.savez(f"{folder}/x.npz", x=x)
    ood = (*MODEL, "--suite", "ood", "--limit", 10, "--set")
    refused(cli, (*ood, 'ood.sets=["npz:b/x.npz"]'), "holds the test images of 'digits'")
    np.savez("b/x.npz", x=1 - images[:7])
    refused(cli, (*ood, 'ood.sets=["npz:a/x.npz", "npz:b/x.npz"]'), "called 'npz:x.npz'")


@pytest.mark.parametrize("names", [(), ("classes",)])
@pytest.mark.parametrize("largest", [10**9, 100_000, 2**63 + 1])
def test_labels_that_number_no_classes(cli: Cli, largest: int, names: tuple[str, ...]) -> None:
    arrays: dict[str, Any] = {name: np.array(["a", "b"]) for name in names}
    labels = np.array([0, largest], np.uint64)
    np.savez("d.npz", x=np.zeros((2, 8, 8), np.float32), y=labels, **arrays)
    words = ["d.npz", f"go up to {largest}", "100,000 classes"]
    refused(cli, (*MODEL, "--dataset", "npz:d.npz", "--suite", "accuracy"), *words)


def test_the_largest_label_that_is_a_class(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=np.zeros((1, 8, 8), np.float32), y=np.array([99_999]))
    assert len(bench.load_dataset(f"npz:{tmp_path / 'd.npz'}").classes) == 100_000


def test_a_set_without_its_last_class_says_how_to_name_it(cli: Cli) -> None:
    data = bench.load_dataset("digits", limit=30)
    assert data.labels is not None
    few = data.labels < 9
    np.savez("d.npz", x=data.images[few], y=data.labels[few])
    arguments = (*MODEL, "--dataset", "npz:d.npz", "--suite", "accuracy")
    code, _, err = cli("run", *arguments)
    assert code == 1
    assert "can name its classes with the key 'classes'" in err
    np.savez("d.npz", x=data.images[few], y=data.labels[few], classes=np.array(data.classes))
    assert cli("run", *arguments)[0] == 0


def test_linked_class_folders_are_followed_and_loops_end(tmp_path: Path) -> None:
    for name, grey in (("cats", 0), ("dogs", 255)):
        (tmp_path / "real" / name).mkdir(parents=True)
        Image.new("L", (4, 4), grey).save(tmp_path / "real" / name / "one.png")
        (tmp_path / "links").mkdir(exist_ok=True)
        (tmp_path / "links" / name).symlink_to(tmp_path / "real" / name)
    (tmp_path / "real" / "cats" / "loop").symlink_to(tmp_path / "real" / "cats")
    linked = bench.load_dataset(f"folder:{tmp_path / 'links'}")
    assert linked.classes == ("cats", "dogs")
    assert len(linked) == 2
    assert linked.sha256 == bench.load_dataset(f"folder:{tmp_path / 'real'}").sha256


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--model", ""), ["'--model ' names nothing"]),
        (("--model", ","), ["'--model ,' names nothing"]),
        (("--model", "jem", "--suite", " , "), ["'--suite  , ' names nothing"]),
        (("--model", "baseline,py:m/w.py:make"), ["repeat --model for each"]),
        (("--model", "py:m/w.py:make,baseline"), ["repeat --model for each"]),
        (("--executor", "local:0"), ["'local:0'", "N >= 1"]),
        (("--executor", "local:²"), ["'local:²'", "N >= 1"]),
        (("--executor", "ray"), ["'ray' is not an executor"]),
        (("--checkpoint", "f.pt"), ["f.pt", "expected one registered model"]),
        (("--checkpoint", "f.pt", "--model", "jem,baseline"), ["expected one registered model"]),
        (("--checkpoint", "f.pt", *MODEL), ["expected one registered model"]),
        (("--checkpoint", "f.pt", "--model", "ckpt:n@g.pt"), ["expected one registered model"]),
    ],
)
def test_options_of_a_run_that_cannot_be(
    cli: Cli, arguments: tuple[str, ...], words: list[str]
) -> None:
    refused(cli, ("--limit", 10, *arguments), *words)


def test_an_empty_list_in_a_configuration(cli: Cli) -> None:
    Path("c.toml").write_text("model = []")
    refused(cli, ("--config", "c.toml"), "'model = []' in 'c.toml' names nothing")


def test_executors_are_refused_also_where_the_answer_is_stored(cli: Cli) -> None:
    command = ("run", *MODEL, "--suite", "accuracy", "--limit", 10)
    assert cli(*command)[0] == 0
    for name in ("ray", "local:0"):
        code, out, err = cli(*command, "--executor", name)
        assert (code, out) == (2, "")
        assert f"'{name}'" in err


def test_options_of_the_request_beside_from(cli: Cli) -> None:
    assert cli("run", *MODEL, "--suite", "accuracy", "--limit", 10)[0] == 0
    (stored,) = Path("runs").glob("*/run.json")
    again = ("run", "--from", stored)
    assert cli(*again, "--json", "--threads", 1)[0] == 0
    code, out, err = cli(*again, "--model", "baseline", "--limit", 10, "--set", "ood.n=3")
    assert (code, out) == (2, "")
    assert "leave out --limit, --model, --set, or" in err
    Path("c.toml").write_text('refine_steps = [1]\nruns = "elsewhere"\n')
    code, out, err = cli(*again, "--config", "c.toml")
    assert (code, out) == (2, "")
    assert "leave out --refine-steps, or" in err


@pytest.mark.parametrize("name", ["ray", "local:0", "local:", "local:-1", "local:x"])
def test_a_machine_knows_its_executors(name: str) -> None:
    with pytest.raises((InputError, UnknownName), match=f"'{name}'"):
        Machine(executor=name)


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        (lambda x: x, {}, "given as function; expected one nn.Module"),
        (nn.Identity, {}, "given as type; expected one nn.Module"),
        ([nn.Identity()], {}, "given as Identity; expected one nn.Module"),
        (5, {}, "model is given as int"),
        ("jem", {"suite": 5}, "suite is given as int; expected a name or a list"),
        (nn.Identity(), {"checkpoint": "f.pt"}, "'f.pt' beside a module"),
        ("jem", {"settings": {"pgd-linf": 5}}, "settings of 'pgd-linf' are 5"),
        ("jem", {"settings": 5}, "settings are 5"),
    ],
)
def test_arguments_of_python_that_cannot_be(
    model: Any, options: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=words):
        bench.run(model, runs=tmp_path, **options)
    assert not list(tmp_path.iterdir())


def test_a_request_holds_names() -> None:
    with pytest.raises(InputError, match="model 5: expected a name"):
        Request(models=(5,))  # type: ignore[arg-type]


DAMAGED = ["{}", '{"schema": 1}', '"text"', "", '{"schema": 1, "request": "[]"}']


@pytest.mark.parametrize("text", [*DAMAGED, "keys"])
def test_a_damaged_header_is_told_and_mended(cli: Cli, text: str) -> None:
    command = ("run", *MODEL, "--suite", "accuracy", "--limit", 10, "--json")
    code, first, _ = cli(*command)
    assert code == 0
    (path,) = Path("runs").glob("*/run.json")
    whole = json.loads(path.read_text())
    path.write_text(json.dumps({**whole, "keys": 5}) if text == "keys" else text)
    code, out, _ = cli("list", "runs")
    assert code == 0
    assert f"unreadable    {path.parent.name}" in out
    code, out, err = cli("show", path.parent.name)
    assert (code, out) == (2, "")
    assert f"run '{path.parent.name}' cannot be read" in err
    assert "run.json" in err
    code, again, _ = cli(*command)
    assert code == 0
    assert again == first
    assert json.loads(path.read_text())["keys"] == whole["keys"]


def test_damaged_records_are_told_and_mended(cli: Cli) -> None:
    command = ("run", *MODEL, "--suite", "accuracy", "--limit", 10, "--json")
    first = cli(*command)
    other = cli("run", *MODEL, "--suite", "accuracy", "--limit", 11)
    assert (first[0], other[0]) == (0, 0)
    run = json.loads(first[1])[0]["run"]
    path = Path("runs") / run / "records.jsonl"
    path.write_text("{}\n")
    code, out, err = cli("show", run)
    assert (code, out) == (2, "")
    assert "records.jsonl' is missing or damaged" in err
    code, out, _ = cli("leaderboard")  # the other run is shown
    assert code == 0
    assert "py:model.py:make" in out
    assert cli(*command) == first
    assert path.read_text() != "{}\n"


def test_a_newer_schema_is_refused_still(tmp_path: Path) -> None:
    store = Store(tmp_path)
    fields: dict[str, Any] = dict.fromkeys(
        ("run", "model", "label", "dataset", "suite", "protocol", "task", "metric"), "x"
    )
    record = Record(**fields, suite_version=1, value=None, seed=0)
    store.write_run("one", {}, [record])
    path = tmp_path / "one" / "records.jsonl"
    path.write_text(json.dumps({"schema": 99}))
    with pytest.raises(StoreError, match="schema 99"):
        store.read_records("one")


def test_a_folder_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)  # root may read whatever its permissions are
    with pytest.raises(InputError, match="cannot be read: Permission denied"):
        bench.load_dataset(f"folder:{tmp_path}")


def test_reading_a_request_imports_no_torch() -> None:
    code = "import sys, bench.request, bench.cli.requests; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("suite", ["robustness", "transfer"])
def test_step_sizes_of_budgets_that_get_sorted(cli: Cli, suite: str) -> None:
    budgets = ("--set", f"{suite}.linf=[0.1, 0.05]", "--set", "pgd-linf.step_size=[0.02, 0.001]")
    few = (*MODEL, "--suite", suite, "--limit", 10, "--set", f"{suite}.attacks=pgd-linf")
    refine = ("--refine-steps", "0,1") if suite == "transfer" else ()
    refused(cli, (*few, *refine, *budgets), "linf=[0.1, 0.05]", "order of increasing budgets")
