"""A pooled data set split among files of parties, where a run needs each party to have its own.

    FOLDER/NAME.csv     the party's rows of training and test part, of the columns that are its
    FOLDER/NAME.toml    its party file

Rows, columns and labels are those that the run file's partition splits; the test rows are drawn
again, as a run of party files draws them: the same share of the labelled rows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from dovetail import data as dd
from dovetail.errors import ConfigError
from dovetail.methods import method_of
from dovetail.methods.method import protocols
from dovetail.runs.runfile import RunFile, check_run
from dovetail.runs.setup import pooled_parts, read_pooled

#: What a party's file calls the column of ids.
_ID = "sample"

#: In a simulation nobody holds anything back.
_POLICY: dict[str, Any] = {
    "min_rows": 1,
    "max_uses": 1_000_000_000,
    "max_runs_per_day": 1_000_000,
    "sealed": {"numbers_per_row": 1_000_000_000},
}


def deal(run: RunFile, folder: Path, *, where: str) -> RunFile:
    """Write what each party of a simulation has; the same run, of these files.

    Raises:
        ConfigError: images, which no table holds.
    """
    section = run.data
    assert section is not None
    train, test = pooled_parts(section, read_pooled(section))
    if not isinstance(train.x, dd.Table):
        raise ConfigError(
            f"{where}: images are split in memory only; write each party's own file and name "
            "them with parties = [...], or run it with dovetail train"
        )
    if section.labels is not None:
        raise ConfigError(
            f"{where}: data.labels draws by the run's seed who keeps a label, and files are the "
            "same for every seed; leave it out"
        )
    dealt = section.partition.deal(train, test, section)
    folder.mkdir(parents=True, exist_ok=True)
    method = method_of(run.method)
    settings = method.keys.party_sections(run, where=where)
    known = [protocols(method_of(variant)) for variant in (run.method, *run.baselines)]
    agreed = ["align", *sorted({each.policy for all_of in known for each in all_of.values()})]
    files = []
    for name, party in dealt.train.parties.items():
        tables = [train.take(_rows(train, party.ids))]
        if dealt.test is not None and name in dealt.test.parties:
            tables.append(test.take(_rows(test, dealt.test.parties[name].ids)))
        blocks = _columns_of(party)
        held = list(dict.fromkeys(each for names in blocks.values() for each in names))
        columns = {_ID: np.concatenate([part.ids for part in tables])}
        columns |= {each: _joined([_table(part).column(each) for part in tables]) for each in held}
        about: dict[str, Any] = {"name": name, "table": f"{name}.csv", "id": _ID}
        about |= {"columns": held} if len(blocks) == 1 else {"blocks": blocks}
        if party.labels is not None:
            columns[train.label] = _joined([part.labels for part in tables])
            about |= {"label": train.label, "task": section.task}
        about |= {"categorical": section.categorical, "max_categories": section.max_categories}
        dd.write_table(folder / f"{name}.csv", columns)
        party_section: dict[str, Any] = {
            "party": about,
            "policy": {"algorithms": agreed, **_POLICY},
        }
        if name in settings:
            party_section[method.name] = settings[name].model_dump(
                mode="json", exclude_unset=True, exclude_none=True
            )
        (folder / f"{name}.toml").write_text(tomli_w.dumps(party_section), encoding="utf-8")
        files.append(str(folder / f"{name}.toml"))
    values = run.model_dump(
        mode="json",
        exclude_unset=True,
        exclude_none=True,
        exclude={"data", "passive", "recipes", "sha256"},
    )
    share = section.test or test.num_rows / (train.num_rows + test.num_rows)
    return check_run({**values, "parties": files, "test": round(share, 6)}, where=where)


def _rows(part: dd.Dataset, ids: np.ndarray) -> np.ndarray:
    """Where these samples are."""
    index = {each: row for row, each in enumerate(part.ids.tolist())}
    return np.array([index[each] for each in ids.tolist()], dtype=np.int64)


def _table(part: dd.Dataset) -> dd.Table:
    assert isinstance(part.x, dd.Table)
    return part.x


def _columns_of(party: dd.PartyData) -> dict[str, list[str]]:
    """Block -> its raw columns."""
    encoded = {
        block: list(made.columns)
        for block, made in party.inputs.items()
        if isinstance(made, dd.TableEncoder)
    }
    return encoded | {block: list(table.names) for block, table in party.tables.items()}


def _joined(columns: list[dd.Column]) -> np.ndarray:
    """The values of a column's parts, one after the other; None where one is missing."""
    parts = []
    for column in columns:
        values = column.values
        if column.missing.any() or column.is_text:
            values = values.astype(object)
            values[column.missing] = None
        parts.append(values)
    return np.concatenate(parts)
