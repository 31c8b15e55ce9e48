"""``bench train``: exit codes, what it leaves, and that the same command does nothing twice."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import torch
from click.testing import CliRunner, Result

from bench.cli import main
from bench.data import load_dataset
from bench.errors import CheckpointError
from bench.registry import MODELS
from bench.weights import find_weights, read_card, weights_sha256

STEM = "baseline-digits-resnet-tiny"


def invoke(out: Path, *arguments: str, model: str = "baseline") -> Result:
    """Run ``bench train`` as the console script does, in this process."""
    return CliRunner().invoke(console_script, ["--model", model, "--out", str(out), *arguments])


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def console_script(arguments: tuple[str, ...]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["bench", "train", *arguments])
        main()


def test_weights_and_card_are_left_and_found(tmp_path: Path) -> None:
    result = invoke(tmp_path, "--epochs", "1", "--seed", "3")
    assert result.exit_code == 0, result.output
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"{STEM}.json", f"{STEM}.safetensors"]
    weights = tmp_path / f"{STEM}.safetensors"
    card = read_card(weights)
    data = load_dataset("digits", "test")
    model = MODELS["baseline"](data, "resnet-tiny", weights)
    assert weights_sha256(model) == card["weights_sha256"]
    with torch.no_grad():
        hit = model(torch.from_numpy(data.images)).argmax(dim=1) == torch.from_numpy(data.labels)
    assert float(hit.double().mean()) == pytest.approx(card["accuracy"]["test"], abs=1e-9)
    assert card["data_sha256"]["test"] == data.sha256
    assert card["seed"] == 3
    assert card["options"]["epochs"] == 1
    assert str(tmp_path) not in json.dumps(card)
    assert f"{100 * card['accuracy']['test']:.2f} %" in result.stdout
    assert "epoch 1/1" in result.stderr


def test_the_same_command_trains_once_and_another_one_is_refused(tmp_path: Path) -> None:
    first = invoke(tmp_path, "--epochs", "1")
    stamp = (tmp_path / f"{STEM}.safetensors").stat().st_mtime_ns
    again = invoke(tmp_path, "--epochs", "1")
    assert again.stdout == first.stdout
    assert "epoch" not in again.stderr
    assert (tmp_path / f"{STEM}.safetensors").stat().st_mtime_ns == stamp
    other = invoke(tmp_path, "--epochs", "1", "--seed", "1")
    assert other.exit_code == 2
    assert "of another training (seed=0, not 1)" in other.stderr
    replaced = invoke(tmp_path, "--epochs", "1", "--seed", "1", "--fresh")
    assert replaced.exit_code == 0
    assert read_card(tmp_path / f"{STEM}.safetensors")["seed"] == 1


def test_damaged_weights_are_trained_again(tmp_path: Path) -> None:
    invoke(tmp_path, "--epochs", "1")
    weights = tmp_path / f"{STEM}.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:1000])
    assert invoke(tmp_path, "--epochs", "1").exit_code == 0
    assert weights.read_bytes() == whole


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--model", "jme"], "did you mean 'jem'"),
        (["--model", "jem", "--dataset", "digit"], "did you mean 'digits'"),
        (["--model", "jem", "--network", "resnet-tony"], "did you mean 'resnet-tiny'"),
        (["--model", "jem", "--set", "jem.sgld_stesp=3"], "did you mean 'sgld_steps'"),
        (["--model", "jem", "--set", "hdge.epochs=3"], "'hdge' is not"),
        (["--model", "jem", "--set", "jem.epochs=many"], "expected a int"),
        (["--model", "jem", "--set", "jem.epochs"], "NAME.OPTION=VALUE"),
        (["--model", "jem", "--set", "jem.batch_size=0"], "batch_size=0"),
        (["--model", "jem", "--device", "gpu"], "device 'gpu' cannot be used"),
    ],
)
def test_a_bad_request_is_exit_code_2(tmp_path: Path, arguments: list[str], told: str) -> None:
    result = CliRunner().invoke(console_script, [*arguments, "--out", str(tmp_path)])
    assert result.exit_code == 2, result.output
    assert told in result.stderr
    assert not list(tmp_path.glob("*.safetensors"))


def test_a_divergence_is_exit_code_1_and_the_last_good_weights_are_saved(tmp_path: Path) -> None:
    result = invoke(tmp_path, "--epochs", "1", "--set", "jem.sgld_step_size=1e12", model="jem")
    assert result.exit_code == 1
    assert "restart 5 of 5" in result.stderr
    assert "the last good weights, of epoch 0" in result.stderr
    assert (tmp_path / "jem-digits-resnet-tiny.partial" / "last-good.safetensors").is_file()
    assert find_weights("no-such", "digits", "resnet-tiny", [tmp_path]) is None
    assert not list(tmp_path.glob("*.safetensors"))


def test_an_interrupt_is_exit_code_130_and_the_same_command_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bench.cli.train import Watch

    honest = Watch.__call__

    def interrupt(self: Watch, event: Any) -> None:
        honest(self, event)
        if event.epoch == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Watch, "__call__", interrupt)
    result = invoke(tmp_path, "--epochs", "3")
    assert result.exit_code == 130
    assert "the same command goes on" in result.stderr
    monkeypatch.undo()
    result = invoke(tmp_path, "--epochs", "3")
    assert result.exit_code == 0
    assert "going on after epoch 1" in result.stderr
    whole = tmp_path / "whole"
    invoke(whole, "--epochs", "3")
    name = f"{STEM}.safetensors"
    assert (tmp_path / name).read_bytes() == (whole / name).read_bytes()


def test_a_damaged_state_is_told(tmp_path: Path) -> None:
    state = tmp_path / f"{STEM}.partial" / "state.pt"
    state.parent.mkdir()
    state.write_bytes(b"\x00" * 100)
    result = invoke(tmp_path, "--epochs", "1")
    assert result.exit_code == 2
    assert "state.pt" in result.stderr
    assert invoke(tmp_path, "--epochs", "1", "--fresh").exit_code == 0


def test_help_needs_neither_torch_nor_numpy() -> None:
    code = (
        "import sys; from bench.cli import bench; bench(['train', '-h'], standalone_mode=False);"
        "print(sorted({'torch', 'numpy', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("[]")


SHIPPED = ("baseline", "jem", "hdge", "hdge-masked", "hdge-eq13", "hdge-jem")


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_weights_are_what_their_card_says(name: str) -> None:
    weights = find_weights(name, "digits", "resnet-tiny", [])
    assert weights is not None
    assert weights.stat().st_size <= 500_000
    card = read_card(weights)
    data = load_dataset("digits", "test")
    model = MODELS[name](data, "resnet-tiny", weights)
    assert weights_sha256(model) == card["weights_sha256"]
    assert (card["model"], card["seed"]) == (name, 0)
    with torch.no_grad():
        hit = model(torch.from_numpy(data.images)).argmax(dim=1) == torch.from_numpy(data.labels)
    assert float(hit.double().mean()) == pytest.approx(card["accuracy"]["test"], abs=0.003)


def test_weights_of_another_data_set_are_refused() -> None:
    weights = find_weights("jem", "digits", "resnet-tiny", [])
    assert weights is not None
    cifar_like = load_dataset("uniform", like="digits", n=2)
    other = type(cifar_like)("x", "test", cifar_like.images, classes=("a", "b", "c"))
    with pytest.raises(
        CheckpointError, match=r"network\.head\.weight is \(10, 64\), not \(3, 64\)"
    ):
        MODELS["jem"](other, "resnet-tiny", weights)


@pytest.mark.slow
def test_jem_can_be_trained_again_to_what_its_card_says(tmp_path: Path) -> None:
    result = invoke(tmp_path, "--seed", "0", model="jem")
    assert result.exit_code == 0, result.output
    shipped = find_weights("jem", "digits", "resnet-tiny", [])
    assert shipped is not None
    ours = read_card(tmp_path / shipped.name)["accuracy"]["test"]
    assert ours == pytest.approx(read_card(shipped)["accuracy"]["test"], abs=0.015)
