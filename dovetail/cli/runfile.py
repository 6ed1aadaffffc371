"""The run file: its keys, their defaults, and the values that its names stand for."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from dovetail.algorithms import apfed
from dovetail.cli.validation import read_toml, validate
from dovetail.errors import ConfigError
from dovetail.evaluation import Stage
from dovetail.models import (
    TABLE_3,
    TABLE_4,
    Convolutional,
    EncoderSpec,
    Head,
    Perceptron,
)


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ConvolutionalSection(Section):
    """A convolutional encoder of one's own."""

    channels: tuple[int, ...]
    kernels: tuple[int, ...]
    strides: tuple[int, ...]
    padding: int = 1


EncoderName = Literal["table-3", "table-4"]
EncoderField = EncoderName | tuple[int, ...] | ConvolutionalSection

_ENCODERS: Mapping[EncoderName, EncoderSpec] = {"table-3": TABLE_3, "table-4": TABLE_4}


def encoder_spec(field: EncoderField) -> EncoderSpec:
    """The encoder that a run file names: widths, a table of the paper, or layers."""
    if isinstance(field, str):
        return _ENCODERS[field]
    if isinstance(field, tuple):
        return Perceptron(field)
    return Convolutional(field.channels, field.kernels, field.strides, field.padding)


class StripsSection(Section):
    """Images cut into strips; setting m-i of the paper is views = m, active = i."""

    kind: Literal["strips"]
    views: int = Field(ge=1)
    active: int = Field(default=1, ge=1)
    axis: Literal["height", "width"] = "height"


def _party_name(name: str) -> str:
    if not re.fullmatch(r"\w[\w .-]{0,99}", name):
        raise ValueError(
            "a party's name begins with a letter or digit and has letters, digits, blanks, dots "
            f"and dashes only, got {name!r}"
        )
    return name


#: Also the name of a folder, in a run's models/.
PartyName = Annotated[str, AfterValidator(_party_name)]


class ColumnsSection(Section):
    """A table's columns by party; names take ``*`` and ``[0-3]``."""

    kind: Literal["columns"]
    parties: dict[PartyName, tuple[str, ...]]
    active: str
    overlap: float | dict[str, float] = 1.0  # share of the active's training rows, by party


class DataSection(Section):
    """Which data, and who holds which part of it."""

    source: str
    label: str | None = None
    id: str | None = None
    task: Literal["classification", "regression"] = "classification"
    test: float | None = Field(default=None, gt=0, lt=1)  # share of the rows
    test_source: str | None = None
    split_column: str | None = None  # rows where it says "test" are the test rows
    split_seed: int = 0  # of the test share and of ``rows``: the same for every seed
    rows: int | None = Field(default=None, ge=2)  # train on a fixed subset of so many
    labels: int | None = Field(default=None, ge=1)  # keep so many labels, drawn by the run's seed
    categorical: tuple[str, ...] = ()  # numeric columns that are codes
    max_categories: int = Field(default=100, ge=1)
    partition: Annotated[StripsSection | ColumnsSection, Field(discriminator="kind")]

    @model_validator(mode="after")
    def _no_key_without_effect(self) -> DataSection:
        ways = [key for key in ("test", "test_source", "split_column") if getattr(self, key)]
        if len(ways) > 1:
            raise ValueError(f"give one of {' and '.join(ways)}: each says which rows test")
        idle = self.model_fields_set & {"categorical", "max_categories"}
        if idle and isinstance(self.partition, StripsSection):
            raise ValueError(f"{sorted(idle)[0]} is for tables; images are cut into strips")
        return self


class ApfedSection(apfed.Config):
    """The active party: its settings and networks."""

    encoder: EncoderField = (64, 32)
    head: tuple[int, ...] = (64,)  # hidden widths
    dropout: float = Field(default=0.5, ge=0, lt=1)  # of the head


class PassiveFields(apfed.PassiveConfig):
    """One passive party: its settings and network."""

    encoder: EncoderField = (64, 32)


class EngineSection(Section):
    """What carries messages."""

    kind: Literal["inprocess"] = "inprocess"


class RunFile(Section):
    """A whole run file."""

    method: Stage
    seed: int | None = None
    seeds: tuple[int, ...] | None = None
    rulers: tuple[Stage, ...] = ()
    evaluate_every: int = Field(default=1, ge=0)  # epochs between test scores; 0: the last only
    device: str = "cpu"
    data: DataSection | None = None  # simulation: one pooled data set and a partition
    parties: tuple[str, ...] | None = None  # or party files, each with a table of its own
    active: str | None = None  # of party files: who drives, where several have labels
    test: float | None = Field(default=None, gt=0, lt=1)  # of party files: share of labelled rows
    sha256: dict[str, str] = {}  # of party files, their tables and alignments; written, not read
    apfed: ApfedSection = ApfedSection()
    passive: dict[str, Any] = {}
    engine: EngineSection = EngineSection()
    recipes: dict[str, dict[str, Any]] = {}

    @model_validator(mode="after")
    def _one_kind_of_seed(self) -> RunFile:
        if self.seed is not None and self.seeds is not None:
            raise ValueError("give seed or seeds, not both")
        if self.seeds is not None and len(set(self.seeds)) < max(1, len(self.seeds)):
            raise ValueError(f"seeds must be one or more different numbers, got {list(self.seeds)}")
        return self

    @model_validator(mode="after")
    def _one_kind_of_data(self) -> RunFile:
        if (self.data is None) == (self.parties is None):
            raise ValueError(
                "give either [data] with a partition (simulation) or parties = [...], party files"
            )
        if self.parties is not None and self.passive:
            raise ValueError(
                "[passive] is for simulation; with parties = [...] each party's own file has its "
                "settings, below [apfed]"
            )
        if self.parties is None and (self.active is not None or self.test is not None):
            raise ValueError("active and test go with parties; in simulation set them in [data]")
        return self

    def all_seeds(self) -> tuple[int, ...]:
        """The seeds to run, one folder each; 0 where the file names none."""
        return self.seeds or (self.seed or 0,)


def load_run(path: Path, *, recipe: str | None = None, overrides: tuple[str, ...] = ()) -> RunFile:
    """A run file with a recipe of its own and ``key=value`` overrides applied.

    Raises:
        ConfigError: what does not fit, naming the file and the key.
    """
    values = read_toml(path)
    if recipe is not None:
        recipes = check_run(values, where=str(path)).recipes
        if recipe not in recipes:
            names = ", ".join(sorted(recipes)) or "none"
            raise ConfigError(f"{path} has no recipe {recipe!r}; its recipes: {names}")
        values = merge(values, recipes[recipe])
    for override in overrides:
        values = merge(values, _override(override))
    data = values.get("data")
    if isinstance(data, dict):
        for key in ("source", "test_source"):
            beside = _existing(path.parent, data.get(key))
            if beside is not None:  # paths are relative to the run file
                data[key] = str(beside.resolve())
    if isinstance(values.get("parties"), list):
        values["parties"] = [str((path.parent / str(file)).resolve()) for file in values["parties"]]
    return check_run(values, where=str(path))


def _existing(folder: Path, source: Any) -> Path | None:
    """The file or folder that a source names, if it is one; a query is none."""
    try:
        path = folder / source
        return path if source and path.exists() else None
    except (TypeError, ValueError, OSError):  # no text, or no path: a query can be too long
        return None


def check_run(values: Mapping[str, Any], *, where: str) -> RunFile:
    """The run file with these values; also checks every recipe and passive party in it."""
    run = validate(RunFile, values, where=where)
    _check_parties(run, where=where)
    for name, recipe in run.recipes.items():
        varied = validate(RunFile, merge(values, recipe), where=f"{where}, recipe {name!r}")
        _check_parties(varied, where=f"{where}, recipe {name!r}")
    return run


def _check_parties(run: RunFile, *, where: str) -> None:
    """Refuse networks that cannot be, and settings for parties that are not in the run."""
    sections: dict[str, ApfedSection | PassiveFields] = {"[apfed]": run.apfed}
    for name, fields in passive_fields(run, where=where).items():
        sections[f"[passive], party {name!r}"] = fields
    for section, settings in sections.items():
        try:
            encoder_spec(settings.encoder)
            if isinstance(settings, ApfedSection):
                Head(settings.head, settings.dropout)
        except ConfigError as error:
            raise ConfigError(f"{where}, {section}: {error}") from None
    names = _party_names(run)
    weighted = run.apfed.trade_off if run.data is not None else 1.0
    for name in weighted if isinstance(weighted, Mapping) else ():
        if name not in names:
            raise ConfigError(
                f"{where}: apfed.trade_off names {name!r}, which is no passive party of this run; "
                f"they are {sorted(names)}"
            )


def merge(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with the tables of ``change`` laid over it."""
    merged = dict(base)
    for key, value in change.items():
        inner = merged.get(key)
        if isinstance(value, Mapping) and isinstance(inner, Mapping):
            value = merge(inner, value)
        merged[key] = value
    return merged


def _override(text: str) -> dict[str, Any]:
    """``a.b=value`` as nested tables; the value is TOML, or else a string."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set takes key=value, for example apfed.epochs=5; got {text!r}")
    try:
        nested: Any = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        nested = value.strip()
    for part in reversed(key.strip().split(".")):
        nested = {part: nested}
    return dict(nested)


def passive_fields(run: RunFile, *, where: str = "run file") -> dict[str, PassiveFields]:
    """Party -> settings: those for all under [passive], then its own under [passive.NAME]."""
    for_all = {key: value for key, value in run.passive.items() if not isinstance(value, Mapping)}
    by_party = {key: value for key, value in run.passive.items() if isinstance(value, Mapping)}
    names = _party_names(run)
    convolutional = by_party.pop("encoder", None)  # a table too, but of layers
    if convolutional is not None:
        for_all["encoder"] = convolutional
    for name in by_party:
        if name not in names:
            raise ConfigError(
                f"{where}: [passive.{name}] is no party of this run; passive parties are "
                f"{sorted(names)}"
            )
    return {
        name: validate(
            PassiveFields,
            {**for_all, **by_party.get(name, {})},
            where=f"{where}, [passive{'.' + name if name in by_party else ''}]",
        )
        for name in names
    }


def _party_names(run: RunFile) -> list[str]:
    """The passive parties' names."""
    if run.data is None:
        return []  # the party files say
    partition = run.data.partition
    if isinstance(partition, StripsSection):
        return [f"view-{i}" for i in range(1, partition.views + 1) if i != partition.active]
    return [name for name in partition.parties if name != partition.active]


def resolved(run: RunFile, seed: int) -> dict[str, Any]:
    """The run file with every default written out, for one seed; running it repeats the run."""
    values = run.model_copy(update={"seed": seed}).model_dump(
        mode="json", exclude_none=True, exclude={"seeds", "recipes"}
    )
    if run.data is None:
        return values
    values["passive"] = {
        name: fields.model_dump(mode="json", exclude_none=True)
        for name, fields in passive_fields(run).items()
    }
    for key in ("source", "test_source"):
        source = _existing(Path(), values["data"].get(key))
        if source is not None:
            values["data"][key] = os.path.abspath(source)
    return values
