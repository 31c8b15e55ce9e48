"""What a model is, as a digest: equal digests must mean equal answers.

It covers weights and buffers, the structure as printed, every attribute of every sub-module
(private ones, tensors, containers, other objects), hooks, functions with what they closed over,
and the source of all classes and of the factory. What cannot be told apart from outside (an object
of C code, say) counts by its type only, so the runner also compares answers (`answers_digest`).
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import re
from collections.abc import Iterable, Mapping
from types import CodeType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bench.digest import sha256_text, source_digest
from bench.weights import weights_sha256

# What `nn.Module` keeps for itself and is covered by the weights or means nothing for an answer.
OWN = frozenset(vars(nn.Module())) - {"_forward_hooks", "_forward_pre_hooks", "_backward_hooks"}
DEPTH = 12  # containers in containers beyond this count by their type


def model_digest(model: nn.Module, origin: Iterable[Any] = (), asked: str = "") -> str:
    """Return the digest of a model.

    Args:
        model: The model.
        origin: Functions that built it; their source and what they hold count too.
        asked: With what options, as text.
    """
    origin = list(origin)
    # A repr can hold addresses, which differ from process to process.
    structure = re.sub(r" at 0x[0-9a-f]+", "", repr(model))
    parts = [asked, weights_sha256(model), structure]
    for name, module in model.named_modules():
        held = {k: v for k, v in vars(module).items() if k not in OWN}
        parts.append(f"{name}: {type(module).__qualname__} {describe(held)}")
    parts += [f"{name}: {describe(value)}" for name, value in model.named_buffers()]
    parts += [describe(thing) for thing in origin]
    classes = {type(m) for m in model.modules() if type(m).__module__.split(".")[0] != "torch"}
    ordered = sorted(classes, key=lambda c: c.__qualname__)
    parts += [describe(kind) for kind in ordered]
    return sha256_text(*parts, source_digest([*ordered, *map(_function, origin)]))


def _function(thing: Any) -> Any:
    """Return the function behind a partial application."""
    return _function(thing.func) if isinstance(thing, functools.partial) else thing


def answers_digest(logits: Tensor) -> str:
    """Return a digest of some logits of a model, to four digits: machines round differently.

    It tells apart what no look from outside can, e.g. two states of an object of C code.
    """
    return sha256_text(*(f"{value:.3e}" for value in logits.double().cpu().flatten().tolist()))


def describe(value: Any, depth: int = 0, seen: frozenset[int] = frozenset()) -> str:
    """Return a text that differs where two values differ in what they hold."""
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return f"{type(value).__name__}:{value!r}"
    if depth > DEPTH or id(value) in seen:
        return type(value).__qualname__
    inner = functools.partial(describe, depth=depth + 1, seen=seen | {id(value)})
    if isinstance(value, Tensor | np.ndarray):
        return _array(value)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{inner(k)}={inner(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}[{','.join(map(inner, value))}]"
    if isinstance(value, set | frozenset):
        return "set[" + ",".join(sorted(map(inner, value))) + "]"
    if isinstance(value, functools.partial):
        return f"partial[{inner(value.func)},{inner(value.args)},{inner(value.keywords)}]"
    if isinstance(value, MethodType):
        return f"method[{inner(value.__func__)},{inner(value.__self__)}]"
    if isinstance(value, FunctionType):
        cells = [_cell(cell) for cell in value.__closure__ or ()]
        held = (value.__defaults__, value.__kwdefaults__, cells)
        return f"function[{value.__qualname__},{_code(value.__code__)},{inner(held)}]"
    if inspect.isclass(value):
        return f"class[{value.__qualname__},{_methods(value)}]"
    if isinstance(value, nn.Module):
        return f"module[{model_digest(value)}]"
    if isinstance(value, torch.dtype | torch.device):
        return str(value)
    slots = {s: getattr(value, s, None) for s in getattr(type(value), "__slots__", ())}
    return f"{type(value).__qualname__}({inner({**slots, **getattr(value, '__dict__', {})})})"


def _array(value: Any) -> str:
    array = (
        value.detach().cpu()
        if isinstance(value, Tensor)
        else torch.from_numpy(np.ascontiguousarray(value))
    )
    data = array.contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return f"array[{array.dtype},{tuple(array.shape)},{hashlib.sha256(data).hexdigest()}]"


def _cell(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a name that is bound later
        return None


def _code(code: CodeType) -> str:
    consts = [_code(c) if isinstance(c, CodeType) else describe(c) for c in code.co_consts]
    return sha256_text(code.co_code.hex(), *code.co_names, *consts)


def _methods(kind: type) -> str:
    """Return the code of a class's own methods: a class typed into a notebook has no file."""
    return sha256_text(
        *(
            f"{name}={_code(member.__code__)}"
            for name, member in sorted(vars(kind).items())
            if isinstance(member, FunctionType)
        )
    )
