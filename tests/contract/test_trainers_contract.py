"""What every registered trainer must keep to."""

from __future__ import annotations

import dataclasses
import inspect
import re

import pytest

from bench.registry import MODELS, TRAINERS

NAMES = list(TRAINERS)


@pytest.mark.parametrize("name", NAMES)
def test_options_have_defaults_and_are_documented(name: str) -> None:
    trainer = TRAINERS[name]
    assert isinstance(trainer, type)
    assert dataclasses.is_dataclass(trainer)
    made = trainer()
    text = "\n".join(inspect.getdoc(base) or "" for base in trainer.__mro__ if base is not object)
    for option in dataclasses.fields(trainer):
        documented = re.search(rf"^\s+{option.name}: \S", text, re.M)
        assert documented, f"{name} does not say what '{option.name}' is"
        assert getattr(made, option.name) is not None
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.epochs = 3  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", NAMES)
def test_has_the_option_that_epochs_sets(name: str) -> None:
    assert TRAINERS[name](epochs=2).epochs == 2


@pytest.mark.parametrize("name", NAMES)
def test_some_model_names_it(name: str) -> None:
    assert name in {entry.facts.get("trainer") for entry in MODELS.entries()}
