"""Keyed noise: every draw belongs to (seed, task, image, draw) and to nothing else.

A counter-based generator in tensor operations: the n-th number of a stream is a hash of the
stream's key and n, so no state is carried, any subset of a batch can be drawn at any time, on
any device, and the numbers do not depend on batch size, order, shard or worker.

The hash is SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
OOPSLA 2014): output = mix(key + (n + 1) * GOLDEN). Normal draws are Box-Muller in float32.

    noise = bound(seed=0, task="pgd-linf", image_ids=ids)
    start = noise.at("restart", 2).uniform(3, 32, 32)      # (B, 3, 32, 32) in [0, 1)
    step = noise.at("sgld", k).normal(3, 32, 32)
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

_WORD = 1 << 64


def _signed(value: int) -> int:
    """Return the int64 with the same 64 bits."""
    value %= _WORD
    return value - _WORD if value >= _WORD // 2 else value


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_MIX_1 = _signed(0xBF58476D1CE4E5B9)
_MIX_2 = _signed(0x94D049BB133111EB)


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Shift right logically; torch's shift of int64 copies the sign bit."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    """Apply SplitMix64's output function to an int64 tensor, in place, and return it.

    One more tensor of that size is all it takes: fresh memory costs more than the arithmetic.
    """
    room = torch.empty_like(x)
    for bits, factor in ((30, _MIX_1), (27, _MIX_2), (31, None)):
        torch.bitwise_right_shift(x, bits, out=room)  # copies the sign bit: mask it
        x.bitwise_xor_(room.bitwise_and_((1 << (64 - bits)) - 1))
        if factor is not None:
            x.mul_(factor)
    return x


def _fold(key: int, *path: int | str) -> int:
    """Return a new 64-bit key for a named branch of ``key``."""
    digest = hashlib.blake2b(digest_size=8)
    digest.update(key.to_bytes(8, "little"))
    for part in path:
        # The type is part of the name: at(1) and at("1") are different branches.
        digest.update(f"{type(part).__name__}:{part};".encode())
    return int.from_bytes(digest.digest(), "little")


@dataclass(frozen=True)
class Noise:
    """Draws for the images of one batch; row i of every draw belongs to ``image_ids[i]``.

    Rows that share an image (the chains of a refinement, the samples of an expectation) differ by
    their number in ``lanes``.
    """

    key: int
    image_ids: Tensor
    lanes: Tensor

    def __len__(self) -> int:
        return len(self.image_ids)

    def at(self, *path: int | str) -> Noise:
        """Return the branch of that name; different names give independent draws.

        The same branch always gives the same numbers: name the restart, the step, the chain.
        """
        return replace(self, key=_fold(self.key, *path))

    def expand(self, count: int) -> Noise:
        """Return noise with ``count`` independent rows an image, in place of each row.

        It goes with ``x.repeat_interleave(count, dim=0)``. Row j of an image does not depend on
        ``count``: five samples are the first five of twenty.
        """
        lane = torch.arange(count, device=self.lanes.device).repeat(len(self))
        # 2**20 lanes fit before two nested expansions could meet.
        lanes = self.lanes.repeat_interleave(count) * (1 << 20) + lane
        return replace(self, image_ids=self.image_ids.repeat_interleave(count), lanes=lanes)

    def select(self, rows: Tensor) -> Noise:
        """Return the noise of some rows: a boolean mask or positions, as for indexing."""
        return replace(self, image_ids=self.image_ids[rows], lanes=self.lanes[rows])

    def _bits(self, count: int) -> Tensor:
        """Return ``count`` 64-bit words an image, ``(B, count)``."""
        ids = self.image_ids
        stream = _mix(_mix(ids * _GOLDEN + _signed(self.key)) + self.lanes * _MIX_1)
        steps = torch.arange(1, count + 1, device=ids.device, dtype=torch.int64) * _GOLDEN
        return _mix(stream[:, None] + steps)

    def uniform(self, *shape: int) -> Tensor:
        """Return float32 uniform on [0, 1), ``(B, *shape)``, from 24 bits each."""
        bits = _shift_right(self._bits(math.prod(shape)), 40)
        return bits.to(torch.float32).mul_(2.0**-24).reshape(-1, *shape)

    def normal(self, *shape: int) -> Tensor:
        """Return float32 standard normal draws, ``(B, *shape)`` (Box and Muller, 1958)."""
        count = math.prod(shape)
        bits = self._bits((count + 1) // 2)
        # The high half gives the radius, on (0, 1] so that the logarithm is finite; the low half
        # gives the angle. One word makes a pair.
        radius = (_shift_right(bits, 32).to(torch.float32) + 1.0) * 2.0**-32
        angle = (bits & 0xFFFFFFFF).to(torch.float32) * (2.0 * math.pi * 2.0**-32)
        radius = torch.sqrt(-2.0 * torch.log(radius.clamp(max=1.0)))
        pair = torch.cat([radius * torch.cos(angle), radius * torch.sin(angle)], dim=1)
        return pair[:, :count].reshape(-1, *shape)

    def integers(self, high: int, *shape: int) -> Tensor:
        """Return int64 uniform on 0 .. high - 1, ``(B, *shape)``."""
        bits = _shift_right(self._bits(math.prod(shape)), 1)
        return (bits % high).reshape(-1, *shape)


def bound(
    seed: int,
    task: str,
    image_ids: Tensor | Sequence[int],
    device: torch.device | str | None = None,
) -> Noise:
    """Return the noise of these images under (seed, task).

    Args:
        seed: The run's seed.
        task: What the noise is for, e.g. ``"robustness/pgd-linf"``.
        image_ids: ``(B,)`` numbers of the images in their data set.
        device: Where the draws are made; by default where ``image_ids`` is.
    """
    ids = torch.as_tensor(image_ids, dtype=torch.int64, device=device)
    return Noise(_fold(seed % _WORD, task), ids, torch.zeros_like(ids))
