"""Suite ``ood``: telling images of other kinds from the in-distribution test images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bench.errors import InputError, Unsupported
from bench.registry import DATASETS, SCORES, SUITES
from bench.suites.options import require_counts, require_metrics
from bench.tasks.base import Absent, DataRef, Plan, Task, load
from bench.tasks.detection import Detection, Headline, OODSet
from bench.tasks.scores import is_fitted, needs_of
from bench.types import Dataset


@SUITES.register("ood", version=1)
@dataclass(frozen=True, kw_only=True)
class OODSuite:
    """Scores against every out-of-distribution set that the data set names.

    The trivial scores, which need no model, stand in every table beside the others.

    Options:
        scores: Names of registered scores. The default three cost one forward and one backward
            pass; so does any number of the others, but for those that refine: N passes a draw.
        metrics: Names of registered metrics of (id_scores, ood_scores).
        n: Images of each out-of-distribution set; a set that has fewer gives what it has.
        sets: Names of sets instead of those that the data set names.
        repeats: Draws of each random score; its numbers are means over them.
        steps: SGLD steps of the scores that refine. A model with refinement steps of its own,
            JEM-N, takes those.
        fit_images: At most so many training images, the first, for scores that are fitted.
    """

    scores: tuple[str, ...] = ("log-density", "max-softmax", "approx-mass")
    metrics: tuple[str, ...] = ("auroc", "fpr95_ood", "fpr95_id", "aupr_in", "aupr_out")
    n: int = 500
    sets: tuple[str, ...] = ()
    repeats: int = 5
    steps: int = 20
    fit_images: int = 50_000

    def __post_init__(self) -> None:
        counts = {"n": self.n, "repeats": self.repeats, "steps": self.steps}
        require_counts("ood", **counts, fit_images=self.fit_images)
        wrong = [name for name in self.sets if not isinstance(name, str)]
        if wrong:
            raise InputError(
                f"'--set ood.sets={wrong[0]}': expected names of data sets, e.g. "
                "ood.sets=interp,letters ('bench list datasets' shows all)"
            )

    def tasks(self, plan: Plan) -> Sequence[Task]:
        """Return tasks for each set, and a headline over the near ones: models', then trivial."""
        trivial = tuple(e.name for e in SCORES.entries() if e.facts.get("trivial"))
        own = tuple(name for name in self.scores if name not in trivial)
        for name in own:
            needs_of(name)
        require_metrics("ood", self.metrics, pair=True)
        sets = [(*self._resolve(plan, name, group), group) for group, name in self._sets(plan)]
        _check_titles([outside.data.title for outside, _, _ in sets])
        train, lacking = self._train(plan, own)
        unfit = tuple(name for name in own if lacking and is_fitted(name))
        ready = tuple(name for name in own if name not in unfit)
        tasks: list[Task] = []
        for scores, reason in ((ready, None), (unfit, lacking), (trivial, None)):
            near: list[Detection] = []
            for outside, absent, group in sets if scores else ():
                task = Detection(
                    inside=plan.data,
                    outside=outside,
                    scores=scores,
                    trivial=trivial,
                    metric_names=tuple(self.metrics),
                    input_noise=plan.input_noise,
                    repeats=self.repeats,
                    steps=plan.refine_steps or self.steps,
                    train=train,
                )
                tasks.append(_unless(absent or reason, task))
                if group == "near" and absent is None:
                    near.append(task)
            if near:
                tasks.append(_unless(reason, Headline(tuple(near))))
        return tasks

    def _train(self, plan: Plan, scores: Sequence[str]) -> tuple[DataRef | None, str | None]:
        """Return the training images where a score is fitted, and why they cannot be had."""
        if not any(map(is_fitted, scores)):
            return None, None
        data = replace(plan.data, split="train", limit=self.fit_images)
        try:
            dataset = load(data)
        except Unsupported as error:
            return data, f"it is fitted on training images: {error}"
        if _same_images(dataset, plan.dataset):
            raise InputError(
                f"the training images of '{plan.dataset.name}' are its test images; a score that "
                "is fitted on them would say nothing: give it a training split of its own"
            )
        return data, None

    def _sets(self, plan: Plan) -> list[tuple[str, str]]:
        known = [(group, name) for group, names in plan.dataset.ood.items() for name in names]
        if not self.sets:
            return known
        groups = {name: group for group, name in known}
        return [(groups.get(name) or _own_group(name), name) for name in self.sets]

    def _resolve(self, plan: Plan, name: str, group: str) -> tuple[OODSet, str | None]:
        """Return the set with what is known of it, and the reason where it cannot be had."""
        data = DataRef(
            spec=name,
            like=plan.data.spec,
            n=min(self.n, plan.data.limit or self.n),
            limit=plan.data.limit,
            root=plan.data.root,
            download=plan.data.download,
        )
        try:
            dataset = load(data)
        except Unsupported as error:
            return OODSet(data, group), str(error)
        if _same_images(dataset, plan.dataset):
            raise InputError(
                f"'{name}' holds the test images of '{plan.dataset.name}'; expected images of "
                "another kind: leave it out of ood.sets"
            )
        return OODSet(data, group, dataset.note, dataset.clusters), None


def _unless(reason: str | None, task: Task) -> Task:
    """Return the task, or its rows with the reason why it cannot be done."""
    return task if reason is None else Absent(task, reason)


def _check_titles(titles: Sequence[str]) -> None:
    """Refuse two sets that no row could tell apart."""
    twice = sorted({title for title in titles if titles.count(title) > 1})
    if twice:
        raise InputError(
            f"two sets of ood.sets are called '{twice[0]}'; name each once, and give files names "
            "of their own"
        )


def _same_images(outside: Dataset, inside: Dataset) -> bool:
    """Say whether one set begins with all images of the other."""
    k = min(len(outside), len(inside))
    return np.array_equal(outside.images[:k], inside.images[:k])


def _own_group(name: str) -> str:
    """Return the group that a set was registered with: the data set at hand does not name it."""
    plain = name.partition("?")[0]
    return str(DATASETS.entry(plain).facts.get("ood", "other")) if plain in DATASETS else "other"
