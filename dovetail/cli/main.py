"""``dovetail``: demo, inspect, align, train, predict, certificates, join, ledger.

Nothing heavy is imported until a command runs, so that ``dovetail --help`` answers at once.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="dovetail",
    help=(
        "Federated learning for organisations whose columns and rows only partly match.\n\n"
        "Partners help to train; no table leaves its owner; the label owner predicts alone.\n\n"
        "Start with: dovetail demo"
    ),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON, nothing else.")]
Device = Annotated[
    str | None, typer.Option(help="Where to compute: cpu, cuda, cuda:1. [run file, or cpu]")
]


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="The run's folder.")] = Path("out/demo"),
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds to run.")] = 5,
    quiet: Quiet = False,
    as_json: AsJson = False,
    device: Device = None,
) -> None:
    """The main job on built-in real data in under a minute.

    A party with few labels and the upper halves of handwritten digits trains with a helper who
    has the lower halves of the same samples. The helper leaves; the model stays. Beside it:
    learning alone, and classic vertical learning with the helper present and gone.
    """
    from dovetail.cli.demo import run_demo

    run_demo(out, num_seeds=seeds, quiet=quiet, as_json=as_json, device=device)


@app.command()
def train(
    run: Annotated[Path, typer.Argument(help="A run file (TOML).")],
    out: Annotated[
        Path | None, typer.Option(help="The run's folder. [out/NAME of the run file]")
    ] = None,
    recipe: Annotated[
        str | None, typer.Option(help="A recipe of the run file, for example cpu.")
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a key: --set apfed.epochs=5."),
    ] = None,
    seed: Annotated[
        list[int] | None, typer.Option(help="Run this seed; repeat for several.")
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with what was stopped; skip seeds that finished."),
    ] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
    device: Device = None,
) -> None:
    """Train what a run file describes; write the run's folder.

    The folder has run.toml (the settings), metrics.jsonl (a line per epoch), result.json,
    ledger.jsonl (what left each party) and models/PARTY, which `dovetail predict` uses. Several
    seeds get a folder each below it, and result.json has their mean and spread.

    With [engine] kind = "stream", partners are on other machines and run `dovetail join`: it waits
    for them, aligns with them unless `dovetail align` did, and trains.
    """
    from dovetail.cli.train import run_train

    run_train(
        run,
        out=out,
        recipe=recipe,
        overrides=tuple(overrides or ()),
        seeds=tuple(seed or ()),
        resume=resume,
        quiet=quiet,
        as_json=as_json,
        device=device,
    )


@app.command()
def inspect(
    run: Annotated[list[Path], typer.Argument(help="A run file, or party files (TOML).")],
    html: Annotated[Path | None, typer.Option(help="Also write a page with the picture.")] = None,
    private: Annotated[
        bool,
        typer.Option("--private", help="Compare ids blinded, and count only."),
    ] = False,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the run file."),
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Show who has what, and which of the methods fit and why.

    A picture of parties and blocks against samples, overlaps, where labels are, and for each
    method whether it applies, with the command to run next and the sizes of messages to come.
    Reads every party's table; with --private, ids are compared only blinded and only counts shown.
    """
    from dovetail.cli.inspect import run_inspect

    run_inspect(
        tuple(run),
        html=html,
        private=private,
        overrides=tuple(overrides or ()),
        quiet=quiet,
        as_json=as_json,
    )


@app.command()
def align(
    parties: Annotated[
        list[Path], typer.Argument(help="Two party files (TOML) or more; or a run file.")
    ],
    partners: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Parties on other machines; then name your file only."),
    ] = None,
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where partners elsewhere dial in.")
    ] = None,
    certificates: Annotated[
        Path | None,
        typer.Option(help="ca.pem, NAME.pem, NAME.key. [certificates/NAME beside the party file]"),
    ] = None,
    wait: Annotated[
        float | None,
        typer.Option(min=0, help="Seconds to wait for partners elsewhere. [until they come]"),
    ] = None,
    initiator: Annotated[
        str | None, typer.Option(help="The party that starts. [the one with labels, or the first]")
    ] = None,
    count: Annotated[
        bool, typer.Option("--count", help="Count what is shared; nobody learns which.")
    ] = False,
    workers: Annotated[int, typer.Option(min=1, help="Processes for the arithmetic.")] = 1,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Find which rows are the same sample, by private set intersection.

    No party sees another's ids: they are compared multiplied by both parties' secrets. Each
    party's part of the result is kept beside its party file, where `dovetail train` finds it.

    With partners on other machines, who run `dovetail join`:

    dovetail align bank.toml --partners shop,lab --listen 0.0.0.0:7443

    Or name the run file that says so.
    """
    from dovetail.cli.align import Elsewhere, run_align

    run_align(
        tuple(parties),
        elsewhere=Elsewhere(partners, listen, certificates, wait),
        initiator=initiator,
        count=count,
        workers=workers,
        quiet=quiet,
        as_json=as_json,
    )


@app.command()
def predict(
    model: Annotated[Path, typer.Argument(help="A model's folder, RUN/models/PARTY, or a RUN.")],
    data: Annotated[Path, typer.Argument(help="CSV or Parquet with raw columns; .npz or folder.")],
    out: Annotated[
        Path | None, typer.Option(help="A .csv or .parquet file. [standard output, as CSV]")
    ] = None,
    id_column: Annotated[
        str | None, typer.Option("--id", help="The column that names each row. [row number]")
    ] = None,
    allow_unseen: Annotated[
        bool, typer.Option("--allow-unseen", help="Take categories unseen in training as missing.")
    ] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
    device: Device = None,
) -> None:
    """Predict alone: the model's folder and a table are all it needs.

    Gives the class and each class's probability (or the value) beside each row's id. Where the
    table also has the label, says on standard error how right the predictions are.
    """
    from dovetail.cli.predict import run_predict

    run_predict(
        model,
        data,
        out=out,
        id_column=id_column,
        allow_unseen=allow_unseen,
        quiet=quiet,
        as_json=as_json,
        device=device,
    )


@app.command()
def certificates(
    names: Annotated[
        list[str] | None, typer.Argument(help="Parties' names. [none: list what --out has]")
    ] = None,
    driver: Annotated[
        list[str] | None,
        typer.Option(help="Which of them drives, so that the others dial it; repeat for several."),
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(help="An address the driver listens on, for other tools; repeat for several."),
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder of certificates.")] = Path("certificates"),
    days: Annotated[int, typer.Option(min=1, max=3650, help="How long they are valid.")] = 365,
    request: Annotated[
        bool, typer.Option("--request", help="Make my key here, and a request to be signed.")
    ] = False,
    sign: Annotated[Path | None, typer.Option(help="Sign this request of the party named.")] = None,
    renew: Annotated[
        bool, typer.Option("--renew", help="New certificates; the old stay valid until they end.")
    ] = False,
    renew_ca: Annotated[
        bool, typer.Option("--renew-ca", help="A new authority, believed beside the old one.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Make a new key in the place of the one there is.")
    ] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Make the certificates that parties on several machines know each other by.

    To try things out, everything at once, with the authority (CA) if there is none yet:

    dovetail certificates bank shop --driver bank --host bank.example.org

    Hand certificates/shop/ to the shop: ca.pem, shop.pem and shop.key, all it needs.

    Companies that keep their keys to themselves take three steps. The bank, whose authority signs:

    dovetail certificates bank --driver bank --host bank.example.org

    The shop, whose key never leaves it; it sends shop.csr to the bank:

    dovetail certificates shop --request

    The bank, which sends ca.pem and shop.pem back:

    dovetail certificates shop --sign shop.csr

    Before they end: dovetail certificates shop --renew. Without names: what there is, until when.
    """
    from dovetail.cli.certificates import run_certificates

    run_certificates(
        tuple(names or ()),
        drivers=tuple(driver or ()),
        hosts=tuple(host or ()),
        out=out,
        days=days,
        request=request,
        sign=sign,
        renew=renew,
        renew_ca=renew_ca,
        force=force,
        quiet=quiet,
        as_json=as_json,
    )


@app.command()
def join(
    party: Annotated[Path, typer.Argument(help="A party file (TOML).")],
    driver: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where the driver listens.")],
    name: Annotated[
        str | None,
        typer.Option(help="The driver's name. [the one in the party file's policy.drivers]"),
    ] = None,
    certificates: Annotated[
        Path | None,
        typer.Option(help="ca.pem, NAME.pem, NAME.key. [certificates/NAME beside the party file]"),
    ] = None,
    home: Annotated[
        Path | None, typer.Option(help="What it keeps. [STEM.site beside the party file]")
    ] = None,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Go online as a party, and answer one driver until told to stop (Ctrl-C).

    Dials the driver and stays, through failures of either side. Only what the party file's
    [policy] allows is answered; refusals are shown and kept. No table leaves this machine: what
    does is counted in STEM.site/ledger.jsonl.
    """
    from dovetail.cli.join import run_join

    run_join(
        party,
        address=driver,
        driver=name,
        certificates=certificates,
        home=home,
        device_name=device,
        quiet=quiet,
    )


@app.command()
def ledger(
    file: Annotated[Path, typer.Argument(help="A party's ledger.jsonl.")],
    noted: Annotated[
        str | None, typer.Option(metavar="HASH", help="A last hash of earlier; it must be there.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what left a party, and verify that its record is unbroken.

    For whom, which messages, their tensors, how often, bytes, first and last time. A line that was
    changed, removed, inserted or moved is named, and the exit code is 2. Lines missing at the end
    show only against a hash noted earlier: --noted HASH.
    """
    from dovetail.cli.ledger import run_ledger

    run_ledger(file, noted=noted, as_json=as_json)


def _version(show: bool) -> None:
    if show:
        from dovetail import __version__

        print(f"dovetail {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Runs a command; a user's mistake ends in one sentence and exit code 2, Ctrl-C in 130."""
    from dovetail.errors import DovetailError

    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what it would print is told by our own errors
    try:
        try:
            app()
        finally:
            sys.stdout.flush()  # a reader that is gone is found here, not after main
    except DovetailError as error:
        print(f"dovetail: {error}", file=sys.stderr)
        sys.exit(2)
    except SystemExit as done:  # app always ends in one
        if done.code == 130:
            print("dovetail: stopped; what was finished is kept (see --resume)", file=sys.stderr)
        raise
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:  # a full disk, a folder that may not be written
        if error.errno is None:
            raise
        where = f"{error.filename}: " if error.filename else ""
        print(f"dovetail: {where}{error.strerror}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
