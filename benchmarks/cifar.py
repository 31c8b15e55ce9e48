"""Networks of published CIFAR-10 checkpoints, and images of an NPZ file, for the benchmark.

ResNet-20 is that of He et al. (2016), section 4.2, with parameter-free shortcuts, with the weights
of akamaster/pytorch_resnet_cifar10. ResNet-2B is a small adversarially trained network of
Verified-Intelligence/alpha-beta-CROWN. Normalisation is inside the returned models.
"""

from __future__ import annotations

import io
import itertools
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import pad, relu

import bench


class Residual(nn.Module):
    """Two 3 x 3 convolutions; with batch norm the shortcut has no weights, without it projects."""

    def __init__(self, few: int, many: int, stride: int, norm: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(few, many, 3, stride, 1, bias=not norm)
        self.bn1 = nn.BatchNorm2d(many) if norm else nn.Identity()
        self.conv2 = nn.Conv2d(many, many, 3, 1, 1, bias=not norm)
        self.bn2 = nn.BatchNorm2d(many) if norm else nn.Identity()
        project = [nn.Conv2d(few, many, 1, stride)] if few != many and not norm else []
        self.shortcut = nn.Sequential(*project)
        self.stride, self.extra = stride, (many - few) // 2 if norm else 0

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        out = self.bn2(self.conv2(relu(self.bn1(self.conv1(x)))))
        if self.extra:
            x = pad(x[:, :, :: self.stride, :: self.stride], [0, 0, 0, 0] + [self.extra] * 2)
        return relu(out + self.shortcut(x))


class ResNet20(nn.Module):
    """Three stages of three blocks, 16, 32 and 64 channels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        stages = []
        for few, many in ((16, 16), (16, 32), (32, 64)):
            blocks = [Residual(few, many, many // few, norm=True)]
            blocks += [Residual(many, many, 1, norm=True) for _ in range(2)]
            stages.append(nn.Sequential(*blocks))
        self.layer1, self.layer2, self.layer3 = stages
        self.linear = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of normalised images."""
        out = relu(self.bn1(self.conv1(x)))
        out = self.layer3(self.layer2(self.layer1(out)))
        logits: Tensor = self.linear(out.mean((2, 3)))
        return logits


class ResNet2B(nn.Module):
    """Two blocks without batch norm and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, 2, 1)
        self.layer1 = nn.Sequential(Residual(8, 16, 2, norm=False), Residual(16, 16, 1, norm=False))
        self.linear1, self.linear2 = nn.Linear(1024, 100), nn.Linear(100, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of normalised images."""
        out = self.layer1(relu(self.conv1(x))).flatten(1)
        logits: Tensor = self.linear2(relu(self.linear1(out)))
        return logits


_NETWORKS = {
    "resnet20": (ResNet20, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "resnet2b": (ResNet2B, (0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)),
}
NETWORKS = tuple(_NETWORKS)


def load_network(name: str, checkpoint: Path) -> nn.Module:
    """Return the network with the weights of the file, for images in [0, 1]."""
    kind, mean, std = _NETWORKS[name]
    weights = torch.load(checkpoint, map_location="cpu", weights_only=True)
    if "state_dict" in weights:
        weights = weights["state_dict"]
    net = kind()
    net.load_state_dict({k.removeprefix("module."): v for k, v in weights.items()})
    return bench.wrap(net.eval(), mean, std)


def load_images(file: Path, count: int) -> tuple[Tensor, Tensor]:
    """Return the first images ``(count, 3, 32, 32)`` in [0, 1] and labels of an NPZ file.

    The file has ``y`` and either ``x``, uint8 NHWC, or ``webp`` and ``offset``: lossless WebP, one
    image after the other.
    """
    with np.load(file, allow_pickle=False) as z:
        labels = torch.from_numpy(z["y"][:count].astype(np.int64))
        if "webp" in z:
            data, cut = z["webp"].tobytes(), z["offset"][: count + 1]
            pixels = np.stack([_decoded(data[a:b]) for a, b in itertools.pairwise(cut)])
        else:
            pixels = z["x"][:count]
    images = torch.from_numpy(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)))
    return images.float() / 255, labels


def _decoded(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
