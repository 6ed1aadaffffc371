"""``dovetail train``: from a run file to a run folder."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from dovetail import evaluation
from dovetail.cli import methods
from dovetail.cli.driver import Drive, open_driver
from dovetail.cli.output import console, result_table
from dovetail.cli.partyfile import fingerprints
from dovetail.cli.progress import EpochProgress
from dovetail.cli.runfile import RunFile, load_run, resolved
from dovetail.cli.setup import device, load_data, setup
from dovetail.errors import ConfigError
from dovetail.evaluation.track import Tracks
from dovetail.evaluation.track import check as check_trackers


def run_train(
    path: Path,
    *,
    out: Path | None,
    recipe: str | None,
    overrides: tuple[str, ...],
    seeds: tuple[int, ...],
    resume: bool,
    quiet: bool,
    as_json: bool,
    device: str | None,
    track: tuple[str, ...] = (),
) -> None:
    """Train, write the folder, print the table (or JSON)."""
    if track:
        overrides = (*overrides, f"track.to={json.dumps(track)}")
    if device is not None:
        overrides = (*overrides, f'device="{device}"')
    run = load_run(path, recipe=recipe, overrides=overrides)
    out = out or Path("out") / (path.stem + (f"-{recipe}" if recipe else ""))
    if (out / "run.toml").resolve() == path.resolve():
        raise ConfigError(
            f"{out} holds the run file {path} itself, which its run would overwrite; name another "
            "folder with --out"
        )
    result = train_seeds(
        run, out, seeds or run.all_seeds(), resume=resume, show_progress=not (quiet or as_json)
    )
    if as_json:
        print(json.dumps(result, indent=2))
    elif not quiet:
        console().print(result_table(result))
        console().print(f"Run folder: {out}", highlight=False, markup=False, soft_wrap=True)


def train_seeds(
    run: RunFile,
    out: Path,
    seeds: tuple[int, ...],
    *,
    resume: bool,
    show_progress: bool,
    drive: Drive = open_driver,
) -> dict[str, Any]:
    """Train each seed; the result of the one, or the summary of several.

    ``drive`` opens the lines to partners who are elsewhere.

    Raises:
        ConfigError: the folder holds something that is no run.
    """
    if len(set(seeds)) < len(seeds):
        raise ConfigError(f"each seed is run once, got {list(seeds)}; name each seed once")
    alone = len(seeds) == 1
    folders = {seed: out if alone else out / f"seed-{seed}" for seed in seeds}
    check_folder(out)
    if not alone:  # a summary says that all seeds finished
        (out / "result.json").unlink(missing_ok=True)
    results = []
    loaded = driver = None
    check_trackers(run.track.to)
    with ExitStack() as stack:
        for seed, folder in folders.items():
            settings = resolved(run, seed)
            if run.parties is not None:
                settings["sha256"] = fingerprints(tuple(Path(file) for file in run.parties))
            done = evaluation.finished(folder, settings) if resume else None
            if done is not None:
                results.append(done)
                continue
            if loaded is None:
                device(run.device)  # one that is not there is told before data are read
                driver = stack.enter_context(drive(run, show_progress=show_progress))
                loaded = load_data(run, driver=driver, show_progress=show_progress)
            task = setup(run, seed, loaded)
            title = "" if alone else f"seed {seed} "
            with (
                evaluation.RunFolder(
                    folder,
                    settings,
                    seed=seed,
                    method=run.method,
                    resume=resume,
                    every=run.checkpoint_every,
                ) as kept,
                EpochProgress(title, shown=show_progress) as progress,
            ):
                if driver is not None:
                    kept.name(driver.begin(seed, kept.id))
                name = out.name if alone else f"{out.name} {folder.name}"
                with open_tracks(run, settings, kept, name=name) as tracks:
                    results.append(_train(task, seed, kept, progress, tracks))
    if alone:
        return results[0]
    summary = evaluation.summarise(results)
    evaluation.write_text(out / "result.json", json.dumps(summary, indent=2) + "\n")
    return summary


def open_tracks(
    run: RunFile, settings: Mapping[str, Any], kept: evaluation.RunFolder, *, name: str
) -> Tracks:
    """Where the run is watched as it goes on; of its settings, those that matter to its method.

    Raises:
        ConfigError: a tracker that cannot be reached.
    """
    own = methods.method_of(run.method)
    others = {section for section, method in methods.every().items() if method is not own}
    return Tracks(
        run.track.to,
        kept.path,
        {key: value for key, value in settings.items() if key not in others},
        name=name,
        id=kept.id,
        kept=kept.lines(),
        uri=run.track.uri,
        experiment=run.track.experiment,
    )


def _train(
    task: evaluation.Setup,
    seed: int,
    kept: evaluation.RunFolder,
    progress: EpochProgress,
    tracks: Tracks,
) -> dict[str, Any]:
    """Train one seed into its folder."""

    def observe(stage: str, total: int, line: dict[str, Any]) -> None:
        kept.epoch(stage, line)
        tracks.line(stage, line)
        progress.epoch(stage, total, line)

    stages = evaluation.run(task, seed, observe, checkpoint=kept.checkpoint, skip=kept.stages)
    for stage, outcome in stages:
        kept.stage(stage, outcome)
        for party, missed in outcome.missed.items():
            unit = "steps" if "steps" in missed else "rounds"
            print(
                f"dovetail: party {party!r} was left out of {missed[unit]} of "
                f"{missed['of']} {unit}; first in {missed['first']}",
                file=sys.stderr,
            )
    result = kept.finish()
    tracks.finish(result)
    return result


def check_folder(out: Path) -> None:
    """Refuse a folder that holds something other than a run."""
    if out.is_file():
        raise ConfigError(f"{out} is a file; name a folder with --out")
    if out.is_dir() and any(out.iterdir()):
        # Not run.toml: a user's own has that name too.
        known = {"result.json", "metrics.jsonl", "value.json", "value.jsonl"}
        names = {entry.name for entry in out.iterdir()}
        if not names & known and not any(name.startswith("seed-") for name in names):
            raise ConfigError(f"{out} holds other files; name an empty folder with --out")
