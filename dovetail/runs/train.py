"""Trains every seed of a run into its folder; what ``dovetail train`` and ``dovetail.fit`` do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from dovetail import methods
from dovetail.cluster import LOCAL, RayTasks, Tasks, tasks_at
from dovetail.errors import ConfigError, ParticipationError
from dovetail.federated.group import Group
from dovetail.methods.base import SILENT, Loaded, Progress
from dovetail.methods.method import asks
from dovetail.methods.outcome import missed_share, missed_text
from dovetail.methods.training import Training
from dovetail.models.computing import computing, device
from dovetail.network.checkpoint import StatefulParty
from dovetail.network.hosted import Pool
from dovetail.network.in_use import LOCK
from dovetail.network.retry import write_text
from dovetail.node.agreements import Plan
from dovetail.node.driver import Coordinator, Driver
from dovetail.node.engines import ElsewhereSection, RaySection
from dovetail.node.joint_prediction import KEYS
from dovetail.node.partyfile import fingerprints, open_site
from dovetail.node.proposal import Proposal, Signature
from dovetail.node.reach import coordinator, party_driver
from dovetail.runs.away import Files, packed, unpack
from dovetail.runs.one_seed import run as run_variants
from dovetail.runs.runfile import RunFile, resolved
from dovetail.runs.runfolder import (
    CHECKPOINTS,
    RunFolder,
    finished,
    summarise,
    using,
    was_stopped,
)
from dovetail.runs.search import FILE, searched
from dovetail.runs.setup import NOTHING, Given, load_data, setup, threads_for
from dovetail.runs.track import Tracks
from dovetail.runs.track import check as check_trackers

#: Below a run's folder: parties and tables that were given from Python, so that it can be repeated.
GIVEN = "given"


#: A proposal, and party -> what it says of it.
Agreed = tuple[Proposal, Mapping[str, Signature]]


class Drive(Protocol):
    """Opens the driver of a run whose partners are elsewhere."""

    def __call__(
        self, run: RunFile, *, talk: Progress = SILENT
    ) -> AbstractContextManager[Driver | Coordinator | None]: ...


def open_driver(
    run: RunFile, *, talk: Progress = SILENT
) -> AbstractContextManager[Driver | Coordinator | None]:
    """The driver of a run whose partners are elsewhere; None where every party is in this process.

    Raises:
        ConfigError: see ``Driver`` and ``Coordinator``.
    """
    section = run.engine
    if not isinstance(section, ElsewhereSection):
        return nullcontext()
    if run.parties is None:
        return coordinator(section, talk=talk)
    (party_file,) = run.parties
    return party_driver(open_site(Path(party_file)), section, talk=talk)


def train_seeds(
    run: RunFile,
    out: Path,
    seeds: tuple[int, ...],
    *,
    resume: bool,
    overwrite: bool = False,
    talk: Progress = SILENT,
    drive: Drive = open_driver,
    given: Given = NOTHING,
    agreed: Agreed | None = None,
    tasks: Tasks = LOCAL,
    group: Group | None = None,
) -> dict[str, Any]:
    """Train each seed; the result of the one, or the summary of several.

    ``drive`` opens the lines to partners who are elsewhere; ``given`` has data that need not be
    read. ``agreed`` is the proposal that the run is of, whose parties are shown who signed it.
    ``tasks`` makes the trials of a search, and trains several seeds of parties that are here.
    ``group`` shares parties' steps; its other processes ``follow``.

    Raises:
        ConfigError: the folder holds something that is no run, or, without ``overwrite``, one that
            finished, or was stopped and is not resumed.
    """
    if len(set(seeds)) < len(seeds):
        raise ConfigError(f"each seed is run once, got {list(seeds)}; name each seed once")
    alone = len(seeds) == 1
    folders = {seed: out if alone else out / f"seed-{seed}" for seed in seeds}
    check_folder(out)
    if agreed is not None and run.search is not None:
        raise ConfigError(
            "a proposal is of one setting, and [search] tries many: search without --proposal, "
            "and propose what it chose (search.json)"
        )
    if run.engine.kind == "ray" and not tasks.here:
        raise ConfigError('[engine] kind = "ray" is on a cluster already: leave --ray out')
    check_trackers(run.track.to)
    with ExitStack() as stack:
        stack.enter_context(using(out))
        if not (resume or overwrite):
            check_free(out, *folders.values())

        @cache
        def opened() -> tuple[Loaded, Driver | Coordinator | None]:
            """Open what a run has, once for its trials and all its seeds."""
            # One that is not there, or cannot, is told before data are read.
            computing(run.compute, device(run.device))
            driver = stack.enter_context(drive(run, talk=talk))
            if agreed is not None and driver is not None:
                driver.agreed(*agreed)
            if driver is not None and methods.method_of(run.method).proposed.aligns:
                driver.planned(_plan(run, resume=resume))
            loaded = load_data(run, driver=driver, given=given, talk=talk)
            stack.enter_context(threads_for(loaded))
            if isinstance(run.engine, RaySection):
                there = stack.enter_context(tasks_at(run.engine.address, "[engine] address"))
                assert isinstance(there, RayTasks)
                pool = Pool(there, run.engine.cpus)
                stack.callback(pool.stop)
                loaded = replace(loaded, hosts=pool)
            elif group is not None:
                loaded = replace(loaded, hosts=group)
            return loaded, driver

        run = searched(
            run,
            out,
            seed=seeds[0],
            resume=resume,
            given=given,
            open_sites=opened,
            talk=talk,
            tasks=tasks,
        )
        settings = {seed: _settings_of(run, seed) for seed in seeds}
        done = {seed: finished(folders[seed], settings[seed]) for seed in seeds if resume}
        results = {seed: result for seed, result in done.items() if result is not None}
        missing = [seed for seed in seeds if seed not in results]
        summary = None if alone else out / "result.json"  # it says that all seeds finished
        if alone or tasks.here:
            for seed in missing:
                loaded, driver = opened()
                shared = _Opened(
                    run=run, loaded=loaded, resume=resume, talk=talk, driver=driver, agreed=agreed
                )
                results[seed] = shared.train(
                    seed,
                    folders[seed],
                    settings[seed],
                    summary=summary,
                    name=out.name if alone else f"{out.name} {folders[seed].name}",
                    title="" if alone else f"seed {seed} ",
                )
        elif missing:
            loaded, driver = opened()
            if driver is not None:
                raise ConfigError("partners elsewhere train one seed at a time: leave --ray out")
            before = [(s, settings[s], packed(folders[s]) if resume else []) for s in missing]
            shared = _Opened(run=run, loaded=loaded, resume=resume)
            away = partial(shared.train_away, out.name)
            for seed, result, files in tasks.map(away, before):
                (out / "result.json").unlink(missing_ok=True)
                unpack(files, folders[seed])
                results[seed] = result
                talk.print(f"seed {seed} is trained")
        if alone:
            return results[seeds[0]]
        result = summarise([results[seed] for seed in seeds])
        write_text(out / "result.json", json.dumps(result, indent=2) + "\n")
        return result


def _plan(run: RunFile, *, resume: bool) -> Plan:
    """Plan of what partners are asked for; a run that goes on has started, and its numbers are
    counted."""
    method = methods.method_of(run.method)
    policies = asks(method, run)
    begins = 0 if resume else len(set(policies) - {"align"})
    return Plan(policies, begins, 0 if resume else method.proposed.numbers(run))


def check_group(run: RunFile) -> None:
    """Refuse what processes of torchrun do not share.

    Raises:
        ConfigError: what to do instead.
    """
    if run.engine.kind != "inprocess" or run.search is not None:
        what = "[search]" if run.search is not None else f"[engine] kind = {run.engine.kind!r}"
        raise ConfigError(
            f"torchrun shares steps of parties that are all here: leave {what} out, or torchrun"
        )


def follow(group: Group, run: RunFile, *, given: Given = NOTHING) -> None:
    """Share the steps of rank 0, which trains the run, until it ends."""
    check_group(run)
    computing(run.compute, device(run.device))
    loaded = load_data(run, given=given)

    def made(variant: str, seed: int) -> Mapping[str, StatefulParty]:
        return setup(run, seed, loaded).sides(variant)

    with threads_for(loaded):
        group.follow(made)


def _settings_of(run: RunFile, seed: int) -> dict[str, Any]:
    """The run as resolved, and what its parties' files and tables are."""
    settings = resolved(run, seed)
    if run.parties is not None:
        settings["sha256"] = fingerprints(tuple(Path(file) for file in run.parties))
    return settings


@dataclass(frozen=True, kw_only=True, eq=False)
class _Opened:
    """State that all seeds of a run share.

    Attributes:
        run: the run file, with what its search chose.
        loaded: its data.
        resume: go on from what is there.
        talk: called with what goes on.
        driver: reaches partners who are elsewhere; None: all are here.
        agreed: the proposal that the run is of.
    """

    run: RunFile
    loaded: Loaded
    resume: bool
    talk: Progress = SILENT
    driver: Driver | Coordinator | None = None
    agreed: Agreed | None = None

    def train(
        self,
        seed: int,
        folder: Path,
        settings: Mapping[str, Any],
        *,
        name: str,
        title: str = "",
        summary: Path | None = None,
    ) -> dict[str, Any]:
        """Train a seed into its folder: the method, then each baseline."""
        run, driver, accounts = self.run, self.driver, {}
        task = setup(run, seed, self.loaded)
        if isinstance(task, Training):  # a stranger's method may set up a class of its own
            task = replace(task, reported=True)
        sizes: dict[str, Any] = {"resume": self.resume, "every": run.checkpoint_every}
        with (
            using(folder),
            RunFolder(folder, settings, seed=seed, method=run.method, **sizes) as kept,
            self.talk.epochs(title) as progress,
        ):
            kept.shared, kept.sites = self.loaded.shared, self.loaded.sites
            if summary is not None:
                summary.unlink(missing_ok=True)
            if driver is not None:
                kept.name(driver.begin(seed, kept.id))
                kept.keys = driver.site_folder / KEYS
            if self.agreed is not None:
                kept.of_proposal(*self.agreed)
            with open_tracks(run, settings, kept, name=name) as tracks:

                def observe(variant: str, total: int, line: dict[str, Any]) -> None:
                    kept.epoch(variant, line)
                    tracks.line(variant, line)
                    progress(variant, total, line)

                variants = run_variants(
                    task,
                    seed,
                    observe,
                    checkpoint=kept.checkpoint,
                    skip=kept.done_variants,
                    compute=run.compute,
                    device=device(run.device),
                )
                for variant, outcome in variants:
                    kept.keep_variant(variant, outcome)
                    for party, model in outcome.models.items() if variant == run.method else ():
                        if model.decision is not None and len(model.classes) == 2:
                            self.talk.print(f"{party}: {model.decision.text(model.classes[1])}")
                    for party, missed in outcome.missed.items():
                        self.talk.warn(f"{missed_text(party, missed)}; first in {missed['first']}")
                if driver is not None:
                    accounts = driver.exchange_heads()
                result = kept.finish(None if driver is None else driver.heads())
                if driver is not None:
                    driver.record(kept.path, kept.id, accounts)
                tracks.finish(result)
                return result

    def train_away(
        self, name: str, asked: tuple[int, Mapping[str, Any], Files]
    ) -> tuple[int, dict[str, Any], Files]:
        """Train a seed on a cluster's machine; its result, with its folder's files."""
        seed, settings, before = asked
        with TemporaryDirectory() as temporary, threads_for(self.loaded):
            folder = Path(temporary) / f"seed-{seed}"
            unpack(before, folder)
            result = self.train(seed, folder, settings, name=f"{name} {folder.name}")
            return seed, result, packed(folder)


def train_away(asked: tuple[RunFile, int]) -> tuple[dict[str, Any], Files]:
    """Train a seed of a run whose data a cluster's machine reads; its result and folder."""
    run, seed = asked
    with TemporaryDirectory() as temporary:
        folder = Path(temporary) / f"seed-{seed}"
        return train_seeds(run, folder, (seed,), resume=False), packed(folder)


def open_tracks(run: RunFile, settings: Mapping[str, Any], kept: RunFolder, *, name: str) -> Tracks:
    """Where the run is watched as it goes on; of its settings, those that matter to its method.

    Raises:
        ConfigError: a tracker that cannot be reached.
    """
    others = {*methods.records()} - {methods.record_of(run.method).name}
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


def check_participation(run: RunFile, out: Path, result: Mapping[str, Any]) -> None:
    """Refuse to call a run done that a party had too small a part in; of one seed, or a summary.

    Raises:
        ParticipationError: naming the party that missed most, and what to do.
    """
    missed = result["missed"] if "seeds" in result else {"": result["missed"]}
    worst: tuple[float, str] | None = None
    for seed, parties in missed.items():
        for party, counts in parties.items():
            share = missed_share(counts)
            if share > 1 - run.min_participation and (worst is None or share > worst[0]):
                of_seed = f" of seed {seed}" if seed else ""
                folder = out / f"seed-{seed}" if seed else out
                kept = f"the model is saved as ever, in {folder}"
                if run.parties is None and isinstance(run.engine, ElsewhereSection):
                    kept = f"each party has its model at its site as ever, and {folder} the rest"
                again = "train again with the party there"
                if "refuses" in counts["first"]:  # it was there
                    again = f"put right what {party!r} refused, then train again"
                worst = (
                    share,
                    f"{missed_text(party, counts)}{of_seed} (first: {counts['first']}), and "
                    f"min_participation = {run.min_participation:g} asks for more; {kept}: "
                    f"{again}, or set min_participation lower (0 takes any)",
                )
    if worst is not None:
        raise ParticipationError(worst[1])


def check_free(
    out: Path,
    *folders: Path,
    resume: str = "--resume",
    overwrite: str = "--overwrite",
    keep: str = "--out {}",
) -> None:
    """Refuse to replace a run that finished, or one that was stopped and can go on.

    Args:
        out: the run's folder.
        folders: its seeds'.
        resume, overwrite, keep: the ways out, as the user says them.

    Raises:
        ConfigError: naming the folder, and the ways out.
    """
    stopped = [each for each in (out, *folders) if was_stopped(each)]
    ended = [each for each in (out, *folders) if (each / "result.json").exists()]
    stopped += [each for each in (out, *folders) if each not in ended and (each / FILE).exists()]
    if not (ended or stopped):
        return
    free = next(
        name
        for name in (out.with_name(f"{out.name}-{number}") for number in count(2))
        if not name.exists()
    )
    if out in ended and out not in stopped:
        raise ConfigError(
            f"{out} holds a run that finished: say the same with {overwrite} to replace "
            f"it, or with {keep.format(free)} to keep both"
        )
    raise ConfigError(
        f"{(stopped or [out])[0]} holds a run that was stopped: say the same with {resume} to go "
        f"on with it, with {overwrite} to begin anew, or with {keep.format(free)} to keep it"
    )


def check_folder(out: Path, run_file: Path | None = None, *, resume: bool = False) -> None:
    """Refuse a folder that holds something other than a run, or this run's own file.

    A run that goes on may be named by the file that its folder has.

    Raises:
        ConfigError: which folder, and to name another.
    """
    if run_file is not None and (out / "run.toml").resolve() == run_file.resolve():
        if resume and (was_stopped(out) or (out / "result.json").exists()):
            return
        raise ConfigError(
            f"{out} holds the run file {run_file} itself, which its run would overwrite; name "
            "another folder with --out, or go on with a run that was stopped there with --resume"
        )
    if out.is_file():
        raise ConfigError(f"{out} is a file; name a folder with --out")
    if out.is_dir() and any(out.iterdir()):
        # Not run.toml: a user's own has that name too.
        known = {"result.json", "metrics.jsonl", "value.json", "value.jsonl", FILE, GIVEN}
        known |= {CHECKPOINTS, LOCK}
        names = {entry.name for entry in out.iterdir()}
        if not names & known and not any(name.startswith("seed-") for name in names):
            raise ConfigError(f"{out} holds other files; name an empty folder with --out")
