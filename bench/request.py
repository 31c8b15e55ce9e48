"""What is asked for (it determines the numbers) and where it runs (it must not)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from bench.digest import canonical_json, sha256_text
from bench.errors import InputError, UnknownName

Protocol = Literal["default", "paper"]
PAPER_INPUT_NOISE = 0.03 / 2.0  # 0.03 in z = 2x - 1 (JEM's and HDGE's evaluation code)

DEFAULT_MODELS = ("baseline", "jem", "hdge-eq13", "hdge-jem")
DEFAULT_SUITES = ("accuracy", "calibration", "ood", "robustness")


@dataclass(frozen=True, kw_only=True)
class Request:
    """Everything that determines the numbers of a run.

    Attributes:
        models: Registered names, ``ckpt:…`` or ``py:…``.
        suites: Names of suites.
        dataset: The in-distribution data set.
        refine_steps: N of JEM-N; one row for each N of each model.
        network: Architecture of registered models; ``None``: by the size of the images.
        checkpoint: A file of weights instead of those found by name.
        protocol: ``default``, or ``paper``: input noise for every model.
        limit: Keep the first images of every set only.
        seed: Of every draw.
        settings: Options by suite or attack name.
        data_root: Where data sets lie.
        download: Whether they may be fetched.
        trust: Whether files that run code may be loaded.
    """

    models: tuple[str, ...] = DEFAULT_MODELS
    suites: tuple[str, ...] = DEFAULT_SUITES
    dataset: str = "digits"
    refine_steps: tuple[int, ...] = (0,)
    network: str | None = None
    checkpoint: str | None = None
    protocol: Protocol = "default"
    limit: int | None = None
    seed: int = 0
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    data_root: str | None = None
    download: bool = False
    trust: bool = False

    def __post_init__(self) -> None:
        for what, values in (("model", self.models), ("suite", self.suites)):
            wrong = [v for v in values if not isinstance(v, str)]
            if wrong:
                raise InputError(f"{what} {wrong[0]!r}: expected a name, as text")
            if not values:
                raise InputError(f"no {what} is named; 'bench list {what}s' shows all")
            twice = {v for v in values if values.count(v) > 1}
            if twice:
                raise InputError(f"{what} '{twice.pop()}' is named twice; name it once")
        if not self.refine_steps or min(self.refine_steps) < 0:
            raise InputError(f"refine steps {self.refine_steps}: expected numbers of at least 0")
        if self.seed < 0:
            raise InputError(f"seed {self.seed}: expected a number of at least 0")
        if self.limit is not None and self.limit < 1:
            raise InputError(f"limit {self.limit}: expected a number of at least 1")
        if self.protocol not in ("default", "paper"):
            raise InputError(f"protocol '{self.protocol}': expected 'default' or 'paper'")
        if self.checkpoint is not None and (len(self.models) > 1 or ":" in self.models[0]):
            raise InputError(
                f"checkpoint '{self.checkpoint}' for {', '.join(self.models)}: expected one "
                "registered model; run the others apart, and name a file of weights within the "
                "spec of a ckpt: or py: model"
            )
        if not isinstance(self.settings, Mapping):
            raise InputError(f"settings are {self.settings!r}; expected options by name")
        for name, options in self.settings.items():
            if not isinstance(options, Mapping):
                raise InputError(
                    f"settings of '{name}' are {options!r}; expected options by name, e.g. "
                    "{'pgd-linf': {'steps': 100}}"
                )

    @property
    def input_noise(self) -> float:
        """Standard deviation of the protocol's input noise, x units."""
        return PAPER_INPUT_NOISE if self.protocol == "paper" else 0.0

    @property
    def run_id(self) -> str:
        """A readable name that equal requests share."""
        names = (self.dataset, *self.models[:3])
        files = [_absolute(name).partition("?")[0].rpartition("/")[2] for name in names]
        words = "-".join([*self.suites[:2], *files])
        readable = "".join(c if c.isalnum() or c in "-_" else "-" for c in words)[:60]
        return f"{readable.strip('-')}-{sha256_text(self.canonical())[:10]}"

    def canonical(self) -> str:
        """Return the request as JSON, with the paths of files made absolute."""
        plain = asdict(self)
        plain["models"] = [_absolute(m) for m in self.models]
        plain["dataset"] = _absolute(self.dataset)
        plain["settings"] = _absolute_in(plain["settings"])
        for key in ("checkpoint", "data_root"):
            if plain[key] is not None:
                plain[key] = str(Path(plain[key]).resolve())
        return canonical_json(plain)


def _absolute_in(value: Any) -> Any:
    """Return nested options with the paths in them made absolute, e.g. of ``ood.sets``."""
    if isinstance(value, str):
        return _absolute(value)
    if isinstance(value, Mapping):
        return {key: _absolute_in(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_absolute_in(item) for item in value]
    return value


def _absolute(spec: str) -> str:
    """Return a spec with the path in it made absolute; another spec as it is."""
    head, mark, options = spec.partition("?")
    scheme, colon, rest = head.partition(":")
    if not colon:
        return spec
    if scheme in ("npz", "folder"):
        rest = str(Path(rest).resolve())
    elif scheme == "ckpt" and "@" in rest:
        network, _, file = rest.partition("@")
        rest = f"{network}@{Path(file).resolve()}"
    elif scheme == "py" and ".py:" in rest:
        file, _, name = rest.rpartition(":")
        rest = f"{Path(file).resolve()}:{name}"
    return f"{scheme}:{rest}{mark}{options}"


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Where a run happens; no number depends on it beyond rounding.

    Attributes:
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:N`` or ``mps``.
        micro_batch: How many images pass through a model at once; ``None`` takes 128 on the CPU
            and what fits on a GPU.
        threads: CPU threads of each process. Fixed, since another number rounds otherwise.
        executor: ``local`` or ``local:N``.
        runs: The folder of results.
        retries: How often a job is tried again after its worker died.
    """

    device: str = "auto"
    micro_batch: int | None = None
    threads: int = 1
    executor: str = "local"
    runs: Path = Path("runs")
    retries: int = 2

    def __post_init__(self) -> None:
        for name in ("micro_batch", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} {value}: expected a number of at least 1")
        processes_of(self.executor)


def processes_of(executor: str) -> int | None:
    """Return the N of ``local:N``, or ``None`` for ``local``: no process but this one.

    Raises:
        UnknownName: No executor has that name.
        InputError: N is not a positive number.
    """
    name, colon, count = executor.partition(":")
    if name != "local":
        raise UnknownName("executor", executor, ["local", "local:2"])
    if not colon:
        return None
    if not count.isdecimal() or int(count) < 1:
        raise InputError(
            f"executor '{executor}': expected local:N with a number of processes N >= 1"
        )
    return int(count)
