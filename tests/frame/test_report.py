"""Tables from hand-made records: committed texts, and what must hold for any records."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.errors import UnknownName
from bench.records import Record
from bench.report import render
from bench.report.checks import checks_lines
from bench.types import Status

GOLDEN = Path(__file__).parent / "golden"
SUFFIX = {"table": "txt", "markdown": "md", "csv": "csv", "latex": "tex"}
ODD = "my_net%&{x}|$y"  # what LaTeX and Markdown would take for something else


def record(**changes: Any) -> Record:
    fields: dict[str, Any] = {
        "run": "hand-made",
        "model": "jem",
        "label": "jem",
        "variant": {"refine_steps": 0},
        "network": "resnet-tiny",
        "weights_sha256": "0" * 64,
        "dataset": "digits",
        "suite": "accuracy",
        "suite_version": 1,
        "protocol": "default",
        "task": "accuracy",
        "metric": "accuracy",
        "value": 0.5,
        "level": 0.95,
        "interval": "wilson",
        "n": 500,
        "seed": 0,
        "seconds": 1.0,
    }
    return Record(**{**fields, **changes})


def of_model(label: str, **changes: Any) -> Record:
    return record(model=label, label=label, **changes)


def accuracies() -> Iterator[Record]:
    yield of_model("jem", value=0.952, low=0.93, high=0.968)
    yield of_model("jem", metric="nll", value=0.25, low=0.2, high=0.31)
    yield of_model(ODD, value=0.97, low=0.951, high=0.982)
    yield of_model(ODD, metric="nll", value=None, status=Status.FAILED, note="100% of it_failed")
    no = {"value": None, "status": Status.NOT_APPLICABLE, "note": "it has no logits & no classes"}
    yield of_model("density", **no)
    yield of_model("density", metric="nll", **no)
    yield of_model("jem", value=0.9, low=0.7, high=0.97, n=20, settings={"limit": 20})


def detections() -> Iterator[Record]:
    ood = {"suite": "ood", "metric": "auroc", "interval": "delong-logit"}
    for label, score, base in (("jem", "log-density", 0.9), ("(no model)", "border-ink", 0.6)):
        for number, name in enumerate(("interp", "letters")):
            settings: dict[str, Any] = {"ood_dataset": name, "ood_group": "near", "score": score}
            value = base + number / 20
            yield of_model(
                label,
                **ood,
                task=f"ood/{name}",
                value=value,
                low=value - 0.02,
                high=value + 0.01,
                n_ood=100,
                settings=settings,
                details={"separated_by": {"border-ink": 0.97}} if name == "letters" else {},
                note="19 letters" if name == "letters" else None,
            )
        settings = {"ood_dataset": "interp+letters", "ood_group": "near", "score": score}
        settings |= {"mean_of": ["interp", "letters"]}
        yield of_model(label, **ood, task="ood/near", value=base + 0.025, settings=settings)


def attacks() -> Iterator[Record]:
    for eps, value in ((0.0, 0.95), (0.025, 0.8), (0.1, 0.25)):
        settings = {"attack": "pgd-linf", "norm": "linf", "eps": eps, "steps": 20}
        common = {"suite": "robustness", "task": "robustness/linf", "metric": "robust_accuracy"}
        checks = {"passed": ["8 zero gradient"], "failed": [], "n/a": ["6 transfer"]}
        yield of_model(
            "jem",
            **common,
            value=value,
            low=value - 0.03,
            high=value + 0.03,
            settings=settings,
            details={"checks": checks},
        )


def check(name: str, verdict: str, value: float | None, **more: Any) -> dict[str, Any]:
    defaults = {"passes": "at most 5% of images", "percent": True, "note": "", "numbers": {}}
    return {"name": name, "verdict": verdict, "value": value, **defaults, **more}


def checked() -> Iterator[Record]:
    settings = {"attack": "pgd-linf", "norm": "linf", "steps": 20}
    common = {"suite": "robustness", "task": "robustness/linf", "metric": "masking_checks"}
    static = "no refinement, so no static network behind it"
    passed = [
        check("6 transfer", "n/a", None, note=static),
        check("8 zero gradient", "pass", 0.0),
        check("11 model unchanged", "pass", 0.0, percent=False, passes="no weight_or_flag"),
    ]
    failed = [
        check("6 transfer", "n/a", None, note=static),
        check("8 zero gradient", "fail", 0.984, note="the loss is saturated"),
        check("11 model unchanged", "fail", 2.0, percent=False, passes="no weight_or_flag"),
    ]
    for label, value, checks, note in (
        ("jem", 0.0, passed, None),
        (ODD, 2.0, failed, "8 zero gradient: the loss is saturated; 11 model unchanged: it is not"),
    ):
        yield of_model(
            label,
            **common,
            value=value,
            n=64,
            settings=settings,
            details={"checks": checks},
            note=note,
        )
    no = {"value": None, "status": Status.NOT_APPLICABLE, "note": "it has no logits & no classes"}
    yield of_model("density", **common, **no, settings=settings)


def everything() -> list[Record]:
    return [*accuracies(), *detections(), *attacks(), *checked()]


@pytest.mark.parametrize("format_", SUFFIX)
def test_the_texts_are_those_committed(format_: str) -> None:
    """After a change that is meant, write them anew with BENCH_GOLDEN=write and read the diff."""
    path = GOLDEN / f"report.{SUFFIX[format_]}"
    text = render(everything(), format_, width=100)
    if os.environ.get("BENCH_GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_wide_table_is_folded_and_nothing_is_cut_off(width: int) -> None:
    names = [f"metric-number-{i}" for i in range(9)]
    records = [of_model("jem", metric=name, value=i / 10) for i, name in enumerate(names)]
    text = render(records, "table", width=width)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    for i, name in enumerate(names):
        assert text.count(name) == 1
        assert f"{i / 10:.3f}" in text
    headings = [line for line in lines if "model" in line]
    assert len(headings) > 1
    assert sum(line.split()[:1] == ["jem"] for line in lines) == len(headings)


def test_what_fits_is_not_folded() -> None:
    records = [of_model("jem", metric=f"m{i}") for i in range(5)]
    text = render(records, "table", width=100)
    assert sum("model" in line for line in text.splitlines()) == 1


def rows_of(text: str) -> list[str]:
    return [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")][2:]


def test_the_best_stand_first_and_what_has_no_number_last() -> None:
    values = {"b": 0.9, "none": None, "a": 0.95, "tied": 0.9}
    up = [of_model(label, metric="accuracy", value=v) for label, v in values.items()]
    assert rows_of(render(up, "markdown")) == ["a", "b", "tied", "none"]
    down = [of_model(label, metric="nll", value=v) for label, v in values.items()]
    assert rows_of(render(down, "markdown")) == ["b", "tied", "a", "none"]


def test_equal_reasons_share_a_mark_and_others_get_their_own() -> None:
    text = render(list(accuracies()), "markdown")
    assert text.count("n/a [2]") == 2
    assert text.count("[2] it has no logits & no classes") == 1
    assert text.count("failed [1]") == 1
    assert text.count("[1] 100% of it_failed") == 1


def test_one_near_set_keeps_its_own_number_beside_the_mean() -> None:
    single, _, other, *_ = detections()
    settings = {**other.settings, "ood_dataset": "interp", "mean_of": ["interp"]}
    mean = record(**{**vars(other), "settings": settings, "value": 0.111})
    text = render([single, mean], "markdown")
    line = next(line for line in text.splitlines() if line.startswith("| jem"))
    cells = [cell.strip() for cell in line.split("|")[1:-1]]
    assert cells[2:] == ["11.1", "90.0 ±1.5"]


def test_fractions_are_percent_in_tables_and_fractions_elsewhere() -> None:
    records = [of_model("jem", value=0.952, low=0.93, high=0.968)]
    assert "95.2 ±1.9" in render(records, "markdown")
    assert json.loads(render(records, "json"))[0]["value"] == 0.952
    (row,) = csv.DictReader(io.StringIO(render(records, "csv")))
    assert (row["value"], row["low"], row["high"]) == ("0.952", "0.93", "0.968")


def test_csv_and_json_have_every_record() -> None:
    records = everything()
    rows = list(csv.DictReader(io.StringIO(render(records, "csv"))))
    assert [r["label"] for r in rows] == [r.label for r in records]
    assert [json.loads(r["settings"]) for r in rows] == [dict(r.settings) for r in records]
    plain = json.loads(render(records, "json"))
    assert [r["value"] for r in plain] == [r.value for r in records]
    assert [r["value"] for r in rows] == ["" if r.value is None else str(r.value) for r in records]


def test_latex_escapes_what_is_special() -> None:
    text = render(everything(), "latex")
    assert "my\\_net\\%\\&\\{x\\}\\textbar{}\\$y" in text
    body = text.replace("\\\\", "").replace("\\&", "").replace("\\%", "").replace("\\_", "")
    rows = [line for line in body.splitlines() if line.startswith("jem &")]
    assert rows
    assert "%" not in body
    assert "_" not in body.replace("\\toprule", "")
    for opening, closing in (("begin", "end"), ("toprule", "bottomrule")):
        assert text.count(f"\\{opening}") == text.count(f"\\{closing}")
    assert body.count("{") - body.count("\\{") == body.count("}") - body.count("\\}")


def test_markdown_keeps_a_bar_inside_its_cell() -> None:
    text = render(everything(), "markdown")
    line = next(line for line in text.splitlines() if line.startswith("| my_net"))
    assert line.startswith("| my_net%&{x}\\|$y | 97.0")
    assert line.replace("\\|", "").count("|") == 4


def test_limits_seeds_and_protocols_get_tables_of_their_own() -> None:
    records = [
        of_model("jem"),
        of_model("jem", settings={"limit": 20}),
        of_model("jem", seed=3),
        of_model("jem", protocol="paper"),
        of_model("jem", dataset="npz:mine.npz"),
    ]
    text = render(records, "markdown")
    titles = [line for line in text.splitlines() if line.startswith("### ")]
    assert len(titles) == len(set(titles)) == 5
    assert titles[0] == "### accuracy on digits"
    assert "protocol paper" in titles[3]


def test_an_unknown_format_suggests_the_nearest() -> None:
    with pytest.raises(UnknownName, match="'latx' is not a format; did you mean 'latex'"):
        render([], "latx")


def test_how_many_checks_were_made_stands_beside_that_none_failed() -> None:
    made = [f"{n} of them" for n in range(12)]

    def record(label: str, **checks: list[str]) -> Record:
        every: dict[str, list[str]] = {"passed": [], "failed": [], "n/a": [], "unfinished": []}
        return of_model(label, details={"checks": every | checks})

    rows = [
        record("a", passed=made[:10]),
        record("b", passed=made[:10]),
        record("c", passed=made[:5], unfinished=made[5:]),
        record("d", passed=made[:9], failed=made[9:10]),
        of_model("e"),
    ]
    assert checks_lines([*rows, *rows]) == [
        "Masking checks: none of 10 failed for a, b; none of 5 failed for c.",
        "Masking checks not made for want of time: 7 of c.",
    ]
    assert checks_lines(rows[3:]) == []
