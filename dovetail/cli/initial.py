"""Asks for what a first party file and run file need, proposes it from the table, writes them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from dovetail import data as dd
from dovetail.cli import output
from dovetail.data.databases import read_database
from dovetail.data.doubts import OF_LABEL, label_doubts
from dovetail.data.fitted import counts_of
from dovetail.data.kinds import ID, texts_of
from dovetail.data.other_kinds import refuse_workbook
from dovetail.data.survey import (
    EVENTS_FROM,
    Surveyed,
    doubts_in,
    lost_in,
    propose_id,
    propose_label,
    propose_per,
    propose_task,
    propose_time,
    survey,
)
from dovetail.data.tables import read_table
from dovetail.data.wording import class_shares
from dovetail.errors import ConfigError, DovetailError
from dovetail.files import did_you_mean, toml_tables
from dovetail.methods.aligning import zeros_apart
from dovetail.methods.validation import validate
from dovetail.node.partyfile import open_site
from dovetail.node.partysections import party_file
from dovetail.runs.runfile import check_run
from dovetail.runs.starting import Start, party_text, run_text
from dovetail.settings.encode import Asked, Encode
from dovetail.settings.mending import repeated_text
from dovetail.settings.sources import is_query, is_table_path


@dataclass(frozen=True)
class Answers:
    """Answers that the command line gives; None is asked, or proposed."""

    table: str | None = None
    query: str | None = None
    name: str | None = None
    id: tuple[str, ...] = ()
    label: str | None = None
    task: str | None = None
    role: str | None = None
    partners: str | None = None
    listen: str | None = None
    driver: str | None = None
    address: str | None = None
    out: Path = Path()


def run_init(answers: Answers, *, yes: bool, force: bool, quiet: bool) -> None:
    """Ask what is not said, look at the table, write the files, say what comes next.

    Raises:
        ConfigError: something is missing that cannot be asked or proposed, or a file is there.
        DataError: a table that cannot be read.
    """
    asking = _Asking(answers, not yes and sys.stdin.isatty())
    print_line = _hushed if quiet else output.print_line
    source = asking.answer("table", "Your table (.csv, .parquet, a SELECT or a database URL)")
    source = _beside(source, answers.out)
    table = _read(source, answers.query, answers.out)
    lost = {name: doubt for name, doubt in lost_in(table, table.names) if doubt.encode}
    read_so = {name: Encode(**doubt.encode) for name, doubt in lost.items()}
    table_read = table.asking(Asked(read_so))
    columns = survey(table_read)
    print_line(f"{source}: {table.num_rows:,} rows, {len(columns)} columns")
    role = asking.role()
    proposed_id = propose_id(columns, propose_per(columns, table))
    id = answers.id or (asking.answer("id", "Column that names each row", proposed_id),)
    events = _events(id, columns, table, asking, print_line)
    _there("--id", id, columns)
    if events is None:
        _name_rows(id, columns, table, source)
    label = task = None
    if role == "owner":
        label = asking.answer("label", "Column to predict", propose_label(columns, besides=id))
        _there("--label", (label,), columns)
        if label in lost and not lost[label].encode.keys() <= OF_LABEL:
            del lost[label], read_so[label]
        table = table.asking(Asked({label: read_so[label]} if label in read_so else {}))
        (target_column,) = survey(table.only([label]))
        proposed_task = propose_task(target_column)
        task = asking.answer("task", "classification or regression", proposed_task)
        if task not in ("classification", "regression"):
            raise ConfigError(f"--task is classification or regression, got {task!r}")
        other = "" if asking.asks or answers.label else "; proposed: --label names another"
        print_line(
            f"label {label!r}: {target_column.distinct:,} different values, "
            f"{table.num_rows - target_column.missing:,} rows have one: {task}{other}"
        )
        labels = table.label(label)
        for doubt in label_doubts(labels) if label not in lost else ():
            print_line(f"  look at:  {label!r} {doubt.sentence(label)}")
        if task == "classification" and (shares := class_shares(counts_of(labels))):
            print_line(f"  {shares}")
    stem = Path(source).stem if is_table_path(Path(source)) else role
    name = asking.answer("name", "Your party's name", stem)
    features = [column for column in columns if column.name not in {*id, label}]
    left_out = [] if events else _left_out(features, table_read, print_line)
    apart = {*id, *(column.name for column in left_out)}
    lost = {name: lost[name] for name in lost if name == label or not (events or name in apart)}
    for column_name, doubt in lost.items():
        print_line(f"  read so:  {column_name!r} {doubt.says}: {doubt.line(column_name)}")
    start = Start(
        name=name,
        table=source,
        query=answers.query,
        id=tuple(id),
        label=label,
        task=task or "classification",
        events=events,
        columns=("*", *(f"-{column.name}" for column in left_out)),
        encode={doubt.line(each): doubt.says for each, doubt in lost.items()},
        why_not={column.name: column.why_not for column in left_out},
        **asking.others(role),
    )
    files = {f"{name}.toml": party_text(start)}
    validate(
        party_file(), toml_tables(files[f"{name}.toml"], where=f"{name}.toml"), where=f"{name}.toml"
    )
    if role == "owner":
        files["run.toml"] = run_text(start)
        check_run(toml_tables(files["run.toml"], where="run.toml"), where="run.toml")
    _write(answers.out, files, force=force)
    print_line("")
    print_line("\n".join(f"Wrote {answers.out / each}, with every key explained" for each in files))
    others = start.partners if start.driver is None else (start.driver,)
    for sentence in _apart([answers.out / f"{each}.toml" for each in (name, *others)]):
        print_line(f"WARNING: {sentence}")
    if not quiet:
        output.print_text("next.txt", start=start, address=answers.address, out=answers.out)


def _apart(files: Sequence[Path]) -> list[str]:
    """Remarks on the ids of parties whose files are here; others are not looked at."""
    sites = []
    for file in files:
        with suppress(DovetailError):
            sites.append(open_site(file))
    return zeros_apart({site.name: site for site in sites}) if len(sites) > 1 else []


def _hushed(text: str) -> None: ...


@dataclass(frozen=True)
class _Asking:
    """Answers given, and whether missing ones can be asked."""

    answers: Answers
    asks: bool

    def answer(self, name: str, question: str, proposed: str | None = None) -> str:
        """Answer that was given; else one that is asked for; else the proposed one.

        Raises:
            ConfigError: nobody can be asked, and nothing is proposed.
        """
        given = getattr(self.answers, name)
        if isinstance(given, str):
            return given
        if self.asks:
            return str(typer.prompt(question, default=proposed)).strip()
        if proposed is None:
            raise ConfigError(
                f"--{name} is missing, nothing in the table suggests it and nobody can be asked "
                f"here; {question[0].lower()}{question[1:]}: say --{name} VALUE"
                + (", or --role partner for a table without one" if name == "label" else "")
            )
        return proposed

    def role(self) -> str:
        answers = self.answers
        has_driver = answers.driver is not None and answers.label is None
        role = self.answer(
            "role",
            "owner (you have the labels and train) or partner (you help one who does)",
            "partner" if has_driver else "owner",
        )
        if role not in ("owner", "partner"):
            raise ConfigError(f"--role is owner or partner, got {role!r}")
        if role == "partner" and answers.label is not None:
            raise ConfigError(
                "a partner has no label to predict; leave --label out, or say --role owner"
            )
        return role

    def others(self, role: str) -> dict[str, Any]:
        """Other parties that take part."""
        if role == "partner":
            return {"driver": self.answer("driver", "The name of who trains (its party's name)")}
        answers, given = self.answers, self.answers.partners
        if given is None and self.asks:
            given = typer.prompt(
                "Your partners' names, with commas between (none: train alone)", default=""
            )
        partners = tuple(name.strip() for name in (given or "").split(",") if name.strip())
        here = tuple(name for name in partners if (answers.out / f"{name}.toml").exists())
        if here and here != partners:
            raise ConfigError(
                f"the party file of {here[0]!r} is here and others' are not; all partners are here "
                "or all are elsewhere"
            )
        if not here:
            from dovetail.network.certificates import certificate_name

            partners = tuple(map(certificate_name, partners))
        listen = answers.listen or "0.0.0.0:7443"
        return {"partners": partners, "here": bool(here), "listen": listen}


def _beside(source: str, folder: Path) -> str:
    """A file's path as the party file will say it, from its own folder."""
    if is_query(source) or dd.is_database_url(source) or (folder / source).exists():
        return source
    return os.path.relpath(source, folder) if Path(source).is_file() else source


def _read(source: str, query: str | None, folder: Path) -> dd.Table:
    if dd.is_database_url(source):
        return read_database(source, query)
    if query is not None:
        raise ConfigError("--query is for a database URL; write the SELECT as --table instead")
    if not is_query(source) and not is_table_path(Path(source)):
        refuse_workbook(Path(source))
        raise ConfigError(
            f"{source} is no table: dovetail init reads .csv, .tsv, .csv.gz and .parquet files, "
            "queries and databases; how .npz files and folders of images are described is told in "
            "docs/parties.md"
        )
    return read_table(
        source if is_query(source) else os.path.normpath(folder / source), folders=[folder]
    )


def _events(
    id: tuple[str, ...],
    columns: tuple[Surveyed, ...],
    table: dd.Table,
    asking: _Asking,
    print_line: Callable[[str], None],
) -> dict[str, str] | None:
    """[party.events] of a table that has several rows a sample, and their days; None of others."""
    found = [each for each in columns if each.name in id]
    days = [name for name in table.names if table.column(name).is_date]
    if len(id) > 1 or not found or found[0].unique or found[0].missing or not days:
        return None
    rows = found[0].rows_of_value
    if table.num_rows < EVENTS_FROM * found[0].distinct:
        return None
    time, per = propose_time(days), id[0]
    print_line(
        f"{per!r} is in several rows: {found[0].distinct:,} different, {rows[0]:,} rows in the "
        f"middle one, {rows[1]:,} in the one with most. Their counts, sums and means become one "
        f"row a {per} (the section [party.events]), by the days of {time!r}"
    )
    if asking.asks and not typer.confirm("Make one row of them?", default=True):
        return None
    return {"per": per, "time": time}


def _there(option: str, names: tuple[str, ...], columns: tuple[Surveyed, ...]) -> None:
    known = [column.name for column in columns]
    for name in names:
        if name not in known:
            there = f"; there are {', '.join(known)}"
            raise ConfigError(
                f"{option}: there is no column {name!r}{did_you_mean(name, known) or there}"
            )


def _name_rows(
    id: tuple[str, ...], columns: tuple[Surveyed, ...], table: dd.Table, source: str
) -> None:
    """Refuse an id of one column that does not name each row."""
    (column, *_) = (each for each in columns if each.name == id[0])
    if len(id) > 1 or column.unique:
        return
    ids = texts_of(table.column(id[0], ID))
    repeated = repeated_text(ids.tolist(), source, id).replace("table = ", "--table ", 1)
    raise ConfigError(
        f"--id: column {id[0]!r} does not name each row: it has {column.distinct:,} different "
        f"values, {column.missing:,} rows have none; name another, or several that do so together; "
        "several rows a sample, each with a day, are events: [party.events] of docs/parties.md"
        f"{'; ' * bool(repeated)}{repeated}"
    )


def _left_out(
    features: Sequence[Surveyed], table: dd.Table, print_line: Callable[[str], None]
) -> list[Surveyed]:
    """Columns that would teach nothing, told."""
    for column in features:
        if column.why_not:
            print_line(f"  left out: {column.name!r} {column.why_not}")
            continue
        doubted = [doubt.sentence(name) for name, doubt in doubts_in(table, [column.name])]
        for advice in doubted or [column.advice] * bool(column.advice):
            print_line(f"  look at:  {column.name!r} {advice}")
    left_out = [column for column in features if column.why_not]
    if features and len(left_out) == len(features):
        print_line("  no column is left to learn from")
    return left_out


def _write(folder: Path, files: dict[str, str], *, force: bool) -> None:
    there = [str(folder / name) for name in files if (folder / name).exists()]
    if there and not force:
        raise ConfigError(
            f"{' and '.join(there)} {'is' if len(there) == 1 else 'are'} there already; name "
            "another folder (--out) or party (--name), or say --force to replace"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
