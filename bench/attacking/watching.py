"""Whether a model is afterwards what it was: flags, buffers, weights and their gradients."""

from __future__ import annotations

from torch import Tensor, nn


class Watch:
    """A copy of a model's state, to be compared with what the model is later.

    `bench.preserving` puts the state back; this looks whether that worked, and at the weights too.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._flags = _flags(model)
        self._tensors = {k: None if t is None else t.clone() for k, t in _tensors(model).items()}

    def changes(self) -> int:
        """Return how many flags and tensors differ from what they were."""
        flags, tensors = _flags(self._model), _tensors(self._model)
        if flags.keys() != self._flags.keys() or tensors.keys() != self._tensors.keys():
            return max(1, len(tensors.keys() ^ self._tensors.keys()))
        other_flags = sum(flags[name] != was for name, was in self._flags.items())
        return other_flags + sum(not _same(tensors[k], was) for k, was in self._tensors.items())


def _flags(model: nn.Module) -> dict[str, bool]:
    flags = {f"{name}.training": module.training for name, module in model.named_modules()}
    return flags | {
        f"{name}.requires_grad": p.requires_grad for name, p in model.named_parameters()
    }


def _tensors(model: nn.Module) -> dict[str, Tensor | None]:
    weights = dict(model.named_parameters())
    return {
        **{f"{name}.grad": weight.grad for name, weight in weights.items()},
        **{name: weight.detach() for name, weight in weights.items()},
        **dict(model.named_buffers()),
    }


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    if a.shape != b.shape:
        return False
    return bool(((a == b) | (a.isnan() & b.isnan())).all())  # NaN differs from itself
