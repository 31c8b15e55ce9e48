"""Suite ``ood``: telling images of other kinds from the in-distribution test images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.errors import Unsupported
from bench.registry import DATASETS, METRICS, SCORES, SUITES
from bench.tasks.base import Absent, DataRef, Plan, Task, load
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
        """Return tasks for each set, and a headline over the near ones: models', then trivial."""
        trivial = tuple(e.name for e in SCORES.entries() if e.facts.get("trivial"))
        own = tuple(name for name in self.scores if name not in trivial)
        for name in own:
            SCORES.entry(name)
        for name in self.metrics:
            METRICS.entry(name)
        sets = [(*self._resolve(plan, name, group), group) for group, name in self._sets(plan)]
        tasks: list[Task] = []
        for scores in filter(None, (own, trivial)):
            near: list[Detection] = []
            for outside, absent, group in sets:
                task = Detection(
                    inside=plan.data,
                    outside=outside,
                    scores=scores,
                    trivial=trivial,
                    metric_names=tuple(self.metrics),
                    input_noise=plan.input_noise,
                )
                tasks.append(task if absent is None else Absent(task, absent))
                if group == "near" and absent is None:
                    near.append(task)
            if near:
                tasks.append(Headline(tuple(near)))
        return tasks

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
        return OODSet(data, group, dataset.note, dataset.clusters), None


def _own_group(name: str) -> str:
    """Return the group that a set was registered with: the data set at hand does not name it."""
    plain = name.partition("?")[0]
    return str(DATASETS.entry(plain).facts.get("ood", "other")) if plain in DATASETS else "other"
