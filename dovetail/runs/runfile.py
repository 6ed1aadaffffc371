"""The run file: its keys, their defaults, and the values that its names stand for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    create_model,
    field_validator,
    model_validator,
)

from dovetail import methods
from dovetail.errors import ConfigError
from dovetail.files import check_is_run, closed, merge, override, read_run
from dovetail.methods.validation import validate
from dovetail.node.engines import EngineSection, InProcessSection, any_engine, kinds, section_of
from dovetail.runs.partitions import AnyPartition, shares
from dovetail.runs.samplers import Kind as Sampling
from dovetail.settings.labels import Kind, Label, with_task
from dovetail.settings.models import Calibrate, ClassWeights, Compute, Threshold
from dovetail.settings.section import Section
from dovetail.settings.sources import is_query

TrackerName = Literal["tensorboard", "mlflow"]

S = TypeVar("S", bound=BaseModel)


class DataSection(Section):
    """Which data, and who holds which part of it."""

    # built in, a .csv, .parquet or .npz file, a folder of images, a SELECT
    source: str
    folders: tuple[str, ...] = ()  # other folders, whose tables patterns and links may name, too
    # the column to predict, or several as a list, or { time = COLUMN, event = COLUMN }, or
    # { count = COLUMN, exposure = COLUMN }
    label: Label | None = None
    id: str | None = None  # the column that names each sample; none: the row's number
    # what the label is (docs/tasks.md); a label of several columns says it by itself
    task: Kind = "classification"
    test: float | None = Field(default=None, gt=0, lt=1)  # share of the labelled rows
    test_source: str | None = None  # another file, with the test rows
    split_column: str | None = None  # rows with "test" in it are the test rows
    split_seed: int = 0  # draws the test share and ``rows``, for every seed of the run
    rows: int | None = Field(default=None, ge=2)  # train on so many rows, a fixed subset
    labels: int | None = Field(default=None, ge=1)  # keep so many labels, drawn by the run's seed
    categorical: tuple[str, ...] = ()  # numeric columns that are codes
    max_categories: int = Field(default=100, ge=1)  # more than so many: the rarest are pooled
    partition: AnyPartition

    @model_validator(mode="before")
    @classmethod
    def _task_of_label(cls, values: Any) -> Any:
        return with_task(values)

    @model_validator(mode="after")
    def _no_key_without_effect(self) -> DataSection:
        ways = [key for key in ("test", "test_source", "split_column") if getattr(self, key)]
        if len(ways) > 1:
            raise ValueError(f"give one of {' and '.join(ways)}: each says which rows test")
        if not self.partition.of_tables:
            for key in ("categorical", "max_categories"):
                # A resolved run file writes defaults out.
                if getattr(self, key) != type(self).model_fields[key].default:
                    raise ValueError(f"{key} is for tables; images are cut into strips")
        return self


class SearchSection(Section):
    """Settings to try before the run, until trials or minutes are used up."""

    trials: int = Field(default=20, ge=1)  # settings to try, the file as it is among them
    minutes: float = Field(default=10.0, gt=0, allow_inf_nan=False)  # no trial starts later
    validation: float = Field(default=0.25, gt=0, lt=1)  # share of rows or labels that judges
    seed: int = Field(default=0, ge=0)  # draws the judging rows and the trials
    sampler: Sampling = "random"  # optuna (TPE) learns from earlier trials
    keys: dict[str, tuple[Any, ...]] = Field(default_factory=dict)  # {}: built-in values


class TrackSection(Section):
    """Where to watch the run."""

    to: tuple[TrackerName, ...] = ()  # trackers
    uri: str | None = None  # of MLflow; None: its own default
    experiment: str = "dovetail"  # MLflow's experiment


def _variant(name: str) -> str:
    known = [repr(variant) for variant in methods.variants()]
    if repr(name) not in known:
        raise ValueError(
            f"input should be {', '.join(known[:-1])} or {known[-1]}, got {name!r}"
            f"{methods.did_you_mean_variant(name, methods.variants())}"
        )
    return name


VariantName = Annotated[str, AfterValidator(_variant)]


#: A model that a partner helped in less than half of the steps is told from one it did not.
MIN_PARTICIPATION = 0.5


class RunFile(Section):
    """A whole run file."""

    method: VariantName  # what is trained
    seed: int | None = None  # one run, in the run's own folder
    # one run each, in folders of their own, and their mean and spread
    seeds: tuple[int, ...] | None = None
    # what is trained beside it on the same rows and seeds, to compare with
    baselines: tuple[VariantName, ...] = ()
    evaluate_every: int = Field(default=1, ge=0)  # epochs or rounds; 0: the last only
    checkpoint_every: int = Field(default=1, ge=0)  # epochs or rounds; 0: never
    # smallest share of steps or rounds for each party; below it, train ends with an error
    min_participation: float = Field(default=MIN_PARTICIPATION, ge=0, le=1)
    class_weights: ClassWeights | None = None  # "balanced", or class -> weight
    threshold: Threshold | None = None  # for two classes: a goal, such as "f1"
    # how probabilities are calibrated; all three add prediction sets or intervals
    calibrate: Calibrate | None = None
    device: str = "cpu"  # where to compute: cpu, cuda, cuda:1
    compute: Compute = "float32"  # for products of layers; "bf16" needs a processor that has it
    data: DataSection | None = None  # simulation: one pooled data set and a partition
    parties: tuple[str, ...] | None = None  # party files, instead of [data]
    active: str | None = None  # who drives, if several party files have labels
    # with party files: share of the labelled rows that test; 0: none
    test: float | None = Field(default=None, ge=0, lt=1)
    # hashes of party files, tables and alignments; written, not read
    sha256: dict[str, str] = Field(default_factory=dict)
    passive: dict[str, Any] = Field(default_factory=dict)
    engine: EngineSection = InProcessSection()
    search: SearchSection | None = None  # settings to choose on validation rows, before the run
    track: TrackSection = TrackSection()
    # name -> keys to change with dovetail train --recipe NAME
    recipes: dict[str, dict[str, Any]] = Field(default_factory=dict)

    @field_validator("test")
    @classmethod
    def _none_tests(cls, test: float | None) -> float | None:
        return test or None

    @model_validator(mode="after")
    def _one_kind_of_seed(self) -> RunFile:
        if self.seed is not None and self.seeds is not None:
            raise ValueError("give seed or seeds, not both")
        if self.seeds is not None and len(set(self.seeds)) < max(1, len(self.seeds)):
            raise ValueError(f"seeds must be one or more different numbers, got {list(self.seeds)}")
        return self

    @model_validator(mode="after")
    def _one_kind_of_data(self) -> RunFile:
        if self.engine.job:
            if self.data is not None:
                raise ValueError(
                    f'with engine.kind = "{self.engine.kind}" every party reads its own file: '
                    "leave [data] out"
                )
        elif self.engine.joined and methods.coordinated(self.method):
            if self.data is not None or self.parties is not None:
                raise ValueError(
                    f"{self.method!r} is driven by a coordinator without data: leave [data] and "
                    "parties out; the parties join as engine.partners names them"
                )
        elif (self.data is None) == (self.parties is None):
            raise ValueError(
                "give either [data] with a partition (simulation) or parties = [...], party files"
            )
        if self.parties is not None and self.passive:
            raise ValueError(
                "[passive] is for simulation; with parties = [...] each party's own file has its "
                "settings, below [apfed]"
            )
        elsewhere = self.engine.job  # at the site of whoever drives
        only_there = self.active is not None or self.test is not None
        if self.parties is None and not elsewhere and only_there:
            raise ValueError("active and test go with parties; in simulation set them in [data]")
        return self

    @model_validator(mode="after")
    def _partners_are_elsewhere(self) -> RunFile:
        coordinated = methods.coordinated(self.method)
        if self.engine.joined and not coordinated and len(self.parties or ()) != 1:
            raise ValueError(
                f'with engine.kind = "{self.engine.kind}" parties names one file, the driver\'s '
                "own; the others are named in engine.partners, and their files stay with them"
            )
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """For a process of a cluster, whose class of run files is made there."""
        return _of_state, (self.__getstate__(),)

    def settings(self, method: str, kind: type[S], /) -> S:
        """The run's settings of a method, which are of this kind."""
        section = getattr(self, method)
        assert isinstance(section, kind)
        return section

    def all_seeds(self) -> tuple[int, ...]:
        """The seeds to run, one folder each; 0 where the file names none."""
        return self.seeds or (self.seed or 0,)


def _of_state(state: dict[Any, Any]) -> RunFile:
    run = object.__new__(run_file(state["__dict__"]["engine"].kind))
    run.__setstate__(state)
    return run


def load_run(path: Path, *, recipe: str | None = None, overrides: tuple[str, ...] = ()) -> RunFile:
    """A run file, or FILE:CELL of a grid file, with a recipe and ``key=value`` overrides applied.

    Raises:
        ConfigError: what does not fit, naming the file and the key.
    """
    return check_run(_values(path, recipe, overrides), where=str(path))


def read_settings(path: Path, *, overrides: tuple[str, ...] = ()) -> RunFile:
    """The settings of a run file, without asking its method, which would read torch.

    Raises:
        ConfigError: a key or value that does not fit.
    """
    return _of_values(_values(path, None, overrides), where=str(path))[str(path)]


def _values(path: Path, recipe: str | None, overrides: tuple[str, ...]) -> dict[str, Any]:
    """The tables of a run file, with a recipe and overrides applied, and paths as from here."""
    values = read_run(path)
    check_is_run(values, path)
    if recipe is not None:
        recipes = _of_values(values, where=str(path))[str(path)].recipes
        if recipe not in recipes:
            names = ", ".join(sorted(recipes)) or "none"
            raise ConfigError(f"{path} has no recipe {recipe!r}; its recipes: {names}")
        values = merge(values, recipes[recipe])
    for change in overrides:
        values = merge(values, override(change))
    data = values.get("data")
    if isinstance(data, dict):
        if any(is_query(str(data.get(key))) for key in ("source", "test_source")):
            named = data.get("folders", [])
            if isinstance(named, list):  # a finished run's names the first one's folder first
                named = [*named, "."] if named else ["."]
                data["folders"] = [str((path.parent / str(each)).resolve()) for each in named]
        named = data.get("folders")
        named = named if isinstance(named, list) else []  # what is none is refused below
        reach = [path.parent, *(path.parent / str(each) for each in named)]
        for key in ("source", "test_source"):
            beside = _existing(path.parent, data.get(key))
            if beside is not None:  # paths are relative to the run file
                if why := closed(beside, reach):
                    raise ConfigError(f"{path}: data.{key}: {why}")
                data[key] = str(beside.resolve())
        partition = data.get("partition")
        if isinstance(partition, dict) and isinstance(partition.get("assignment"), str):
            file = path.parent / partition["assignment"]
            if why := closed(file, reach):
                raise ConfigError(f"{path}: data.partition.assignment: {why}")
            partition["assignment"] = shares(file)
    if isinstance(values.get("parties"), list):
        values["parties"] = [str((path.parent / str(file)).resolve()) for file in values["parties"]]
    engine = values.get("engine")
    for key in ("certificates", "proxy_ca"):
        if isinstance(engine, dict) and isinstance(engine.get(key), str):
            engine[key] = str((path.parent / engine[key]).resolve())
    if isinstance(engine, dict) and isinstance(engine.get("place"), str):
        engine["place"] = place_of(path.parent, engine["place"])
    return values


def place_of(folder: Path, place: str) -> str:
    """Where letters lie: a folder as it is from here, or an address as it is."""
    return place if "://" in place or not place else str((folder / place).resolve())


def _existing(folder: Path, source: Any) -> Path | None:
    """The file or folder that a source names, if it is one; a query is none."""
    try:
        path = folder / source
        return path if source and path.exists() else None
    except (TypeError, ValueError, OSError):  # no text, or no path: a query can be too long
        return None


def check_run(values: Mapping[str, Any], *, where: str) -> RunFile:
    """The run file with these values; also checks every recipe and passive party in it."""
    runs = _of_values(values, where=where)
    for what, run in runs.items():
        methods.check(run, where=what)
    return runs[where]


def _of_values(values: Mapping[str, Any], *, where: str) -> dict[str, RunFile]:
    """Run files by the name that errors have for them: with these values, and with each of its
    recipes."""
    run = _of_kind(values, where)
    varied = {f"{where}, recipe {name!r}": merge(values, run.recipes[name]) for name in run.recipes}
    return {where: run, **{what: _of_kind(varied[what], what) for what in varied}}


def _of_kind(values: Mapping[str, Any], where: str) -> RunFile:
    """The run file with these values; of the engines, only the one that it names is imported."""
    engine = values.get("engine", {})
    kind = engine.get("kind", "inprocess") if isinstance(engine, Mapping) else None
    return validate(run_file(kind if kind in kinds() else None), values, where=where)


def run_file(engine: str | None = None) -> type[RunFile]:
    """The run file with a section for each method, and an engine of this kind; None: of any."""
    every = methods.records()
    if taken := every.keys() & RunFile.model_fields.keys():
        raise ConfigError(f"no method can be called {sorted(taken)[0]!r}: run files have that key")
    return _of_sections(tuple((name, each.Settings) for name, each in every.items()), engine)


@cache
def _of_sections(
    sections: tuple[tuple[str, type[BaseModel]], ...], engine: str | None
) -> type[RunFile]:
    fields: Any = {name: (section, section()) for name, section in sections}
    kind = any_engine() if engine is None else section_of(engine)
    fields["engine"] = (kind, InProcessSection())  # a file without [engine] names that one
    return create_model("RunFile", __base__=RunFile, **fields)


def resolved(run: RunFile, seed: int) -> dict[str, Any]:
    """The run file with every default written out, for one seed; running it repeats the run."""
    values = run.model_copy(update={"seed": seed}).model_dump(
        mode="json", exclude_none=True, exclude={"seeds", "recipes", "track", "search"}
    )
    if run.min_participation == MIN_PARTICIPATION:  # runs from before it are of the same settings
        del values["min_participation"]
    if run.compute == "float32":
        del values["compute"]
    if run.data is None:
        return values
    if not run.data.folders:
        del values["data"]["folders"]
    for key in ("source", "test_source"):
        source = _existing(Path(), values["data"].get(key))
        if source is not None:
            values["data"][key] = os.path.abspath(source)
    return values
