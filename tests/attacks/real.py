"""Real images and published checkpoints for tests; a test skips where they are not.

They are looked for in the folder named by the environment variable ``BENCH_TEST_DATA``, else in
``shared`` beside the repository: ``data/cifar10_test.npz`` and ``checkpoints/``. Whose they are,
their licences and how each was checked stands in ``data/README.md`` there.

    from tests.attacks.real import cifar, network

    x, y = cifar(64)
    net = network("resnet2b")
"""

from __future__ import annotations

import io
import os
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import pad, relu

from bench.wrapping import wrap

_ROOT = Path(__file__).resolve().parents[2].parent / "shared"

# How each set normalises: mean and std a channel.
_AUTO_LIRPA = ((0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616))
_SDP = ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
_OVAL = ((0.485, 0.456, 0.406), (0.225, 0.225, 0.225))
_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def place(name: str) -> Path:
    """Return where a file of that name lies, or skip the test."""
    path = Path(os.environ.get("BENCH_TEST_DATA", _ROOT)) / name
    if not path.exists():
        pytest.skip(f"{path} is not here; set BENCH_TEST_DATA to the folder that has {name}")
    return path


@lru_cache(maxsize=4)
def cifar(count: int = 10_000) -> tuple[Tensor, Tensor]:
    """Return the first test images of CIFAR-10, ``(count, 3, 32, 32)`` in [0, 1], and labels."""
    return _images("data/cifar10_test.npz", count)


@lru_cache(maxsize=4)
def mnist(count: int = 10_000) -> tuple[Tensor, Tensor]:
    """Return the first test images of MNIST, ``(count, 1, 28, 28)`` in [0, 1], and labels."""
    return _images("data/mnist_test.npz", count)


def _images(name: str, count: int) -> tuple[Tensor, Tensor]:
    with np.load(place(name), allow_pickle=False) as z:
        if "webp" in z:
            data, cut = z["webp"].tobytes(), z["offset"]  # one lossless WebP after the other
            pixels = np.stack([_decoded(data[cut[i] : cut[i + 1]]) for i in range(count)])
        else:
            pixels = z["x"][:count]
        labels = torch.from_numpy(z["y"][:count].astype(np.int64))
    images = torch.from_numpy(np.ascontiguousarray(pixels)).float() / 255
    return (images.movedim(3, 1).contiguous() if images.ndim == 4 else images[:, None]), labels


def _decoded(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


class _Residual(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut: a projection, or stride and zero channels."""

    def __init__(self, wide: tuple[int, int], stride: int, norm: bool) -> None:
        super().__init__()
        few, many = wide
        self.conv1 = nn.Conv2d(few, many, 3, stride, 1, bias=not norm)
        self.bn1 = nn.BatchNorm2d(many) if norm else nn.Identity()
        self.conv2 = nn.Conv2d(many, many, 3, 1, 1, bias=not norm)
        self.bn2 = nn.BatchNorm2d(many) if norm else nn.Identity()
        self.shortcut = nn.Sequential()
        if few != many and not norm:
            self.shortcut.append(nn.Conv2d(few, many, 1, stride))
        self.stride, self.extra = stride, (many - few) // 2 if norm else 0

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(relu(self.bn1(self.conv1(x)))))
        if self.extra:  # option A of He et al. (2016)
            x = pad(x[:, :, :: self.stride, :: self.stride], [0, 0, 0, 0] + [self.extra] * 2)
        return relu(out + self.shortcut(x))


class _ResNet2B(nn.Module):
    """Two residual blocks without batch norm, and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, 2, 1)
        self.layer1 = nn.Sequential(_Residual((8, 16), 2, False), _Residual((16, 16), 1, False))
        self.linear1, self.linear2 = nn.Linear(1024, 100), nn.Linear(100, 10)

    def forward(self, x: Tensor) -> Tensor:
        out = self.layer1(relu(self.conv1(x))).flatten(1)
        logits: Tensor = self.linear2(relu(self.linear1(out)))
        return logits


class _ResNet(nn.Module):
    """ResNet for CIFAR of depth 6 n + 2 with parameter-free shortcuts (He et al. 2016)."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        stages = []
        for few, many in ((16, 16), (16, 32), (32, 64)):
            blocks = [_Residual((few, many), many // few, True)]
            blocks += [_Residual((many, many), 1, True) for _ in range((depth - 2) // 6 - 1)]
            stages.append(nn.Sequential(*blocks))
        self.layer1, self.layer2, self.layer3 = stages
        self.linear = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        out = relu(self.bn1(self.conv1(x)))
        out = self.layer3(self.layer2(self.layer1(out)))
        logits: Tensor = self.linear(out.mean(dim=(2, 3)))
        return logits


def _small(channels: int, padding: int, flat: int) -> nn.Module:
    """Return two strided convolutions and two linear layers, the usual net of verifiers."""
    return nn.Sequential(
        nn.Conv2d(channels, 16, 4, 2, padding),
        nn.ReLU(),
        nn.Conv2d(16, 32, 4, 2, padding),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(flat, 100),
        nn.ReLU(),
        nn.Linear(100, 10),
    )


# Name: file, network, normalisation. The clean accuracies are those of data/README.md.
_NETWORKS = {
    "resnet2b": ("cifar_resnet2b_adv2.pth", _ResNet2B, _AUTO_LIRPA),
    "resnet20": ("resnet20-12fca82f.th", lambda: _ResNet(20), _IMAGENET),
    "resnet32": ("resnet32-d509ac18.th", lambda: _ResNet(32), _IMAGENET),
    "resnet56": ("resnet56-4bfd9763.th", lambda: _ResNet(56), _IMAGENET),
    "cnn-a-adv": ("cifar_cnn_a_adv.model", lambda: _small(3, 1, 2048), _SDP),
    "cnn-a-mix": ("cifar_cnn_a_mix.model", lambda: _small(3, 1, 2048), _SDP),
    "conv-small-pgd": ("cifar_conv_small_pgd.pth", lambda: _small(3, 0, 1152), _SDP),
    "wide-oval": ("cifar_wide_oval.pth", lambda: _small(3, 1, 2048), _OVAL),
    "small-8px": ("cifar_small_8px_certified.pth", lambda: _small(3, 1, 2048), _OVAL),
    "mnist-cnn-a-adv": ("mnist_cnn_a_adv.model", lambda: _small(1, 1, 1568), None),
    "mnist-conv-small": ("mnist_conv_small_nat.pth", lambda: _small(1, 0, 800), None),
    "mnist-small-0.3": ("mnist_small_0_3_certified.pth", lambda: _small(1, 1, 1568), None),
    "mnist-wong-kolter": ("mnist_wong_kolter_0_1.pth", lambda: _small(1, 1, 1568), None),
    "fashion-wong-kolter": ("fashion_mnist_wong_kolter.pth", lambda: _small(1, 1, 1568), None),
}
NETWORKS = tuple(_NETWORKS)


def network(name: str) -> nn.Module:
    """Return a published network in eval mode; its normalisation is inside."""
    file, build, scale = _NETWORKS[name]
    state = torch.load(place(f"checkpoints/{file}"), map_location="cpu", weights_only=True)
    state = state.get("state_dict", state) if isinstance(state, dict) else state
    state = state[0] if isinstance(state, list) else state  # a cascade: its first net
    net = build()
    net.load_state_dict({k.removeprefix("module."): v for k, v in state.items()})
    return (net if scale is None else wrap(net, *scale)).eval()
