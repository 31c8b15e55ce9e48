"""Task: accuracy under attack, the worst attack counting for every image."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from bench.attacking.checks import LATE, Check, all_checks
from bench.errors import MissingExtra, Unsupported
from bench.tasks.attacked import Attacked
from bench.tasks.base import (
    Arrays,
    Failure,
    Measure,
    Reduction,
    Results,
    Row,
    arrays_of,
    first_failure,
    identity,
)
from bench.tasks.masking import Masking
from bench.tasks.outcomes import (
    deterministic_rows,
    distance_rows,
    fixed_noise_rows,
    passes,
    stochastic_rows,
)
from bench.types import Norm

FIXED_NOISE = "diagnostic: the attack knows the noise of the draw that scores it"
# Options of an attack that stand in its records whether they were given or not.
SHOWN = ("steps", "restarts", "loss", "targets", "queries", "votes")


@dataclass(frozen=True)
class Robustness:
    """Robust accuracy at every budget of one norm.

    The number is the per-image worst case over the attacks. For a stochastic model there are
    three: the mean over draws, the vote, and the worst of all draws; each stands beside its value
    on clean images (eps 0), since the worst of many draws falls without any attack. Attacks that
    look for the nearest adversarial image give its median distance as well.

    Attributes:
        norm: Of all the attacks.
        attacks: One or more measures with the same budgets.
        refine_steps: N of JEM-N, for the record.
        checks: What tells whether gradients are masked; ``None``: not asked for.
    """

    norm: Norm
    attacks: tuple[Attacked, ...]
    refine_steps: int = 0
    checks: Masking | None = None

    needs_model: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """E.g. ``robustness/linf``."""
        return f"robustness/{self.norm}"

    @property
    def measures(self) -> tuple[Measure, ...]:
        """The attacks, and the checks."""
        return (*self.attacks, *(() if self.checks is None else (self.checks,)))

    @property
    def budgets(self) -> tuple[float, ...]:
        """Clean first, then the budgets."""
        return (0.0, *self.attacks[0].eps)

    def missing(self, failure: Failure) -> Iterator[Row]:
        """Yield a row for each budget, with the reason in place of the number."""
        yield from self._missing(failure)
        if self.checks is not None:
            yield self._unchecked(failure)

    def _missing(self, failure: Failure) -> Iterator[Row]:
        own = settings_of(self.norm, self.attacks, self.refine_steps)
        for eps in self.budgets:
            yield Row(
                metric="robust_accuracy",
                status=failure.status,
                note=failure.reason,
                settings={**own, "eps": eps},
            )

    def _unchecked(self, failure: Failure) -> Row:
        return Row(
            metric="masking_checks",
            status=failure.status,
            note=failure.reason,
            settings=settings_of(self.norm, self.attacks, self.refine_steps),
        )

    def rows(self, results: Results, reduction: Reduction) -> Iterator[Row]:
        """Yield rows by budget, then distances, then the checks; eps 0 is the clean accuracy."""
        checks = self._checked(results)
        failure = first_failure(self.attacks, results)
        if failure is not None:
            yield from self._missing(failure)
        else:
            yield from self._measured(checks, results, reduction)
        if isinstance(checks, Failure):
            yield self._unchecked(checks)
        elif checks:
            yield self._checks_row(checks, results)

    def _measured(
        self, checks: tuple[Check, ...] | Failure, results: Results, reduction: Reduction
    ) -> Iterator[Row]:
        """Yield the rows of attacks that did not fail."""
        parts = [arrays_of(measure, results) for measure in self.attacks]
        titles = [measure.title for measure in self.attacks]
        known = () if isinstance(checks, Failure) else checks
        remarks = _remarks(self.attacks, parts)
        kind = deterministic_rows if "broken" in parts[0] else stochastic_rows
        for row in kind(titles, parts, self.budgets, reduction):
            yield self._completed(row, parts, known, remarks)
        for row in fixed_noise_rows(parts, self.budgets, reduction):
            yield self._completed(row, parts, (), [FIXED_NOISE])
        nearest = [(a, p) for a, p in zip(self.attacks, parts, strict=True) if a.nearest]
        if nearest:
            attacks, found = zip(*nearest, strict=True)
            own = settings_of(self.norm, attacks, self.refine_steps)
            for row in distance_rows(self.norm, found, reduction):
                yield replace(row, settings=own)

    def _completed(
        self, row: Row, parts: Sequence[Arrays], checks: tuple[Check, ...], remarks: list[str]
    ) -> Row:
        """Return a row with its settings, the checks and costs beside it, and its notes."""
        details, said = dict(row.details), []
        if checks:
            details["checks"] = _by_verdict(checks)
        if row.settings["eps"]:
            spent = passes(parts)
            queries = np.sum([part["queries"] for part in parts], axis=0)
            details |= {"mean_queries": float(queries.mean())} | (
                {"passes": spent} if spent else {}
            )
            failed = "; ".join(f"{c.name} ({c.note})" for c in checks if c.verdict == "fail")
            said = [*remarks, *([f"masking checks failed: {failed}"] if failed else [])]
        own = settings_of(self.norm, self.attacks, self.refine_steps)
        note = "; ".join(said) or None
        return replace(row, settings={**own, **row.settings}, details=details, note=note)

    def _checked(self, results: Results) -> tuple[Check, ...] | Failure:
        """Return the checks, none where there are none, or why they failed."""
        if self.checks is None:
            return ()
        evidence = results[identity(self.checks)]
        if isinstance(evidence, Failure):
            return evidence
        attacked = (results[identity(measure)] for measure in self.attacks)
        changed = [evidence, *(found for found in attacked if not isinstance(found, Failure))]
        return all_checks(
            {**evidence, "changed": np.concatenate([found["changed"] for found in changed])}
        )

    def _checks_row(self, checks: tuple[Check, ...], results: Results) -> Row:
        """Return the record of all checks: how many failed, and each with its number."""
        assert self.checks is not None
        failed = [c for c in checks if c.verdict == "fail"]
        return Row(
            metric="masking_checks",
            value=float(len(failed)),
            n=len(arrays_of(self.checks, results)["changed"]),
            settings=settings_of(self.norm, self.attacks, self.refine_steps),
            details={"checks": [c.as_dict() for c in checks]},
            note="; ".join(f"{c.name}: {c.note}" for c in failed) or None,
        )


def _by_verdict(checks: Sequence[Check]) -> dict[str, list[str]]:
    """Return the names of the checks: passed, failed, not applicable, not made in time."""
    words = {"pass": "passed", "fail": "failed", "n/a": "n/a"}
    found: dict[str, list[str]] = {word: [] for word in (*words.values(), "unfinished")}
    for check in checks:
        found["unfinished" if check.note == LATE else words[check.verdict]].append(check.name)
    return found


def _remarks(attacks: Sequence[Attacked], parts: Sequence[Arrays]) -> list[str]:
    """Return what a reader must know of every row: what is not done, and what is not keyed."""
    remarks = []
    unfinished = np.any([part["unfinished"] for part in parts], axis=0)
    if unfinished.any():
        done = int((~unfinished).sum())
        remarks.append(f"time ran out: {done} of {len(unfinished)} images attacked in full")
    loose = [a.title for a in attacks if not all(getattr(k, "keyed", True) for k in a.kinds)]
    if loose:
        remarks.append(
            f"draws under {', '.join(loose)} belong to the micro-batch, not to the image"
        )
    return remarks


def settings_of(norm: Norm, attacks: Sequence[Attacked], refine_steps: int) -> dict[str, Any]:
    """Return what records say of attacks; options in which they differ are named by attack."""
    options = [attack_settings(attack) for attack in attacks]
    shared = {k: v for k, v in options[0].items() if all(k in o and o[k] == v for o in options)}
    own = {
        attack.attack: {k: v for k, v in each.items() if k not in shared}
        for attack, each in zip(attacks, options, strict=True)
    }
    title = "+".join(attack.title for attack in attacks)
    asked = "+".join(attack.attack for attack in attacks)
    return {
        "attack": title,
        **({"asked": asked} if asked != title else {}),
        "norm": norm.value,
        **shared,
        **({"options": own} if any(own.values()) else {}),
        "refine_steps": refine_steps,
    }


def attack_settings(attack: Attacked) -> dict[str, Any]:
    """Return the options that were given, and of the others those that always stand in records."""
    given = {k: v for k, v in attack.options.items() if v is not None}
    if "gradients" in given:
        given["gradient"] = "+".join(given.pop("gradients"))
    try:
        made = attack.plan.attacks[0]
    except (MissingExtra, Unsupported):  # its rows say so
        return given
    usual = {name: getattr(made, name, None) for name in SHOWN}
    return {**{k: v for k, v in usual.items() if v is not None}, **given}
