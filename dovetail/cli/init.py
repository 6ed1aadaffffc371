"""``dovetail init``: a first party file and run file, from a table and a few answers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dovetail.cli import precheck
from dovetail.cli.options import Quiet


def init(
    table: Annotated[
        str | None,
        typer.Option(help="A .csv or .parquet file, a SELECT or a database URL. [asked]"),
    ] = None,
    query: Annotated[
        str | None, typer.Option(help="Of a database URL: a SELECT or a table's name.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Your party's name. [the table's]")] = None,
    id_columns: Annotated[
        list[str] | None,
        typer.Option("--id", help="The column that names each row; repeat for several. [proposed]"),
    ] = None,
    label: Annotated[
        str | None, typer.Option(help="An owner's column to predict. [proposed]")
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="classification or regression. [by the label]")
    ] = None,
    role: Annotated[
        str | None,
        typer.Option(help="owner (has the labels, trains) or partner (helps one who does)."),
    ] = None,
    partners: Annotated[
        str | None, typer.Option(metavar="A,B", help="An owner's partners, by name. [none]")
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Where partners dial in. [0.0.0.0:7443]"),
    ] = None,
    driver: Annotated[
        str | None, typer.Option(help="A partner's: the name of the party that trains.")
    ] = None,
    address: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="A partner's: where the driver listens.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder of the files.")] = Path(),
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Take what is proposed; ask nothing.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
    quiet: Quiet = False,
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
