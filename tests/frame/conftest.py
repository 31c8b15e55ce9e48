"""Models as a user would write them, and the command line, in this process or in its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench import cli as command_line

MODELS = '''
import torch
from torch import nn
from bench.data import load_dataset, to_tensor


class Net(nn.Module):
    """Random filters and the nearest class mean: right on most digits, without training."""

    def __init__(self, temperature=0.1):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.filters = nn.Parameter(torch.randn(8, 1, 3, 3, generator=generator))
        self.temperature = temperature
        train = load_dataset("digits", "train")
        labels = torch.from_numpy(train.labels)
        with torch.no_grad():
            features = self.features(to_tensor(train.images))
            means = torch.stack([features[labels == k].mean(dim=0) for k in range(10)])
        self.weight = nn.Parameter(means)
        self.bias = nn.Parameter(-means.square().sum(dim=1) / 2)

    def features(self, x):
        maps = torch.nn.functional.conv2d(x, self.filters, padding=1).relu()
        return torch.nn.functional.avg_pool2d(maps, 2).flatten(1) / 10

    def forward(self, x):
        return (self.features(x) @ self.weight.T + self.bias) / self.temperature


class Broken(Net):
    def __init__(self, how):
        super().__init__()
        self.how = how
        self.calls = 0

    def forward(self, x):
        logits = super().forward(x)
        ink = x.flatten(1).mean(dim=1, keepdim=True)
        self.calls += 1
        if self.how == "some-nan":
            return torch.where(ink > 0.36, torch.nan, logits)
        if self.how == "some-inf":
            return torch.where(ink > 0.36, torch.inf, logits)
        if self.how == "wide":
            return torch.cat([logits, logits], dim=1)
        if self.how == "narrow":
            return logits[:, :7]
        if self.how == "probabilities":
            return logits.softmax(dim=1)
        if self.how == "third" and self.calls % 14 == 0:  # after the passes of the look-over
            raise RuntimeError("the third batch is one too many\\nwith a second line")
        return logits


class Density(nn.Module):
    """A Gaussian, and no classes."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.full((1, 8, 8), 0.3))

    def log_density(self, x):
        return -(x - self.mean).square().flatten(1).sum(dim=1)


def make(temperature=0.1):
    return Net(temperature)


def broken(how):
    return Broken(how)


def density():
    return Density()


def unseeded():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def colour():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 10))
'''


@pytest.fixture
def model_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """``model.py`` in an empty folder that is the current one."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "model.py"
    path.write_text(MODELS)
    return path


@pytest.fixture
def cli(
    model_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Run ``bench ARGUMENTS`` in this process; return exit status, stdout and stderr."""

    def run(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["bench", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            command_line.main()
        streams = capsys.readouterr()
        assert isinstance(exit_.value.code, int)
        return exit_.value.code, streams.out, streams.err

    return run


@pytest.fixture
def spawn(model_file: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start ``bench ARGUMENTS`` as a process of its own, ended with the test."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: object, cwd: Path | None = None) -> subprocess.Popen[str]:
        code = "from bench.cli import main; main()"
        process = subprocess.Popen(
            [sys.executable, "-c", code, *map(str, arguments)],
            cwd=cwd or model_file.parent,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # A shell's background job ignores Ctrl-C, and so would its children.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()
