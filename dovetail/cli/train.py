"""``dovetail train``: from a run file to a run folder."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

from dovetail.cli import precheck
from dovetail.cli.options import LogKind, check_one_way
from dovetail.errors import ConfigError


def train(
    run: Path,
    out: Path | None = None,
    recipe: str | None = None,
    overrides: list[str] | None = None,
    seed: list[int] | None = None,
    resume: bool = False,
    overwrite: bool = False,
    track: list[str] | None = None,
    proposal: Path | None = None,
    search: int | None = None,
    ray: str | None = None,
    health: str | None = None,
    log: LogKind = LogKind.TEXT,
    quiet: bool = False,
    as_json: bool = False,
    device: str | None = None,
) -> None:
    """Train what a run file describes; write the run's folder.

    The folder has run.toml (the settings), metrics.jsonl (a line per epoch), result.json,
    ledger.jsonl (what left each party) and models/PARTY, which `dovetail predict` uses. Several
    seeds get a folder each below it, and result.json has their mean and spread.

    With [engine] kind = "stream", partners are on other machines and run `dovetail join`: it waits
    for them, aligns with them unless `dovetail align` did, and trains.

    Under torchrun, several processes share the steps of CHFL's and HyFEM's parties, one a GPU.

    With --ray, a search's trials and several seeds are computed on the cores of a Ray cluster.

    Args:
        run: a run file (TOML), or FILE:CELL of a grid file.
        resume: go on with what was stopped; skip seeds that finished.
        track: watch it in tensorboard or mlflow; repeat for both; None: run file.
        search: first try so many settings on validation rows, keep the best; None: run file.
    """
    check_one_way(resume=resume, overwrite=overwrite)
    precheck.check_run(run, overrides)
    from dovetail import methods
    from dovetail.api.progress import Probed, talk_of
    from dovetail.api.scores import Scores
    from dovetail.cli.output import print_line, show
    from dovetail.cluster import tasks_at
    from dovetail.federated.group import joined
    from dovetail.files import run_folder, run_name
    from dovetail.models.model_folders import next_commands
    from dovetail.network.logs import json_lines
    from dovetail.node.probes import Probes
    from dovetail.runs.proposing import read_agreed
    from dovetail.runs.runfile import load_run
    from dovetail.runs.runfolder import was_stopped
    from dovetail.runs.setup import Given
    from dovetail.runs.train import (
        check_folder,
        check_group,
        check_participation,
        follow,
        train_seeds,
    )

    changes = [*(overrides or ())]
    if track:
        changes.append(f"track.to={json.dumps(track)}")
    if search is not None:
        changes.append(f"search.trials={search}")
    if device is not None:
        changes.append(f'device="{device}"')
    path, run_file = run, load_run(run, recipe=recipe, overrides=tuple(changes))
    command = methods.record_of(run_file.method).command
    if command != "train":
        raise ConfigError(
            f'{path} has method = "{run_file.method}", which trains nothing; run '
            f"`dovetail {command} {path}`"
        )
    if out is None:
        out = path.parent if resume and was_stopped(path.parent) else run_folder(path, recipe)
    check_folder(out, path, resume=resume)
    seeds = tuple(seed or ()) or run_file.all_seeds()
    agreed = read_agreed(run_file, seeds, proposal, where=str(path))
    json_log = log is LogKind.JSON
    progress = Probed(talk_of(shown=not (quiet or as_json or json_log)))
    with ExitStack() as stack:
        group = stack.enter_context(joined())
        if group is not None and group.rank:
            follow(group, run_file, given=Given(str(path)))
            return
        if group is not None:
            check_group(run_file)
        if json_log:
            stack.enter_context(json_lines(run_name(path)))
        if health is not None:
            stack.enter_context(
                Probes(health, why_not_ready=progress.why_not_ready, metrics=progress.metrics)
            )
        tasks = stack.enter_context(tasks_at(ray))
        result = train_seeds(
            run_file,
            out,
            seeds,
            given=Given(str(path)),
            resume=resume,
            agreed=agreed,
            overwrite=overwrite,
            talk=progress,
            tasks=tasks,
            group=group,
        )
    if as_json:
        print(json.dumps(result, indent=2))
    elif not quiet:
        show(Scores(result))
        print_line(f"Run folder: {out}")
        for command in next_commands(out):
            print_line(f"  {command}")
    check_participation(run_file, out, result)
