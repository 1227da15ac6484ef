"""What a run is: a frozen configuration with a canonical form. Unknown keys are errors."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from sheafdeq.errors import OptionError
from sheafdeq.options import suggestion
from sheafdeq.regular_file import read_toml

__all__ = [
    "OWN",
    "AugmentationConfig",
    "ModelConfig",
    "NamedFile",
    "PenaltyConfig",
    "ScheduleConfig",
    "SolveConfig",
    "TaskConfig",
    "TrainingConfig",
]

Scalar = bool | int | float | str | None
Option = Scalar | list[Scalar]


class _Frozen(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False
    )


OWN = "own"
"""Name of a task of a user's own files where the user gives none: the task itself is then called by
what is in them (``own-3f2a91c0``)."""


class NamedFile(_Frozen):
    """A user's file as a record knows it: by content, with the name it had."""

    name: str
    sha256: str


def file_name(file: str | NamedFile) -> str:
    """A file's name without its folder."""
    return file.name if isinstance(file, NamedFile) else Path(file).name


class TaskConfig(_Frozen):
    """A task by name, as :func:`sheafdeq.data.load_task` takes it, or of a user's own ``files``, as
    :func:`sheafdeq.data.own_task` does: ``{"npz": path}``, or ``{"nodes": path, "edges": path}``.

    In a record, files are named by content (:class:`NamedFile`); a path says nothing elsewhere.
    """

    name: str
    level: int | None = None
    split: int | str | None = None
    options: dict[str, Option] = Field(default_factory=dict)
    files: dict[str, str | NamedFile] | None = None

    @model_validator(mode="before")
    @classmethod
    def _own_has_a_name(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("files") is not None and "name" not in values:
            return {**values, "name": OWN}
        return values

    @field_validator("files")
    @classmethod
    def _one_graph(cls, files: Any) -> Any:
        if files is not None and set(files) not in ({"npz"}, {"nodes", "edges"}):
            raise ValueError("one npz archive, or nodes and edges together")
        return files

    @property
    def title(self) -> str:
        """Name, and the files it stands for."""
        names = ", ".join(map(file_name, (self.files or {}).values()))
        return f"{self.name} ({names})" if names else self.name

    @property
    def missing_files(self) -> dict[str, NamedFile]:
        """Files that are known by content alone: the user has to say where they are."""
        files = self.files or {}
        return {kind: file for kind, file in files.items() if isinstance(file, NamedFile)}


class ModelConfig(_Frozen):
    """A model by name with the options that differ from its defaults."""

    name: str
    options: dict[str, Option] = Field(default_factory=dict)


class ScheduleConfig(_Frozen):
    """Learning rate over the epochs, as a factor of ``learning_rate`` (see
    :mod:`sheafdeq.training.learning_rate`)."""

    kind: Literal["constant", "wsd", "plateau"] = "wsd"
    # wsd: share of max_epochs, at the start, that rises linearly
    warmup: float = Field(default=0.1, ge=0, le=1)
    # wsd: share of max_epochs, at the end, that falls linearly to the floor
    decay: float = Field(default=0.2, ge=0, le=1)
    floor: float = Field(default=0.01, ge=0, le=1)  # wsd, plateau: smallest factor
    factor: float = Field(default=0.5, gt=0, lt=1)  # plateau
    patience: int = Field(default=20, ge=1)  # plateau: epochs without a better validation score

    @field_validator("warmup", mode="before")
    @classmethod
    def _a_share(cls, value: Any) -> Any:
        if isinstance(value, int | float) and value > 1:
            raise ValueError("a share of max_epochs between 0 and 1 (8 epochs of 160 are 0.05)")
        return value

    @model_validator(mode="after")
    def _both_fit(self) -> ScheduleConfig:
        if self.kind == "wsd" and self.warmup + self.decay > 1:
            raise ValueError(
                f"warm-up ({self.warmup:g}) and decay ({self.decay:g}) are shares of max_epochs "
                "and "
                "must not exceed 1 together"
            )
        return self


class PenaltyConfig(_Frozen):
    """Weights of the settling penalties (see :mod:`sheafdeq.training.penalty`); zero means
    absent."""

    residual_weight: float = Field(default=0.0, ge=0)
    residual_max_weight: float = Field(default=0.0, ge=0)
    rate_weight: float = Field(default=0.0, ge=0)
    rate_target: float = Field(default=0.9, gt=0, le=1)
    jacobian_weight: float = Field(default=0.0, ge=0)
    agreement_weight: float = Field(default=0.0, ge=0)
    row_sum_weight: float = Field(default=0.0, ge=0)
    # absolute row sums of J below this cost nothing
    row_sum_target: float = Field(default=0.9, gt=0)
    # penalise the state after this many steps instead of the trained horizon
    steps: int | None = Field(default=None, ge=1)
    ramp: tuple[float, float] | None = None
    """Shares (a, b) of ``max_epochs``: no penalty before a, the full weights from b on, linear
    between. None: the full weights from the first epoch."""

    @model_validator(mode="after")
    def _ramp_rises(self) -> PenaltyConfig:
        if self.ramp is not None and not 0 <= self.ramp[0] <= self.ramp[1] <= 1:
            raise ValueError(
                f"ramp must be two shares 0 <= a <= b <= 1 of max_epochs, got {self.ramp}"
            )
        return self

    @property
    def active(self) -> bool:
        """Whether any weight is positive."""
        weights = (
            self.residual_weight,
            self.residual_max_weight,
            self.rate_weight,
            self.jacobian_weight,
        )
        return max(*weights, self.agreement_weight, self.row_sum_weight) > 0


class SolveConfig(_Frozen):
    """What is random in the solves of training, so that a recurrence learns to rest instead of a
    horizon (:mod:`sheafdeq.training.solving`). Scores are always taken by the model's own solver,
    from its own start, without noise.
    """

    steps: tuple[int, int] | None = None
    """Each update iterates a number of steps drawn uniformly from a..b. None: the model's K."""
    random_start: float = Field(default=0.0, ge=0, le=1)
    """Share of the updates that start at s exp(N(0, 1)) in every coordinate instead of the model's
    own start; the scale s is log-uniform in ``start_scale``."""
    start_scale: tuple[float, float] | None = None
    """Smallest and largest scale of the random starts."""
    step_noise: float = Field(default=0.0, ge=0)
    """Standard deviation of log-normal noise: step k reads z_k exp(noise N(0, 1)) instead of z_k.
    With a residual penalty this also punishes amplification in random directions."""
    detached_steps: tuple[int, int] | None = None
    """A number of steps drawn uniformly from a..b that precede the others and carry no gradient."""

    @model_validator(mode="after")
    def _consistent(self) -> SolveConfig:
        for name, smallest in (("steps", 1), ("detached_steps", 0)):
            span = getattr(self, name)
            if span is not None and not smallest <= span[0] <= span[1]:
                raise ValueError(f"{name} must be a range {smallest} <= a <= b, got {span}")
        if (self.start_scale is not None) != (self.random_start > 0):
            raise ValueError(
                "random_start (a share above 0) and start_scale (a range) need each other"
            )
        if self.start_scale is not None and not 0 < self.start_scale[0] <= self.start_scale[1]:
            raise ValueError(f"start_scale must be a range 0 < a <= b, got {self.start_scale}")
        return self

    @property
    def active(self) -> bool:
        """Whether training solves differ from the model's own."""
        return self != SolveConfig()


class AugmentationConfig(_Frozen):
    """Changes of the training graphs, drawn anew for each update and never seen by a score
    (:mod:`sheafdeq.training.augmentation`). Edge features, differences of node features among
    them, stay as they are unless ``edge_noise`` says otherwise: what is blurred is where a node
    is, not how far its neighbours are.
    """

    feature_noise: float = Field(default=0.0, ge=0)
    """Standard deviation of Gaussian noise on every node feature: positions cannot be memorised."""
    feature_shift: float = Field(default=0.0, ge=0)
    """Standard deviation of one Gaussian offset for each graph, added to the features of all its
    nodes: regions of the feature space cannot be memorised."""
    edge_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Share of the edges that are removed; the two directions of an edge go together, and degrees
    are those of the remaining graph."""
    edge_noise: float = Field(default=0.0, ge=0)
    """Standard deviation of log-normal noise: every edge feature is multiplied by exp(noise N(0,
    1)), so that an edge cannot be recognised by exact features either."""

    @property
    def active(self) -> bool:
        """Whether training graphs are changed at all."""
        return self != AugmentationConfig()


class TrainingConfig(_Frozen):
    """One run. Defaults are the paper's protocol: Adam 1e-2, clipping at norm 1, and the warm-up,
    stable, decay schedule of its Appendix "Comparison Architectures". The lengths of warm-up and
    decay are not printed there; a tenth and a fifth of ``max_epochs`` are our reading
    (docs/training.md says what it rests on).

    ``patience=None`` takes the task's (200 or 500). ``init_from`` is a run directory, checkpoint or
    run id to start from. ``test_every=k`` records the test score at every k-th epoch for figures;
    selection never sees it. ``stop_at_score`` ends the run at a validation score.
    ``score_every=k`` scores the validation nodes at every k-th epoch and at the last one only:
    where an epoch is several updates, scoring is a pass of its own and a third of the cost. It
    goes with ``keep="last"``, where scores decide nothing.
    ``graphs_per_update=k`` makes an epoch several updates, each on k of the training graphs in
    random order (None: one update on all of them, the paper's). ``keep="last"`` keeps the last
    parameters instead of those with the best validation score: for fine-tuning towards something
    the score does not see. ``weight_average=a`` scores and keeps an exponential average of the
    parameters, average <- a average + (1 - a) parameters after each update, instead of the
    parameters themselves (:mod:`sheafdeq.training.average`). ``steps``, ``width`` knobs of the
    model are its options, not ours.
    """

    task: TaskConfig
    model: ModelConfig
    seed: int = Field(default=42, ge=0, lt=2**63)
    learning_rate: float = Field(default=1e-2, gt=0)
    weight_decay: float = Field(default=5e-4, ge=0)
    clip_norm: float | None = Field(default=1.0, gt=0)
    max_epochs: int = Field(default=2000, ge=0)
    patience: int | None = Field(default=None, ge=1)
    schedule: ScheduleConfig = ScheduleConfig()
    penalties: PenaltyConfig = PenaltyConfig()
    solves: SolveConfig = SolveConfig()
    augmentation: AugmentationConfig = AugmentationConfig()
    weight_average: float | None = Field(default=None, gt=0, lt=1)
    threads: int = Field(default=1, ge=1)
    dtype: Literal["float32", "float64"] = "float32"
    init_from: str | None = None
    test_every: int | None = Field(default=None, ge=1)
    stop_at_score: float | None = None
    graphs_per_update: int | None = Field(default=None, ge=1)
    keep: Literal["best", "last"] = "best"
    score_every: int = Field(default=1, ge=1)

    @field_validator("schedule", mode="before")
    @classmethod
    def _schedule_by_name(cls, value: Any) -> Any:
        return {"kind": value} if isinstance(value, str) else value

    @field_validator("task", "model", mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _consistent(self) -> TrainingConfig:
        if self.penalties.steps is not None and not self.penalties.active:
            raise ValueError("penalties.steps has no effect without a penalty weight")
        if self.penalties.ramp is not None and not self.penalties.active:
            raise ValueError("penalties.ramp has no effect without a penalty weight")
        if self.score_every > 1:
            if self.graphs_per_update is None:
                raise ValueError(
                    "score_every needs graphs_per_update: with one update an epoch the score comes "
                    "with the pass that trains"
                )
            if self.keep != "last" or self.schedule.kind == "plateau":
                raise ValueError(
                    'score_every needs keep = "last" and no plateau schedule: the best epoch and '
                    "the plateau need the score of every epoch"
                )
        return self

    @staticmethod
    def parse(values: Any, source: str = "configuration") -> TrainingConfig:
        """Check plain values; :class:`OptionError` names the first key that is wrong."""
        try:
            return TrainingConfig.model_validate(values)
        except ValidationError as error:
            raise OptionError(f"{source}: {describe(error)}") from error

    @staticmethod
    def of_record(values: Mapping[str, Any], source: str) -> TrainingConfig:
        """The configuration of a stored run. Older records give the warm-up as a whole number of
        epochs."""
        return TrainingConfig.parse(with_warmup_share(values), source)

    @staticmethod
    def read(path: str | Path) -> TrainingConfig:
        """Read a TOML file."""
        values = read_toml(Path(path))
        if "task" in values:
            values["task"] = with_places(values["task"], Path(path).parent)
        return TrainingConfig.parse(values, str(path))

    def replace(self, **changes: Any) -> TrainingConfig:
        """A checked copy with some fields replaced."""
        return TrainingConfig.parse({**self.payload(), **changes})

    def payload(self) -> dict[str, Any]:
        """Plain JSON values, every default written out, except of fields that older records
        lack."""
        values = self.model_dump(mode="json")
        for holder, key, default in (
            (values, "graphs_per_update", None),
            (values, "keep", "best"),
            (values["task"], "files", None),
            (values["penalties"], "jacobian_weight", 0.0),
            (values["penalties"], "agreement_weight", 0.0),
            (values["penalties"], "ramp", None),
            (values["penalties"], "row_sum_weight", 0.0),
            (values["penalties"], "row_sum_target", 0.9),
            (values, "solves", SolveConfig().model_dump(mode="json")),
            (values, "augmentation", AugmentationConfig().model_dump(mode="json")),
            (values, "weight_average", None),
            (values, "score_every", 1),
        ):
            if holder[key] == default:
                del holder[key]
        return values

    @property
    def title(self) -> str:
        """One line for progress displays."""
        options = "".join(f" {key}={value}" for key, value in self.model.options.items())
        level = f" level {self.task.level}" if self.task.level is not None else ""
        split = f" split {self.task.split}" if self.task.split is not None else ""
        return f"{self.task.title}{level}{split}, {self.model.name}{options}, seed {self.seed}"


def with_places(task: Any, folder: Path) -> Any:
    """The values of a task with its files looked for in ``folder``, the one of the TOML file that
    names them."""
    if not isinstance(task, dict) or not isinstance(task.get("files"), dict):
        return task
    files = {
        kind: str((folder / path).resolve()) if isinstance(path, str) else path
        for kind, path in task["files"].items()
    }
    return {**task, "files": files}


def with_warmup_share(values: Mapping[str, Any]) -> dict[str, Any]:
    """A stored configuration with its warm-up as a share of ``max_epochs``.

    Records made before the share had a whole number of epochs there; records made since have a
    float.
    """
    schedule = values.get("schedule")
    warmup = schedule.get("warmup") if isinstance(schedule, dict) else None
    if not isinstance(schedule, dict) or not isinstance(warmup, int):
        return dict(values)
    epochs = values.get("max_epochs")
    share = min(1.0, warmup / epochs) if isinstance(epochs, int) and epochs > 0 else 0.0
    if share + schedule.get("decay", 0.0) > 1:  # a constant rate, whose warm-up means nothing
        share = 0.0
    return {**values, "schedule": {**schedule, "warmup": share}}


def describe(error: ValidationError) -> str:
    """The first complaint of pydantic in our words: key, what is wrong, what came."""
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"]) or "configuration"
    if first["type"] == "extra_forbidden":
        return f"unknown key {key!r}{suggestion(str(first['loc'][-1]), _KEYS)}"
    return f"{key}: {first['msg']}, got {reprlib.repr(first.get('input'))}"


_KEYS = [
    key
    for part in (
        TrainingConfig,
        TaskConfig,
        ModelConfig,
        ScheduleConfig,
        PenaltyConfig,
        SolveConfig,
        AugmentationConfig,
    )
    for key in part.model_fields
]
