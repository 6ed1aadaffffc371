"""``dovetail``: its commands, from demo to bench.

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
Recipe = Annotated[str | None, typer.Option(help="A recipe of the run file, for example cpu.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a key: --set apfed.epochs=5."),
]
Seeds = Annotated[list[int] | None, typer.Option(help="Run this seed; repeat for several.")]
Align = Annotated[
    bool, typer.Option("--align", help="Align anew first, also where an alignment is kept.")
]
RunKeys = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the run file."),
]
RunOut = Annotated[Path | None, typer.Option(help="The run's folder. [out/NAME of the run file]")]
Certificates = Annotated[
    Path | None,
    typer.Option(help="ca.pem, NAME.pem, NAME.key. [certificates/NAME beside the party file]"),
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
    run: Annotated[Path, typer.Argument(help="A run file (TOML), or FILE:CELL of a grid file.")],
    out: RunOut = None,
    recipe: Recipe = None,
    overrides: Overrides = None,
    seed: Seeds = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with what was stopped; skip seeds that finished."),
    ] = False,
    track: Annotated[
        list[str] | None,
        typer.Option(help="Watch it in tensorboard or mlflow; repeat for both. [run file]"),
    ] = None,
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
        track=tuple(track or ()),
    )


@app.command()
def inspect(
    run: Annotated[list[Path], typer.Argument(help="A run file, or party files (TOML).")],
    html: Annotated[Path | None, typer.Option(help="Also write a page with the picture.")] = None,
    private: Annotated[
        bool,
        typer.Option("--private", help="Compare ids blinded, and count only."),
    ] = False,
    overrides: RunKeys = None,
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
    certificates: Certificates = None,
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
def value(
    run: Annotated[Path, typer.Argument(help="A run file (TOML), or a run's folder.")],
    by: Annotated[
        str, typer.Option(metavar="mi|loo|shapley", help="What to rank by; the dearest computed.")
    ] = "shapley",
    metric: Annotated[
        str | None, typer.Option(help="A test score. [auc, accuracy or rmse, by the label]")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="How many seeds to run. [those of the run]")
    ] = None,
    partners: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Value these; the others always take part. [all]"),
    ] = None,
    permutations: Annotated[
        int | None,
        typer.Option(min=1, help="Sample Shapley by random orders. [beyond 8 partners: 20]"),
    ] = None,
    recipe: Annotated[str | None, typer.Option(help="A recipe of the run file.")] = None,
    overrides: RunKeys = None,
    out: Annotated[
        Path | None, typer.Option(help="Also write a .csv or .json file for other tools.")
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Train again what was trained before.")
    ] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Rank the partners of a run by what they are worth to the party with labels.

    Three measures, from cheap to dear, each with all before it:

    mi: mutual information of a partner's columns with the labels; trains nothing.

    loo: leave-one-out, the test score lost without this partner; trains partners + 2 models. Two
    partners with the same columns are each worth nothing by it.

    shapley: the test score gained, averaged over all orders in which partners could join; adds up
    to what all gain together. Trains a model for each set of partners, 2^partners.

    Use mi to see whom to talk to, loo to see whom the model would miss, shapley to share a reward.
    Below the spread over seeds a difference says little: --seeds 5.

    Trained sets are kept in value.jsonl in the run's folder, so that what was stopped goes on;
    value.json has the result. Works for apfed, apfed-r, apfed-c, tvfl and fedoptimus, simulated or
    with all party files in one place.
    """
    from dovetail.cli.value import run_value

    run_value(
        run,
        by=by,
        metric=metric,
        seeds=seeds,
        permutations=permutations,
        partners=partners,
        recipe=recipe,
        overrides=tuple(overrides or ()),
        out=out,
        fresh=fresh,
        quiet=quiet,
        as_json=as_json,
    )


@app.command()
def bench(
    name: Annotated[
        str | None, typer.Argument(help="A table, such as chfl-table2. [none: list them]")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Run these cells only: 'mnist-2-1-*'; repeatable."),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="So many seeds of each cell. [as the run file says]")
    ] = None,
    recipe: Annotated[
        str | None, typer.Option(help="A recipe of the run files, for example cpu.")
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a key of every run file."),
    ] = None,
    budget_minutes: Annotated[
        float | None,
        typer.Option(min=0, help="Run what fits in so long; stop, keeping it, at the end."),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time.")] = 1,
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="Of each run. [OMP_NUM_THREADS, or cores / jobs]"),
    ] = None,
    out: Annotated[Path, typer.Option(help="Runs and tables, kept.")] = Path("out/bench"),
    runs: Annotated[
        Path | None, typer.Option(help="The run files. [./runs, or those Dovetail brings]")
    ] = None,
    show: Annotated[
        bool, typer.Option("--list", help="List the table's cells and what is done; run nothing.")
    ] = False,
    into: Annotated[
        Path | None,
        typer.Option(
            help="Also put the table into this page, between <!-- bench TABLE --> marks, and its "
            "picture into images/ beside it."
        ),
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
    device: Device = None,
) -> None:
    """Make a paper's table: run its cells, and set the figures beside the paper's.

    Without a name: the tables there are, and what is done of each.

    Every cell is a run file and every run a run folder below --out. What is done there is not run
    again, what was stopped goes on from its checkpoint, and a run that fails is told while the
    others go on: repeat the command until nothing is left. Tables that share a cell share its runs.

    A first look at one setting, in ten minutes:

    dovetail bench apfed-table2 --recipe cpu --only 'mnist-2-1-*' --seeds 1 --budget-minutes 10

    A GPU takes several runs at once:

    dovetail bench apfed-table2 --device cuda --jobs 4

    Writes TABLE.md (paper, here, spread, difference: ▲ at or above the paper's figure, ▼ below),
    TABLE.jsonl (a line per run as it ends) and, of figures, TABLE.svg. Exit code 1: a run failed.
    """
    from dovetail.bench.places import Options
    from dovetail.cli.bench import run_bench

    run_bench(
        name,
        Options(
            out=out,
            runs=runs,
            recipe=recipe,
            overrides=tuple(overrides or ()),
            num_seeds=seeds,
            device=device,
            jobs=jobs,
            threads=threads,
            budget_minutes=budget_minutes,
        ),
        only=tuple(only or ()),
        show=show,
        into=into,
        quiet=quiet,
        as_json=as_json,
    )


@app.command()
def predict(
    model: Annotated[Path, typer.Argument(help="A model's folder, RUN/models/PARTY, or a RUN.")],
    data: Annotated[Path, typer.Argument(help="CSV or Parquet with raw columns; .npz or folder.")],
    party: Annotated[
        Path | None,
        typer.Option(help="A label owner's party file: DATA has ids, data owners are asked."),
    ] = None,
    partners: Annotated[
        str | None, typer.Option(metavar="A,B", help="The data owners, on other machines.")
    ] = None,
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where data owners dial in.")
    ] = None,
    certificates: Certificates = None,
    wait: Annotated[
        float | None,
        typer.Option(min=0, help="Seconds to wait for data owners; then without them. [60]"),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(help="Seconds that a data owner's answer may take. [30]")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="A .csv or .parquet file. [standard output, as CSV]")
    ] = None,
    id_column: Annotated[
        str | None,
        typer.Option("--id", help="The column of ids. [row number; with --party: that file's]"),
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

    A label owner of FedOptimus predicts with data owners: with their networks beside its own, or,
    from a table of ids, with those on other machines that run `dovetail join` with it as driver:

    dovetail predict north.site new.csv --party north.toml --partners clinic,lab
    --listen 0.0.0.0:7443

    Who does not come or answer is left out, and named.
    """
    from dovetail.cli.align import Elsewhere
    from dovetail.cli.predict import run_predict

    run_predict(
        model,
        data,
        party=party,
        elsewhere=Elsewhere(partners, listen, certificates, wait, timeout),
        out=out,
        id_column=id_column,
        allow_unseen=allow_unseen,
        quiet=quiet,
        as_json=as_json,
        device=device,
    )


@app.command()
def report(
    folders: Annotated[
        list[Path], typer.Argument(help="Run folders; several are shown side by side.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="The page. [report.html in the first folder]")
    ] = None,
    data: Annotated[
        bool,
        typer.Option("--data", help="Read the tables that runs name, to draw who held what."),
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Write one page about runs: results, curves, who held what, what left whom, settings.

    The page needs no network, follows light and dark, and prints. A folder of several seeds is one
    run with spread; one that still trains shows what there is so far.
    """
    from dovetail.cli.report import run_report

    run_report(tuple(folders), out=out, data=data, quiet=quiet)


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
    certificates: Certificates = None,
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
    file: Annotated[Path, typer.Argument(help="A party's ledger.jsonl, or its folder.")],
    other: Annotated[
        Path | None, typer.Argument(help="Another party's, to compare with; each with its heads.")
    ] = None,
    noted: Annotated[
        str | None, typer.Option(metavar="HASH", help="A last hash of earlier; it must be there.")
    ] = None,
    ca: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="ca.pem of who must have signed; of two ledgers."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what left a party, and verify that its record is unbroken.

    For whom, which messages, their tensors, how often, bytes, first and last time. A line that was
    changed, removed, inserted or moved is named, and the exit code is 2. Lines missing at the end,
    and a ledger written anew, show against a hash noted earlier, --noted HASH; or of two ledgers
    against the heads of each that the other party holds (heads/ beside it).
    """
    from dovetail.cli.ledger import run_compare, run_ledger

    if other is not None:
        run_compare(file, other, ca=ca, noted=noted, as_json=as_json)
        return
    run_ledger(file, noted=noted, as_json=as_json)


flare = typer.Typer(
    name="flare",
    help=(
        "Run on NVIDIA FLARE: as a job of a federation that has it, or of one on this machine.\n\n"
        "Needs pip install 'dovetail[flare]'. See docs/flare.md."
    ),
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(flare)


@flare.command("export")
def flare_export(
    run: Annotated[Path, typer.Argument(help='A run file (TOML) with [engine] kind = "flare".')],
    out: Annotated[Path, typer.Option(help="The job's folder; its name is the job's.")],
    recipe: Recipe = None,
    overrides: Overrides = None,
    seed: Seeds = None,
    resume: Annotated[
        str, typer.Option(metavar="JOB", help="Go on with the run of this job, by its id.")
    ] = "",
    align: Align = False,
    quiet: Quiet = False,
) -> None:
    """Write a run as an NVFlare job folder, to be submitted with NVFlare's own tools.

    The job has the run file and names of classes; no code, no data and no path of this machine.
    Each site reads its own party file (dovetail flare site), and answers what its policy allows.
    """
    from dovetail.cli.flare import run_export

    run_export(
        run,
        out=out,
        recipe=recipe,
        overrides=tuple(overrides or ()),
        seeds=tuple(seed or ()),
        resume=resume,
        align=align,
        quiet=quiet,
    )


@flare.command("site")
def flare_site(
    folder: Annotated[
        Path, typer.Argument(help="A site's or the server's folder, with startup/ and local/.")
    ],
    party: Annotated[
        Path | None, typer.Option(help="Its party file; at the server that of who has the labels.")
    ] = None,
    driver: Annotated[
        str | None,
        typer.Option(help="At a site: who runs the server. [the one in policy.drivers]"),
    ] = None,
    runs: Annotated[
        Path | None, typer.Option(help="At the server: where runs are kept. [FOLDER/dovetail-runs]")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Tell an NVFlare site which party it is, and let it run Dovetail's jobs.

    Writes local/dovetail.toml, and adds the classes that Dovetail's jobs name to class_allow_list
    in local/resources.json.
    """
    from dovetail.cli.flare import run_site

    run_site(folder, party=party, driver=driver, runs=runs, quiet=quiet)


@flare.command("simulate")
def flare_simulate(
    run: Annotated[Path, typer.Argument(help="A run file (TOML) with every party's file.")],
    out: RunOut = None,
    recipe: Recipe = None,
    overrides: Overrides = None,
    seed: Seeds = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with what was stopped.")] = False,
    align: Align = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run it as a job of an NVFlare federation on this machine: server and sites as processes.

    Made with `nvflare provision`, with mutual TLS, and gone at the end. Weights are those of
    `dovetail train` with the same seed.
    """
    from dovetail.cli.flare import run_simulate

    run_simulate(
        run,
        out=out,
        recipe=recipe,
        overrides=tuple(overrides or ()),
        seeds=tuple(seed or ()),
        resume=resume,
        align=align,
        quiet=quiet,
        as_json=as_json,
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
    from dovetail.cli.interrupts import ends_by_ctrl_c
    from dovetail.errors import DovetailError

    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what it would print is told by our own errors
    try:
        try:
            with ends_by_ctrl_c():
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
