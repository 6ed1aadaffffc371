"""``dovetail``: demo, inspect, align, train, predict.

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
        bool, typer.Option("--resume", help="Skip seeds that finished with the same settings.")
    ] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
    device: Device = None,
) -> None:
    """Train what a run file describes; write the run's folder.

    The folder has run.toml (the settings), metrics.jsonl (a line per epoch), result.json,
    ledger.jsonl (what left each party) and models/PARTY, which `dovetail predict` uses. Several
    seeds get a folder each below it, and result.json has their mean and spread.
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
    parties: Annotated[list[Path], typer.Argument(help="Two party files (TOML) or more.")],
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
    """
    from dovetail.cli.align import run_align

    run_align(
        tuple(parties),
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
