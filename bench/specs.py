"""How a model, a data set and an option are written on the command line.

    jem                               a registered name
    ckpt:wrn-28-10@file.pt            scheme:rest
    ckpt:resnet20@f.pt?mean=.5&std=.2 options after '?', joined by '&'
    pgd-linf.steps=100                NAME.OPTION=VALUE, for --set

Values are TOML; what is not TOML is a comma list of numbers, or the text itself.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

from bench.errors import InputError, UnknownName


@dataclass(frozen=True)
class Spec:
    """A parsed ``scheme:rest?key=value``; ``scheme`` is empty for a registered name."""

    scheme: str
    rest: str
    options: Mapping[str, Any] = field(default_factory=dict)


def parse_spec(text: str, schemes: Collection[str], kind: str) -> Spec:
    """Return the parts of ``text``.

    Args:
        text: What the user wrote.
        schemes: The schemes this kind of thing knows.
        kind: ``model`` or ``data set``, for the message.

    Raises:
        InputError: The text is empty or an option has no value.
        UnknownName: The scheme is none of ``schemes``.
    """
    head, _, tail = text.strip().partition("?")
    options = {}
    for part in filter(None, tail.split("&")):
        key, equals, value = part.partition("=")
        if not equals or not key:
            raise InputError(f"option '{part}' of {kind} '{text}' has no value; write key=value")
        options[key.replace("-", "_")] = parse_value(value)
    scheme, colon, rest = head.partition(":")
    if not colon:
        scheme, rest = "", head
    elif scheme not in schemes:
        raise UnknownName(f"{kind} scheme", scheme, schemes)
    if not rest:
        raise InputError(f"'{text}' names no {kind}; expected a name or SCHEME:REST")
    return Spec(scheme, rest, options)


def parse_value(text: str) -> Any:
    """Return the TOML value of ``text``, a tuple of numbers, or the text itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        pass
    parts = text.split(",")
    try:
        numbers = tuple(float(part) for part in parts)
    except ValueError:
        return text
    return numbers if len(parts) > 1 else numbers[0]


def parse_settings(assignments: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return options by name from ``NAME.OPTION=VALUE`` texts.

    Raises:
        InputError: A text is not of that form.
    """
    settings: dict[str, dict[str, Any]] = {}
    for text in assignments:
        target, equals, value = text.partition("=")
        name, dot, option = target.strip().rpartition(".")
        if not equals or not dot or not name or not option:
            raise InputError(
                f"'--set {text}' is not NAME.OPTION=VALUE, e.g. pgd-linf.steps=100 "
                "('bench list' shows the names and their options)"
            )
        settings.setdefault(name, {})[option.replace("-", "_")] = parse_value(value.strip())
    return settings


def check_options(kind: str, name: str, given: Collection[str], known: Iterable[str]) -> None:
    """Raise `UnknownName` for the first option that ``name`` does not have."""
    for option in given:
        if option not in set(known):
            raise UnknownName(f"option of {kind} '{name}'", option, known)


_TYPES: Sequence[tuple[type, type, str]] = (
    (bool, bool, "true or false"),  # before int, since a bool is an int too
    (int, Integral, "a whole number"),
    (float, Real, "a number"),
    (str, str, "text"),
)


def wrong_type(value: object, default: object) -> str:
    """Say what an option must be, in words, if ``value`` is not of its default's type.

    Of other types than numbers, texts, true and false nothing is said. NaN is no number.
    """
    for kind, takes, words in _TYPES:
        if isinstance(default, kind):
            other = isinstance(value, bool) and kind is not bool
            nan = isinstance(value, float) and math.isnan(value)
            return words if other or nan or not isinstance(value, takes) else ""
    return ""
