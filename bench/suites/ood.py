"""Suite ``ood``: telling images of other kinds from the in-distribution test images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.data import load_dataset
from bench.errors import Unsupported
from bench.registry import SCORES, SUITES
from bench.tasks.base import Absent, DataRef, Plan, Task
from bench.tasks.detection import Detection, Headline, OODSet


@SUITES.register("ood", version=1)
@dataclass(frozen=True, kw_only=True)
class OODSuite:
    """Scores against every out-of-distribution set that the data set names.

    The trivial scores, which need no model, stand in every table beside the others.

    Options:
        scores: Names of registered scores.
        metrics: Names of registered metrics of (id_scores, ood_scores).
        n: Images of each out-of-distribution set; a set that has fewer gives what it has.
        sets: Names of sets instead of those that the data set names.
    """

    scores: tuple[str, ...] = ("log-density", "max-softmax", "approx-mass")
    metrics: tuple[str, ...] = ("auroc", "fpr95_ood", "fpr95_id", "aupr_in", "aupr_out")
    n: int = 500
    sets: tuple[str, ...] = ()

    def tasks(self, plan: Plan) -> Sequence[Task]:
        """Return a task for each set, and the headline over the near ones."""
        trivial = [e.name for e in SCORES.entries() if e.facts.get("trivial")]
        scores = tuple(dict.fromkeys([*self.scores, *trivial]))
        tasks: list[Task] = []
        near: list[Detection] = []
        for group, name in self._sets(plan):
            data = DataRef(
                spec=name,
                like=plan.data.spec,
                n=self.n,
                limit=plan.data.limit,
                root=plan.data.root,
                download=plan.data.download,
            )
            outside, absent = _resolve(data, group)
            task = Detection(plan.data, outside, scores, tuple(self.metrics), plan.input_noise)
            if absent is not None:
                tasks.append(Absent(task, absent))
                continue
            tasks.append(task)
            if group == "near":
                near.append(task)
        if near:
            tasks.append(Headline(tuple(near)))
        return tasks

    def _sets(self, plan: Plan) -> list[tuple[str, str]]:
        known = [(group, name) for group, names in plan.dataset.ood.items() for name in names]
        if not self.sets:
            return known
        groups = {name: group for group, name in known}
        return [(groups.get(name, "other"), name) for name in self.sets]


def _resolve(data: DataRef, group: str) -> tuple[OODSet, str | None]:
    """Return the set with what is known of it, and the reason where it cannot be had."""
    try:
        dataset = load_dataset(
            data.spec,
            root=None if data.root is None else Path(data.root),
            like=data.like,
            n=data.n,
            seed=data.seed,
            limit=data.limit,
            download=data.download,
        )
    except Unsupported as error:
        return OODSet(data, group), str(error)
    return OODSet(data, group, dataset.note, dataset.clusters), None
