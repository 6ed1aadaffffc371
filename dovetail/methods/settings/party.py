"""[party] and [policy] of a party file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from dovetail.errors import ConfigError
from dovetail.methods.settings.shared import SealedLimits
from dovetail.settings.alignment import CHECKED, MAX_ALIGNMENTS, IdAs
from dovetail.settings.encode import Encode
from dovetail.settings.events import EventsSection
from dovetail.settings.labels import Kind, Label, with_task
from dovetail.settings.section import PartyName, Section
from dovetail.settings.sources import is_database_url
from dovetail.settings.teachers import TeacherWeights

if TYPE_CHECKING:
    from dovetail.alignment import MatchKey


class PartySection(Section):
    """Whose table it is, where it is, and which columns mean what."""

    name: PartyName  # unique among the parties
    table: str  # .csv, .parquet, SELECT, URL of a database or lake, .npz, folder of images
    query: str | None = None  # for a database URL
    folders: tuple[str, ...] = ()  # other folders, whose tables patterns and links may name, too
    # Pictures of the table's samples, beside it: .npz, or a folder of files named by id. HyFEM.
    images: str | None = None
    # the column that names each sample, or several that do so together; a folder's "file"
    id: str | tuple[str, ...]
    # the column to predict, or several as a list, or { time = COLUMN, event = COLUMN }, or
    # { count = COLUMN, exposure = COLUMN }; its owner drives. Of a folder of images: "folder"
    label: Label | None = None
    # what the label is (docs/tasks.md); a label of several columns says it by itself
    task: Kind = "classification"
    columns: tuple[str, ...] = ("*",)  # which columns to use, as globs; a leading - removes
    blocks: dict[str, tuple[str, ...]] | None = None  # block -> columns; instead of columns
    categorical: tuple[str, ...] = ()  # numeric columns that are codes, as globs
    max_categories: int = Field(default=100, ge=1)  # more than so many: the rarest are pooled
    encode: dict[str, Encode] = Field(default_factory=dict)  # column -> how it is read
    # compare ids as they are written, without regard to case, or as decimal digits without zeros
    # before them; all parties must say the same
    id_as: IdAs = "text"
    # Match keys in place of an id, tried in order: columns, or functions of columns such as
    # "sounds(surname)"; all parties list the same (docs/alignment.md).
    match: tuple[tuple[str, ...], ...] = ()
    match_columns: dict[str, str] = Field(default_factory=dict)  # what keys call it -> own column
    # whether 03/07/1980 is the third of July or the seventh of March
    match_dates: Literal["day-first", "month-first"] = "day-first"
    # country of telephone numbers without a country code, such as "GB"
    match_region: str | None = None
    # column with the true identity, to measure how well match keys work
    match_truth: str | None = None
    # column with the day at which a row is to be predicted: inspect warns of later dates, and no
    # model learns from it
    index_date: str | None = None
    events: EventsSection | None = None  # of a table with several rows a sample: visits, payments
    # The party's own Ray cluster, for blinding ids, encoding texts and pictures, fitting learners
    # and multiplying ciphertexts: "auto", HOST:PORT or ray://HOST:PORT; none: this machine.
    compute: str | None = None
    # Weights of TabICL, which teach a student of this party's columns, if it drives APFed.
    tabicl: TeacherWeights | None = None
    # A list of revoked certificates (CRL) that must be there; else crl.pem beside the certificate,
    # where there is one.
    revoked: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _task_of_label(cls, values: Any) -> Any:
        return with_task(values)

    @model_validator(mode="after")
    def _columns_or_blocks(self) -> PartySection:
        if self.blocks is not None and self.columns != ("*",):
            raise ValueError("give columns or blocks, not both")
        if self.id_as == "digits" and not isinstance(self.id, str):
            raise ValueError('id_as = "digits" is for an id of one column')
        if self.query is not None and not is_database_url(self.table):
            raise ValueError("query is for a database URL; write the SELECT as table instead")
        return self

    @model_validator(mode="after")
    def _keys(self) -> PartySection:
        try:
            keys = self.match_keys()
        except ConfigError as error:
            raise ValueError(str(error)) from None
        called = {name for key in keys for name in key.columns}
        for name in self.match_columns:
            if name not in called:
                raise ValueError(
                    f"match_columns names {name!r}, which no key of match has; they have "
                    f"{', '.join(sorted(called)) or 'none'}"
                )
        return self

    def match_keys(self) -> tuple[MatchKey, ...]:
        """The keys that stand in for an id.

        Raises:
            ConfigError: one that cannot be.
        """
        if not self.match:
            return ()
        from dovetail.alignment import match_key

        return tuple(map(match_key, self.match))

    def matching(self) -> dict[str, str]:
        """Columns by the name that keys have for them."""
        every = (name for key in self.match_keys() for name in key.columns)
        return {name: self.match_columns.get(name, name) for name in every}


class PrivacySection(Section):
    """Limits on what one of its samples may cost in one run, towards one driver."""

    epsilon: float = Field(gt=0, allow_inf_nan=False)  # of one row, towards one driver
    delta: float = Field(default=1e-5, gt=0, lt=1)  # of that epsilon


#: Algorithms whose releases of rows are noised and counted, or say nothing of rows.
_COUNTED = ("align", "apfed-mixed", "tvfl", "fedoptimus", "chfl", "hyfem", "survival")


class PolicySection(Section):
    """Rules on what the party agrees to."""

    # What it takes part in. "apfed" is APFed-S; "apfed-mixed" the paper's, -R and -C too, by the
    # party's own loss. "tvfl" (the classic baseline) sends codes of its rows; of "chfl", "hyfem"
    # and "fedoptimus" the coordinator sets the settings.
    algorithms: tuple[str, ...] = ("align", "apfed")
    drivers: tuple[str, ...] | None = None  # names that may drive; None: any
    # names of messages, such as "apfed.Codes"; None: all of its algorithms. Save and Restore, which
    # keep a state at the party's own site, are always answered.
    messages: tuple[str, ...] | None = None
    # the largest message that is read, in MiB
    max_message_mb: float = Field(default=256, gt=0, le=4096, allow_inf_nan=False)
    max_rows: int = Field(
        default=100_000, ge=1
    )  # most rows in one message; vectors of weights have none
    min_rows: int = Field(default=16, ge=1)  # least different samples in a message
    max_uses: int = Field(default=1000, ge=1)  # answers about one sample in one run
    max_begins: int = Field(default=1, ge=1)  # how often one run may start
    # most rows in a message that brings codes; nearly equal codes, which could read columns, are
    # refused, too
    max_codes: int = Field(default=1024, ge=1)
    max_runs_per_day: int = Field(default=200, ge=1)  # of a driver; baselines, seeds, trials count
    # memory for networks of all runs of a driver together, in MiB
    max_memory_mb: float = Field(default=2048, gt=0, allow_inf_nan=False)
    # disk for what is saved of one driver's runs together, in MiB; the oldest go first
    max_disk_mb: float = Field(default=4096, gt=0, allow_inf_nan=False)
    # what an alignment may find out: which ids are shared, or how many
    align_modes: tuple[Literal["intersection", "cardinality"], ...] = (
        "intersection",
        "cardinality",
    )
    min_ids: int = Field(default=0, ge=0)  # smallest set of ids to compare with
    # ids that a driver may compare in 24 hours; None: 5 times its own and 10,000
    max_ids: int | None = Field(default=None, ge=1)
    max_alignments: int = Field(default=MAX_ALIGNMENTS, ge=0)  # of a driver in 24 hours
    # count runs, ids and alignments of all drivers together, not of each
    together: bool = False
    check_places: int = Field(
        default=CHECKED, ge=1
    )  # rows that a driver claims to share and must prove
    # "signed": runs only of proposals that all of their parties have signed (dovetail review).
    approval: Literal["policy", "signed"] = "policy"
    # what APFed-S may give about each row
    sealed: SealedLimits = SealedLimits()
    privacy: PrivacySection | None = None  # what one sample may cost in a run; None: nothing counts

    @model_validator(mode="after")
    def _is_counted(self) -> PolicySection:
        others = [name for name in self.algorithms if name not in _COUNTED]
        if self.privacy is not None and others:
            raise ValueError(
                f"privacy is a budget of epsilon, and what {others[0]!r} sends is not counted; "
                f"take it out of algorithms, which then may have {', '.join(_COUNTED)}"
            )
        return self

    def counted(self, driver: str) -> str:
        """Whose numbers of APFed-S are counted together: a driver's, or "" of all."""
        return "" if self.together else driver

    @property
    def max_message_bytes(self) -> int:
        return int(self.max_message_mb * 2**20)
