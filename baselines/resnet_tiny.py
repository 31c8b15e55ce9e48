"""A small residual network without batch norm, for images of 8 x 8 to 32 x 32 pixels.

The shape of the papers' network (WRN-28-10 as in JEM, arXiv 1912.03263, section 4, and its code)
at a laptop's size: pre-activation residual blocks (He et al. 2016, arXiv 1603.05027), biases in
every convolution, LeakyReLU(0.2). No batch norm: it would tie the energy of an image to the other
images of its batch.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import leaky_relu

from bench.errors import InputError
from bench.registry import NETWORKS

SLOPE = 0.2


class Block(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut; the first may halve the resolution."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride)

    def forward(self, z: Tensor) -> Tensor:
        """Return the block's output, ``(B, outputs, H / stride, W / stride)``."""
        out: Tensor = leaky_relu(z, SLOPE)
        out = self.shortcut(z) + self.conv2(leaky_relu(self.conv1(out), SLOPE))
        return out


class ResNetTiny(nn.Module):
    """One stage of blocks for each width; every stage after the first halves the resolution."""

    def __init__(
        self, shape: tuple[int, int, int], num_classes: int, widths: tuple[int, ...]
    ) -> None:
        super().__init__()
        self.stem = nn.Conv2d(shape[0], widths[0], 3, padding=1)
        inputs = (widths[0], *widths[:-1])
        self.blocks = nn.Sequential(
            *(
                Block(a, b, 1 if i == 0 else 2)
                for i, (a, b) in enumerate(zip(inputs, widths, strict=True))
            )
        )
        self.head = nn.Linear(widths[-1], num_classes)

    def features(self, z: Tensor) -> Tensor:
        """Return the averaged last maps, ``(B, widths[-1])``; the head is linear in them."""
        maps: Tensor = leaky_relu(self.blocks(self.stem(z)), SLOPE)
        return maps.mean(dim=(2, 3))

    def forward(self, z: Tensor) -> Tensor:
        """Return logits ``(B, num_classes)`` of images ``z`` in [-1, 1]."""
        logits: Tensor = self.head(self.features(z))
        return logits


@NETWORKS.register("resnet-tiny", default_up_to=32)
def resnet_tiny(
    shape: tuple[int, int, int], num_classes: int, *, widths: tuple[int, ...] = (16, 32, 64)
) -> nn.Module:
    """Build a residual network without batch norm; 77,418 weights for 1 x 8 x 8 and ten classes.

    Args:
        shape: ``(C, H, W)`` of an image.
        num_classes: K.
        widths: Channels of each stage; the resolution is halved between stages.

    Raises:
        InputError: The images are too small to be halved that often.
    """
    halvings = len(widths) - 1
    if not widths or min(widths) < 1:
        raise InputError(f"widths={widths}: expected one positive channel count a stage")
    if min(shape[1:]) < 2**halvings:
        raise InputError(
            f"images of {shape[1]} x {shape[2]} pixels cannot be halved {halvings} times; "
            f"give resnet-tiny at most {min(shape[1:]).bit_length()} widths"
        )
    return ResNetTiny(shape, num_classes, tuple(widths))
