"""From records to leaderboards: one or more tables for each suite, data set and protocol.

Rows that are not comparable with the rest (a limit, options other than the suite's own) get
tables of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bench.digest import canonical_json
from bench.errors import UnknownName
from bench.records import Record
from bench.report.checks import CHECKS, checks_lines, checks_tables
from bench.report.table import (
    NORMS,
    Cell,
    Column,
    Notes,
    Table,
    cell_of,
    column_of,
    ordered,
    sort_rows,
)

INTERVALS = "± is half the width of the 95 % interval; JSON and CSV have both ends."


def leaderboards(records: Sequence[Record], metric: str | None = None) -> list[Table]:
    """Return the tables of some records.

    Args:
        records: In the order in which rows and columns shall appear.
        metric: For out-of-distribution tables, what to show; by default the AUROC.

    Raises:
        UnknownName: No record is of that metric.
    """
    if metric is not None and all(r.metric != metric for r in records):
        raise UnknownName("metric of these records", metric, {r.metric for r in records})
    records = distinct(records)
    tables = []
    groups: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        group = (record.suite, record.dataset, record.protocol, canonical_json(_apart(record)))
        groups.setdefault(group, []).append(record)
    for members in groups.values():
        title = _title(members[0])
        for kind in ordered(_kind(r) for r in members):
            own = [r for r in members if _kind(r) == kind]
            if kind == "detection":
                tables += _detection(own, title, metric or "auroc")
            else:
                layout = {"attack": _robustness, "checks": checks_tables, "plain": _plain}[kind]
                tables += layout(own, title)
    return tables + summaries(records)


def distinct(records: Sequence[Record]) -> list[Record]:
    """Return the records with names that tell apart what differs.

    Two models of one label get their weights' digest, or where these are equal their whole spec;
    two data sets of one name get their images' digest.
    """
    weights: dict[str, set[str | None]] = {}
    specs: dict[str, set[str]] = {}
    images: dict[tuple[str, Any], set[str | None]] = {}  # a limit leaves other images
    for r in records:
        weights.setdefault(r.label, set()).add(r.weights_sha256)
        specs.setdefault(r.label, set()).add(r.model)
        images.setdefault((r.dataset, r.settings.get("limit")), set()).add(r.dataset_sha256)
    named = []
    for r in records:
        label, dataset = r.label, r.dataset
        if len(specs[label]) > 1:
            label = (
                f"{r.model}-{r.variant['refine_steps']}"
                if r.variant.get("refine_steps")
                else r.model
            )
        elif len(weights[label]) > 1 and r.weights_sha256:
            label = f"{label}@{r.weights_sha256[:8]}"
        if len(images[dataset, r.settings.get("limit")]) > 1 and r.dataset_sha256:
            dataset = f"{dataset}@{r.dataset_sha256[:8]}"
        named.append(replace(r, label=label, dataset=dataset))
    return named


def _kind(record: Record) -> str:
    """Return how a record is laid out: by what it says of itself, so any suite can use it."""
    if "ood_dataset" in record.settings:
        return "detection"
    if record.metric == CHECKS:
        return "checks"
    return "attack" if "eps" in record.settings else "plain"


def _apart(record: Record) -> dict[str, Any]:
    """Return what keeps a record out of the main table."""
    keys = ("limit", "non_default")
    return {key: record.settings[key] for key in keys if key in record.settings} | (
        {"seed": record.seed} if record.seed else {}
    )


def _title(record: Record) -> str:
    title = f"{record.suite} on {record.dataset}"
    if record.protocol != "default":
        title += f", protocol {record.protocol}"
    apart = _apart(record)
    changed = apart.pop("non_default", {})
    words = [f"{key} {value}" for key, value in apart.items()]
    words += [f"{n}.{k}={v}" for n, options in changed.items() for k, v in options.items()]
    return f"{title} — set apart: {', '.join(words)}" if words else title


def _plain(records: Sequence[Record], title: str) -> list[Table]:
    """Lay out a table a task: rows of models and columns of metrics, sorted by the first."""
    tables = []
    for task in ordered(r.task for r in records):
        members = [r for r in records if r.task == task]
        name = title if task == members[0].suite else f"{title}: {task}"
        tables.append(_plain_table(members, name))
    return tables


def _plain_table(records: Sequence[Record], title: str) -> Table:
    notes = Notes()
    cells: dict[str, dict[str, Cell]] = {}
    columns: dict[str, Column] = {}
    for r in records:
        own = cells.setdefault(r.label, {})
        own[r.metric] = cell_of(r, notes)
        columns.setdefault(r.metric, column_of(r.metric))
        if "debiased" in r.details:
            own |= _beside_ece(r)
            columns |= {name: Column(name, percent=True) for name in (DEBIASED, CALIBRATED)}
    rows = [
        ((label,), tuple(own.get(name, Cell()) for name in columns)) for label, own in cells.items()
    ]
    n = next((r.n for r in records if r.n), None)
    lines = [f"{n} images. {INTERVALS}"] if n else []
    if CALIBRATED in columns:
        lines.append(CALIBRATED_NOTE)
    listed = tuple(columns.values())
    return Table(title, ("model",), listed, sort_rows(rows, listed[0]), (*lines, *notes.lines()))


DEBIASED, CALIBRATED = "debiased ece", "if calibrated"
CALIBRATED_NOTE = (
    f"'{CALIBRATED}' is the ECE that a perfectly calibrated model with the same confidences would "
    "show on as many images: an ECE in that range is no sign of miscalibration."
)


def _beside_ece(record: Record) -> dict[str, Cell]:
    """Return what must stand beside an ECE: its debiased value, and that of a calibrated model."""
    d = record.details
    floor = Cell(d["calibrated"], d["calibrated_low"], d["calibrated_high"])
    return {DEBIASED: Cell(d["debiased"]), CALIBRATED: floor}


def _detection(records: Sequence[Record], title: str, metric: str) -> list[Table]:
    """Lay out one table a group: rows of model and score, columns of sets."""
    chosen = [r for r in records if r.metric == metric]
    headline = [r for r in chosen if "mean_of" in r.settings]
    single = [r for r in chosen if "mean_of" not in r.settings]
    tables = []
    for group in ordered(r.settings["ood_group"] for r in single):
        members = [r for r in single if r.settings["ood_group"] == group]
        mean = [r for r in headline if r.settings["ood_group"] == group]
        tables.append(_detection_group(members, mean, f"{title}: {metric}, {group}", metric))
    return tables


def _row_names(record: Record) -> tuple[str, str]:
    return record.label, record.settings["score"]


def _detection_group(
    records: Sequence[Record], mean: Sequence[Record], title: str, metric: str
) -> Table:
    notes = Notes()
    sets = ordered(r.settings["ood_dataset"] for r in records)
    columns = [column_of(metric, name) for name in sets]
    if mean:
        columns.insert(0, column_of(metric, "mean"))
    cells: dict[tuple[str, str], dict[str, Record]] = {}
    for r in records:
        cells.setdefault(_row_names(r), {})[r.settings["ood_dataset"]] = r
    means = {_row_names(r): r for r in mean}
    # What needs no model stands last, once.
    names = sorted(cells, key=lambda pair: pair[0].startswith("("))
    rows = []
    for pair in names:
        row = [cell_of(cells[pair].get(name), notes) for name in sets]
        if mean:
            row.insert(0, cell_of(means.get(pair), notes))
        rows.append((pair, tuple(row)))
    lines = [_sizes(records, sets), *_separated(records), *_set_notes(records), *notes.lines()]
    return Table(title, ("model", "score"), tuple(columns), tuple(rows), tuple(lines))


def _sizes(records: Sequence[Record], sets: Sequence[str]) -> str:
    n = next((r.n for r in records if r.n), 0)
    sizes = {r.settings["ood_dataset"]: r.n_ood for r in records if r.n_ood}
    listed = ", ".join(f"{name} {sizes[name]}" for name in sets if name in sizes)
    return f"{n} in-distribution images against: {listed}. {INTERVALS}"


def _separated(records: Sequence[Record]) -> list[str]:
    """Say which sets a trivial score tells apart, and how well."""
    found = {r.settings["ood_dataset"]: r.details.get("separated_by") for r in records}
    listed = [
        f"{name} ({', '.join(f'{score} {value:.3f}' for score, value in scores.items())})"
        for name, scores in found.items()
        if scores
    ]
    if not listed:
        return []
    return [
        "Told apart by statistics that need no model, so that a high value says little about one "
        f"(AUROC; near 0 separates as well as near 1): {'; '.join(listed)}."
    ]


def _set_notes(records: Sequence[Record]) -> list[str]:
    noted = {r.settings["ood_dataset"]: r.note for r in records if r.note and r.value is not None}
    return [f"{name}: {note}" for name, note in noted.items()]


def summaries(records: Sequence[Record]) -> list[Table]:
    """Return one table a data set that sets the suites side by side, where three or more ran."""
    tables = []
    usual = [r for r in records if not _apart(r) and r.label != "(no model)"]
    for dataset, protocol in dict.fromkeys((r.dataset, r.protocol) for r in usual):
        own = [r for r in usual if (r.dataset, r.protocol) == (dataset, protocol)]
        if len({r.suite for r in own} & set(SUMMARISED)) >= 3:
            title = f"summary on {dataset}"
            title += f", protocol {protocol}" if protocol != "default" else ""
            tables.append(_summary(own, title))
    return tables


SUMMARISED = ("accuracy", "calibration", "ood", "robustness")


def _summary(records: Sequence[Record], title: str) -> Table:
    notes = Notes()
    budgets = {norm: _middle_budget(records, norm) for norm in ("linf", "l2")}
    wanted: tuple[tuple[str, Column, dict[str, Any]], ...] = (
        ("accuracy", column_of("accuracy"), {}),
        ("ece", column_of("ece"), {}),
        ("auroc", column_of("auroc", "near-OOD auroc"), {"score": "log-density"}),
        *(
            (
                "robust_accuracy",
                Column(f"{NORMS[norm]} eps {eps_text(eps)}", True, False),
                {"norm": norm, "eps": eps},
            )
            for norm, eps in budgets.items()
            if eps is not None
        ),
    )
    rows = []
    for label in ordered(r.label for r in records):
        own = [r for r in records if r.label == label]
        cells = [cell_of(_one(own, metric, settings), notes) for metric, _, settings in wanted]
        rows.append(((label,), (*cells, _training_seconds(own))))
    columns = (*(column for _, column, _ in wanted), Column("training s"))
    lines = (
        "near-OOD: log p(x), mean over the near sets. Ordered by accuracy: which differences are "
        "more than chance, the intervals alone do not say.",
        *notes.lines(),
    )
    return Table(title, ("model",), columns, sort_rows(rows, columns[0]), lines)


def _one(records: Sequence[Record], metric: str, settings: dict[str, Any]) -> Record | None:
    """Return the first record of a metric with these settings; of detection, the near mean."""
    for r in records:
        near = _kind(r) != "detection" or r.task == "ood/near"
        if r.metric == metric and near and settings.items() <= dict(r.settings).items():
            return r
    return None


def _middle_budget(records: Sequence[Record], norm: str) -> float | None:
    budgets = sorted(
        {
            r.settings["eps"]
            for r in records
            if r.settings.get("norm") == norm and r.settings.get("eps")
        }
    )
    return budgets[len(budgets) // 2] if budgets else None


def _training_seconds(records: Sequence[Record]) -> Cell:
    seconds = (r.details.get("training_seconds") for r in records)
    return Cell(next((float(s) for s in seconds if s is not None), None), places=0)


def eps_text(eps: float) -> str:
    """Return a budget as text: ``0.1``, or ``8/255`` where that is what it is."""
    levels = round(eps * 255)
    plain = f"{eps:g}"
    is_level = levels > 0 and abs(eps * 255 - levels) < 1e-6
    return f"{levels}/255" if is_level and len(plain) > 5 else plain


def _attacks(record: Record) -> str:
    """Return the attacks of a record in words."""
    names = str(record.settings["attack"]).split("+")
    return names[0] if len(names) == 1 else f"the worst of {', '.join(names)} for each"


def _robustness(records: Sequence[Record], title: str) -> list[Table]:
    """Lay out one table a norm: rows of models, columns of budgets, clean accuracy first."""
    tables = []
    for norm in ordered(r.settings["norm"] for r in records):
        members = [r for r in records if r.settings["norm"] == norm]
        notes = Notes()
        budgets = sorted({r.settings["eps"] for r in members})
        several = len({r.settings["attack"] for r in members}) > 1
        columns = tuple(
            Column("clean" if e == 0 else f"eps {eps_text(e)}", True, False) for e in budgets
        )
        keys = ("model", "metric", "attack") if several else ("model", "metric")
        cells: dict[tuple[str, ...], dict[float, Cell]] = {}
        for r in members:
            names = (r.label, r.metric, r.settings["attack"])[: len(keys)]
            cells.setdefault(names, {})[r.settings["eps"]] = cell_of(r, notes)
        # All metrics of a model side by side, models in their order.
        labels = ordered(r.label for r in members)
        rows = [
            (names, tuple(own.get(e, Cell()) for e in budgets))
            for names, own in sorted(cells.items(), key=lambda item: labels.index(item[0][0]))
        ]
        n = next((r.n for r in members if r.n), None)
        under = "" if several else f" under {_attacks(members[0])}"
        lines = (
            [f"{n} images{under}; eps in units of the [0, 1] pixel range. {INTERVALS}"] if n else []
        )
        lines += ordered(f"{r.label}: {r.note}" for r in members if r.note and r.value is not None)
        lines += [*checks_lines(members), *notes.lines()]
        name = NORMS.get(norm, norm)
        tables.append(
            Table(
                f"{title}: accuracy under attack, {name}",
                keys,
                columns,
                tuple(rows),
                tuple(lines),
            )
        )
    return tables
