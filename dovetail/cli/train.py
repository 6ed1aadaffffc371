"""``dovetail train``: from a run file to a run folder."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from dovetail import evaluation
from dovetail.cli.driver import open_driver
from dovetail.cli.output import console, result_table
from dovetail.cli.partyfile import fingerprints
from dovetail.cli.progress import EpochProgress
from dovetail.cli.runfile import RunFile, load_run, resolved
from dovetail.cli.setup import device, load_data, setup
from dovetail.errors import ConfigError


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
) -> None:
    """Train, write the folder, print the table (or JSON)."""
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
    run: RunFile, out: Path, seeds: tuple[int, ...], *, resume: bool, show_progress: bool
) -> dict[str, Any]:
    """Train each seed; the result of the one, or the summary of several.

    Raises:
        ConfigError: the folder holds something that is no run.
    """
    if len(set(seeds)) < len(seeds):
        raise ConfigError(f"each seed is run once, got {list(seeds)}; name each seed once")
    alone = len(seeds) == 1
    folders = {seed: out if alone else out / f"seed-{seed}" for seed in seeds}
    _check_folder(out)
    if not alone:  # a summary says that all seeds finished
        (out / "result.json").unlink(missing_ok=True)
    results = []
    loaded = driver = None
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
                driver = stack.enter_context(open_driver(run, show_progress=show_progress))
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
                results.append(_train(task, seed, kept, progress))
    if alone:
        return results[0]
    summary = evaluation.summarise(results)
    evaluation.write_text(out / "result.json", json.dumps(summary, indent=2) + "\n")
    return summary


def _train(
    task: evaluation.Setup, seed: int, kept: evaluation.RunFolder, progress: EpochProgress
) -> dict[str, Any]:
    """Train one seed into its folder."""

    def observe(stage: str, total: int, line: dict[str, Any]) -> None:
        kept.epoch(stage, line)
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
    return kept.finish()


def _check_folder(out: Path) -> None:
    """Refuse a folder that holds something other than a run."""
    if out.is_file():
        raise ConfigError(f"{out} is a file; name a folder with --out")
    if out.is_dir() and any(out.iterdir()):
        known = {"result.json", "metrics.jsonl"}  # not run.toml: a user's own has that name too
        names = {entry.name for entry in out.iterdir()}
        if not names & known and not any(name.startswith("seed-") for name in names):
            raise ConfigError(f"{out} holds other files; name an empty folder with --out")
