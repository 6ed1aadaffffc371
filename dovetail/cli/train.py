"""``dovetail train``: from a run file to a run folder."""

from __future__ import annotations

import json
from pathlib import Path

from dovetail.cli.output import console, result_table
from dovetail.errors import ConfigError
from dovetail.experiment.grid import run_name
from dovetail.experiment.runfile import load_run
from dovetail.experiment.train import check_participation, train_seeds
from dovetail.face.scores import notes
from dovetail.face.talk import talk_of


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
    out = out or Path("out") / (run_name(path) + (f"-{recipe}" if recipe else ""))
    if (out / "run.toml").resolve() == path.resolve():
        raise ConfigError(
            f"{out} holds the run file {path} itself, which its run would overwrite; name another "
            "folder with --out"
        )
    result = train_seeds(
        run,
        out,
        seeds or run.all_seeds(),
        resume=resume,
        talk=talk_of(shown=not (quiet or as_json)),
    )
    if as_json:
        print(json.dumps(result, indent=2))
    elif not quiet:
        console().print(result_table(result))
        for note in notes(result):
            console().print(note, highlight=False, markup=False, soft_wrap=True)
        console().print(f"Run folder: {out}", highlight=False, markup=False, soft_wrap=True)
    check_participation(run, out, result)
