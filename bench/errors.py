"""The family of errors that `bench` raises on purpose.

    BenchError
    ├── InputError        (also ValueError)    a value, file or option is not what it must be
    ├── UnknownName       (also KeyError)      nothing is registered under that name
    ├── CheckpointError                        a file of weights cannot be used
    ├── ModelError                             a model breaks its contract
    ├── Unsupported                            a model or data set cannot do it: an `n/a` row
    ├── MissingExtra      (also ImportError)   an optional package is not installed
    ├── StoreError                             results cannot be read or written
    └── Diverged                               a training left the finite numbers for good

Each message says what was asked, what was expected, and what to do next.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class BenchError(Exception):
    """Any error that `bench` raises on purpose."""


class InputError(BenchError, ValueError):
    """A value, a file or an option is not what it must be."""


class UnknownName(BenchError, KeyError):
    """Nothing is registered under that name; the message suggests the nearest ones."""

    def __init__(self, kind: str, name: str, known: Iterable[str], hint: str = "") -> None:
        self.kind, self.name, self.known, self.hint = kind, name, tuple(sorted(known)), hint
        super().__init__(str(self))

    def __reduce__(self) -> tuple[type, tuple[str, str, tuple[str, ...], str]]:
        return type(self), (self.kind, self.name, self.known, self.hint)

    def __str__(self) -> str:
        article = "an" if self.kind[0] in "aeiou" else "a"
        near = difflib.get_close_matches(self.name, self.known, n=3, cutoff=0.5)
        if near:
            guess = "did you mean " + " or ".join(f"'{n}'" for n in near) + "?"
        elif self.known:
            guess = "known: " + ", ".join(self.known)
        else:
            guess = "none is registered"
        hint = f" ({self.hint})" if self.hint else ""
        return f"'{self.name}' is not {article} {self.kind}; {guess}{hint}"


class CheckpointError(BenchError):
    """A file of weights cannot be used: it is missing, truncated, foreign or unsafe."""


class ModelError(BenchError):
    """A model breaks its contract: wrong shape, NaN, probabilities, or it raised."""


class Unsupported(BenchError):
    """A model or data set cannot do what is asked; the row reads `n/a` with this reason."""


class MissingExtra(BenchError, ImportError):
    """An optional package is not installed; the message names the command that installs it."""


class StoreError(BenchError):
    """Results cannot be read or written: a full disk, a read-only folder, a newer format."""


class Diverged(BenchError):
    """A training left the finite numbers and did not come back within its tries."""
