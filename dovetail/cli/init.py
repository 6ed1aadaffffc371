"""``dovetail init``: a first party file and run file, from a table and a few answers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dovetail.cli import precheck


def init(
    table: str | None = None,
    query: str | None = None,
    name: str | None = None,
    id_columns: Annotated[list[str] | None, typer.Option("--id")] = None,
    label: str | None = None,
    task: str | None = None,
    role: str | None = None,
    partners: Annotated[str | None, typer.Option(metavar="A,B")] = None,
    listen: Annotated[str | None, typer.Option(metavar="HOST:PORT")] = None,
    driver: str | None = None,
    address: Annotated[str | None, typer.Option(metavar="HOST:PORT")] = None,
    out: Path = Path(),
    yes: Annotated[bool, typer.Option("--yes", "-y")] = False,
    force: bool = False,
    quiet: bool = False,
) -> None:
    """Write a first party file and run file, from a table and a few answers.

    Looks at the table, proposes which column names each row, which is to be predicted and whether
    it is a class or a number, and leaves out columns that teach nothing: ids, constants, names. It
    asks for what is not given; with --yes, or without a terminal, it takes what it proposes.

    The label owner, with a partner on another machine:

    dovetail init --table customers.csv --id customer --label bought --partners shop

    The partner, whose table has no label:

    dovetail init --table visits.csv --id customer --role partner --driver bank

    Writes NAME.toml, and for a label owner run.toml, with every key explained. Both can be run as
    they are. Existing files are replaced only with --force.

    Args:
        table: a .csv or .parquet file, a SELECT or a database URL; None: asked.
        query: of a database URL: a SELECT or a table's name.
        name: your party's name; None: the table's.
        id_columns: the column that names each row; repeat for several; None: proposed.
        label: an owner's column to predict; None: proposed.
        task: classification or regression; None: by the label.
        role: owner (has the labels, trains) or partner (helps one who does).
        partners: an owner's partners, by name; None: none.
        listen: where partners connect; None: 0.0.0.0:7443.
        driver: a partner's: the name of the party that trains.
        address: a partner's: where the driver listens.
        out: the folder of the files.
        yes: take what is proposed; ask nothing.
        force: replace files that are there.
    """
    precheck.check_table(table, out)
    from dovetail.cli.initial import Answers, run_init

    run_init(
        Answers(
            table=table,
            query=query,
            name=name,
            id=tuple(id_columns or ()),
            label=label,
            task=task,
            role=role,
            partners=partners,
            listen=listen,
            driver=driver,
            address=address,
            out=out,
        ),
        yes=yes,
        force=force,
        quiet=quiet,
    )
