"""How models, data sets and options are written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.errors import InputError, UnknownName
from bench.planning import _typed
from bench.request import Request
from bench.specs import Spec, check_options, parse_settings, parse_spec, parse_value

SCHEMES = ("ckpt", "py")


def parse(text: str) -> Spec:
    return parse_spec(text, SCHEMES, "model")


def test_the_three_forms() -> None:
    assert parse("jem") == Spec("", "jem")
    assert parse("ckpt:wrn-28-10@a/b.pt") == Spec("ckpt", "wrn-28-10@a/b.pt")
    assert parse("py:pkg.mod:make?depth=3&name=x&a-b=.5") == Spec(
        "py", "pkg.mod:make", {"depth": 3, "name": "x", "a_b": 0.5}
    )


@pytest.mark.parametrize("text", ["", "?a=1", "py:", "jem?a", "jem?=1"])
def test_incomplete_specs_are_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"names no model|has no value"):
        parse(text)


def test_an_unknown_scheme_suggests_the_nearest() -> None:
    with pytest.raises(UnknownName, match="'ckp' is not a model scheme; did you mean 'ckpt'"):
        parse("ckp:net@f.pt")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("-2.5e-3", -0.0025),
        (".5", 0.5),
        ("true", True),
        ("[1, 2]", [1, 2]),
        ('"3"', "3"),
        (".49,.48,.45", (0.49, 0.48, 0.45)),
        ("margin", "margin"),
        ("log-density,max-softmax", "log-density,max-softmax"),
        ("", ""),
    ],
)
def test_values_are_toml_numbers_or_text(text: str, value: Any) -> None:
    parsed = parse_value(text)
    assert parsed == value
    assert type(parsed) is type(value)


def test_settings_are_grouped_by_name() -> None:
    texts = ["pgd-linf.steps=100", "pgd-linf.step-size=0.01", "ood.n=5", "a.b.c=1"]
    assert parse_settings(texts) == {
        "pgd-linf": {"steps": 100, "step_size": 0.01},
        "ood": {"n": 5},
        "a.b": {"c": 1},
    }


@pytest.mark.parametrize("text", ["steps=3", "pgd-linf.steps", ".steps=3", "pgd-linf.=3", ""])
def test_settings_of_another_form_are_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"is not NAME\.OPTION=VALUE, e\.g\. pgd-linf"):
        parse_settings([text])


def test_unknown_options_suggest_the_nearest() -> None:
    with pytest.raises(UnknownName, match="'step' is not an option of attack 'pgd'; did you mean"):
        check_options("attack", "pgd", ["step"], ["steps", "eps"])


@pytest.mark.parametrize(
    ("value", "default", "typed"),
    [
        ("a", ("x",), ("a",)),
        ("a, b", ("x",), ("a", "b")),
        (0.1, (), (0.1,)),
        ([1, 2], (), (1, 2)),
        (3, 5, 3),
        (0.5, 0.1, 0.5),
    ],
)
def test_options_of_a_suite_take_the_type_of_their_default(
    value: Any, default: Any, typed: Any
) -> None:
    assert _typed(value, default, "ood.n") == typed


@pytest.mark.parametrize("value", ["many", 1.5, True])
def test_a_count_must_be_whole(value: Any) -> None:
    with pytest.raises(InputError, match=r"--set ood.n=.*expected a whole number"):
        _typed(value, 500, "ood.n")


@pytest.mark.parametrize(
    "wrong",
    [
        {"models": ()},
        {"suites": ()},
        {"models": ("jem", "jem")},
        {"refine_steps": ()},
        {"refine_steps": (0, -1)},
        {"limit": 0},
        {"seed": -1},
        {"protocol": "papers"},
    ],
)
def test_impossible_requests_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        Request(**wrong)


def test_one_request_has_one_name_wherever_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def request(where: str, prefix: str) -> Request:
        monkeypatch.chdir(tmp_path / where)
        return Request(
            models=(f"py:{prefix}m.py:make?t=1", f"ckpt:net@{prefix}w.pt", "jem"),
            dataset=f"npz:{prefix}d.npz?x=a",
            data_root=f"{prefix}data",
            settings={"ood": {"sets": [f"npz:{prefix}o.npz", "constant"]}},
        )

    def of_weights(prefix: str) -> str:
        return Request(models=("jem",), checkpoint=f"{prefix}c.pt").canonical()

    (tmp_path / "deep" / "er").mkdir(parents=True)
    texts = set()
    for where, prefix in ((".", ""), ("deep", "../"), ("deep/er", "../../")):
        asked = request(where, prefix)
        texts.add((asked.canonical(), asked.run_id, of_weights(prefix)))
    assert len(texts) == 1
    assert request("deep", "").run_id not in {run_id for _, run_id, _ in texts}
