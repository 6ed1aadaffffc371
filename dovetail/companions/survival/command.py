"""``dovetail survival``: curves or a Cox regression of several parties' rows together."""

from __future__ import annotations

import json
from pathlib import Path

from dovetail.cli import precheck
from dovetail.errors import ConfigError


def survival(
    run: Path,
    out: Path | None = None,
    overrides: list[str] | None = None,
    overwrite: bool = False,
    quiet: bool = False,
    as_json: bool = False,
) -> None:
    """Draw survival curves of all parties' rows, test groups, or fit a Cox regression.

    Nothing is trained. Every party counts its events and rows at risk in the same intervals; counts
    are summed in secret, so that only their totals are known. [survival] of the run file has group
    (a column), times (where intervals end), least, secure and private. method = "cox" is Cox
    regression on columns.

    The run's folder has result.json (curves, medians, the log-rank test, or coefficients), a table
    (curves.csv, coefficients.csv), curves.svg and ledger.jsonl (what left each party); of a Cox
    regression also models/coordinator, which `dovetail predict` takes. Parties allow it by
    "survival" in algorithms of their policy; with [engine] kind = "stream" they run
    `dovetail join`.

    Args:
        run: a run file with method = "kaplan-meier" or "cox".
    """
    precheck.check_run(run, overrides)
    from dovetail import methods
    from dovetail.api.progress import talk_of
    from dovetail.cli.output import print_line, show
    from dovetail.companions.survival.analyses import Coefficients, Curves
    from dovetail.files import run_folder
    from dovetail.models.model_folders import next_commands
    from dovetail.runs.runfile import load_run
    from dovetail.runs.runfolder import using
    from dovetail.runs.setup import Given
    from dovetail.runs.train import check_folder, train_seeds

    run_file = load_run(run, overrides=tuple(overrides or ()))
    if methods.record_of(run_file.method).command != "survival":
        raise ConfigError(
            f'{run} has method = "{run_file.method}", which dovetail train runs; here it is '
            '"kaplan-meier" or "cox"'
        )
    folder = out or run_folder(run)
    check_folder(folder, run)
    with using(folder):
        result = train_seeds(
            run_file,
            folder,
            run_file.all_seeds()[:1],
            resume=False,
            given=Given(str(run)),
            overwrite=overwrite,
            talk=talk_of(shown=not (quiet or as_json)),
        )
        is_cox = run_file.method == "cox"
        found: Curves | Coefficients = Coefficients(result) if is_cox else Curves(result)
        found.save(folder)
    if as_json:
        print(json.dumps(result["cox" if is_cox else "survival"], indent=2))
    elif not quiet:
        show(found)
        print_line(f"Run folder: {folder}")
        for command in next_commands(folder)[1:]:  # of its model, if it has one
            print_line(f"  {command}")
