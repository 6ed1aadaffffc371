"""Settings chosen before a run, by trials on validation rows: [search] of a run file.

The first trial is the run file as it is, so that what is chosen was no worse there; the others are
drawn from the method's values, or the file's. What judges them, ``trials.py`` says. Every trial is
a run of its own: each party's policy counts it (``policy.max_runs_per_day``), and its ledger has
its messages. ``search.json`` is written after each, and a search that was stopped goes on there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from dovetail import methods
from dovetail.cluster import LOCAL, Tasks
from dovetail.errors import ConfigError, DovetailError
from dovetail.files import merge
from dovetail.methods.base import SILENT, Loaded, Progress
from dovetail.network.retry import write_text
from dovetail.node.driver import Coordinator, Driver
from dovetail.runs.runfile import RunFile, SearchSection, check_run
from dovetail.runs.samplers import sampler
from dovetail.runs.setup import NOTHING, Given, threads_for
from dovetail.runs.trials import Judging, Trial, judging

#: What a run's folder says of its trials.
FILE = "search.json"

#: What parties with files of their own have, and what reaches those that are elsewhere.
OpenSites = Callable[[], tuple[Loaded, Driver | Coordinator | None]]


@dataclass(frozen=True)
class Found:
    """Result of a search so far.

    Attributes:
        metric: name of the score; "rmse" is the better the less.
        trials: in their order.
        rows: party with labels -> ids of the rows that judged; none of those that stay at sites.
    """

    metric: str
    trials: Sequence[Trial]
    rows: Mapping[str, Sequence[Any]]

    @property
    def best(self) -> int:
        """The place of the best."""

        def rank(index: int) -> tuple[float, float, int]:
            trial = self.trials[index]
            goodness = trial.goodness(self.metric)
            return (
                float("inf") if goodness is None else -goodness,
                trial.log_loss or 0.0,
                index,
            )

        return min(range(len(self.trials)), key=rank)

    @property
    def settings(self) -> Mapping[str, Any]:
        """Settings that were chosen; none for the run file as it is.

        Raises:
            ConfigError: no trial came to an end.
        """
        best = self.trials[self.best]
        if best.score is None:
            raise ConfigError(
                f"no trial of the search came to an end; the first: {self.trials[0].failed}"
            )
        return best.settings

    def save(self, folder: Path, *, of: str, ended: bool) -> None:
        """Write ``search.json``."""
        written = {
            "metric": self.metric,
            "best": self.best,
            "trials": [
                {key: value for key, value in vars(trial).items() if value not in (None, "")}
                for trial in self.trials
            ],
            "judged on": {party: list(ids) for party, ids in self.rows.items()},
            "of": of,
            "ended": ended,
        }
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / FILE, json.dumps(written, indent=1) + "\n")


def search(
    run: RunFile,
    *,
    seed: int,
    given: Given = NOTHING,
    open_sites: OpenSites | None = None,
    before: Sequence[Trial] = (),
    note: Callable[[Found], None] = lambda found: None,
    talk: Progress = SILENT,
    tasks: Tasks = LOCAL,
) -> Found:
    """Try settings until the budget of ``run.search`` is spent.

    Args:
        run: the run file.
        seed: of the run: which labels it keeps.
        given: data that need not be read.
        open_sites: what parties with files of their own have; not called in simulation.
        before: trials that an earlier process made.
        note: called after each trial.
        talk: called with each trial.
        tasks: where trials are made. On a cluster Optuna draws as many ahead as are on their way,
            so that it draws other settings than in one process.

    Raises:
        ConfigError: no keys to search, too few rows to judge on, a policy that allows fewer runs,
            or no trial that ends.
        PartyError: a party that refuses or is lost.
    """
    section = run.search or SearchSection()
    keys = _keys(run, section)
    drawing = sampler(section.sampler, keys, section.seed)
    loaded = driver = None
    if run.data is None:
        assert open_sites is not None
        loaded, driver = open_sites()
        if driver is None:
            _check_policies(loaded, section)
        elif not tasks.here:
            raise ConfigError(
                "parties elsewhere answer one trial at a time: leave --ray out, or search in "
                "simulation"
            )
    judge = judging(run, section, given, seed, loaded, driver)
    trials = list(before)
    for trial in trials:
        drawing.tried(trial.settings, trial.goodness(judge.metric))

    def drawn() -> Iterator[_Asked]:
        """Settings to try, until the budget is spent; in one process one after the other."""
        settings = chain([] if trials else [{}], drawing.draw())
        for number in range(len(trials) + 1, section.trials + 1):
            # What an earlier process took counts; time between trials does not.
            if trials and sum(each.seconds for each in trials) > 60 * section.minutes:
                return
            try:
                chosen = next(settings)
            except StopIteration:
                return
            yield number, with_settings(run, chosen), chosen

    try:
        for trial in tasks.map(partial(_tried, judge, seed), drawn()):
            trials.append(trial)
            drawing.tried(trial.settings, trial.goodness(judge.metric))
            scored = trial.failed or f"{judge.metric} {trial.score:.4f}"
            settings_text = dict(trial.settings) or "as the run file says"
            talk.print(f"trial {len(trials)}: {scored}  {settings_text}")
            note(Found(judge.metric, tuple(trials), judge.rows))
    except DovetailError:
        if trials and driver is not None:
            number = len(trials) + 1
            talk.warn(
                f"the search ends at trial {number}; what was tried before is kept: --resume "
                f"goes on with it, and with search.trials={number - 1} trains with the best"
            )
        raise
    result = Found(judge.metric, tuple(trials), judge.rows)
    _ = result.settings  # one came to an end
    return result


#: A trial's number, the run with its settings, and these.
_Asked = tuple[int, RunFile, Mapping[str, Any]]


def _tried(judge: Judging, seed: int, asked: _Asked) -> Trial:
    number, run, settings = asked
    with threads_for(judge.loaded):
        return judge.try_(run, settings, number, seed)


def searched(
    run: RunFile,
    out: Path,
    *,
    seed: int,
    resume: bool,
    given: Given = NOTHING,
    open_sites: OpenSites | None = None,
    talk: Progress = SILENT,
    tasks: Tasks = LOCAL,
) -> RunFile:
    """The run with what its search chose, which ``out`` keeps; a run that goes on knows it.

    Raises:
        ConfigError: what is kept is of another run; else as of ``search``.
    """
    if run.search is None:
        return run
    of = _digest(run, run.search, seed)
    before: list[Trial] = []
    if resume and (out / FILE).exists():
        written = json.loads((out / FILE).read_text(encoding="utf-8"))
        if written.get("of", of) != of:
            raise ConfigError(
                f"{out / FILE} has the trials of another run file or search; undo the change, or "
                "start anew with --overwrite"
            )
        before = [Trial(**trial) for trial in written["trials"]]
        if written.get("ended", True) or len(before) >= run.search.trials:
            settings = Found(written["metric"], before, {}).settings
            return with_settings(run, settings)

    def note(result: Found) -> None:
        result.save(out, of=of, ended=False)

    result = search(
        run,
        seed=seed,
        given=given,
        open_sites=open_sites,
        before=before,
        note=note,
        talk=talk,
        tasks=tasks,
    )
    result.save(out, of=of, ended=True)
    talk.print(
        f"chosen of {len(result.trials)}: {dict(result.settings) or 'the run file as it is'}"
    )
    return with_settings(run, result.settings)


def with_settings(run: RunFile, settings: Mapping[str, Any]) -> RunFile:
    """The run, without its search, with these keys replaced, such as "apfed.learning_rate"."""
    values = _values(run)
    for key, value in settings.items():
        nested: Any = list(value) if isinstance(value, tuple) else value
        for part in reversed(key.split(".")):
            nested = {part: nested}
        values = merge(values, nested)
    return check_run(values, where="[search]")


def check_no_job(run: RunFile) -> None:
    """Refuse to search in a job of NVFlare.

    Raises:
        ConfigError: what to do instead.
    """
    if run.search is not None and run.engine.job:
        raise ConfigError(
            "[search] trains many runs, and a job of NVFlare is one; search in simulation or over "
            'gRPC ([engine] kind = "stream"), and give the job what was chosen (search.json)'
        )


def _values(run: RunFile) -> dict[str, Any]:
    values: dict[str, Any] = run.model_dump(mode="json", exclude_none=True, exclude={"search"})
    return values


def _digest(run: RunFile, section: SearchSection, seed: int) -> str:
    """Hash of all that a trial's result depends on; not of the number of trials, nor of time."""
    search = section.model_dump(mode="json", exclude={"trials", "minutes"})
    text = json.dumps([_values(run), search, seed], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _keys(run: RunFile, section: SearchSection) -> Mapping[str, Sequence[Any]]:
    """Key -> values to try.

    Raises:
        ConfigError: none, or one that is in a party's own file.
    """
    check_no_job(run)
    method = methods.method_of(run.method)
    local_keys = () if run.data is not None else ("passive.", *method.keys.of_parties)
    if named := [key for key in section.keys if key.startswith(local_keys)] if local_keys else []:
        raise ConfigError(
            f"[search] keys names {named[0]!r}, which every party sets in its own file; leave it "
            "out, or search it in simulation"
        )
    keys: Mapping[str, Sequence[Any]] = section.keys
    if not keys:
        built_in = method.keys.searched(run)
        keys = {
            key: built_in[key]
            for key in built_in
            if not (local_keys and key.startswith(local_keys))
        }
    if not keys:
        raise ConfigError(
            f"nothing is known to search for {run.method!r}; name keys and values, for example "
            '[search] keys = { "apfed.learning_rate" = [1e-3, 1e-2] }'
        )
    return keys


def _check_policies(loaded: Loaded, section: SearchSection) -> None:
    """Refuse more trials than a party of this process would answer over a network.

    Raises:
        ConfigError: naming the party.
    """
    for name, site in loaded.sites.items():
        most = site.policy.section.max_runs_per_day
        if name != loaded.active and section.trials >= most:
            raise ConfigError(
                f"party {name!r} answers {most} runs a day (its policy.max_runs_per_day), and "
                f"[search] with {section.trials} trials and the run that follows are "
                f"{section.trials + 1}; set search.trials to less than {most}"
            )
