"""A driver's room: runs that wait, go on and are done; their reports, models and audits."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dovetail.companions.room.jobs import GOING, Job, Jobs
from dovetail.errors import ConfigError, DataError, DovetailError
from dovetail.files import check_is_run, read_run
from dovetail.models.card import card, kept_heads, markdown
from dovetail.models.joined import open_model
from dovetail.models.prediction import Prediction
from dovetail.node.proposal import read_proposal
from dovetail.report.folder import Run
from dovetail.report.folder import read_run as read_folder
from dovetail.report.gather import coverage_of, known_names, names_of
from dovetail.report.page import html
from dovetail.report.tables import headline, scored, value_text

#: Folders of runs that are listed, and bytes of rows that a model is tried on.
_MOST, MAX_ROWS_BYTES = 500, 64 * 1024

#: Before the name of a run, what its audit is called.
_AUDIT = "audit of "


@dataclass(frozen=True)
class Line:
    """A run in the list.

    Attributes:
        name: its folder.
        state: how it stands: waiting, running, done, stopped or failed.
        method: what it trains; "" while nobody knows.
        progress: how far it is, in words.
        figure, figure_name: its main score, and what that is.
        beside: the best local model's, on the same rows.
        verdict: of an audit; "" if there was none.
    """

    name: str
    state: str
    method: str = ""
    progress: str = ""
    figure: str = ""
    figure_name: str = ""
    beside: str = ""
    verdict: str = ""


class DriverRoom:
    """The runs of one folder.

    Args:
        folder: where runs are, a folder each.
        run_files: where run files are looked for.
        at_a_time: runs that train side by side.
    """

    def __init__(self, folder: Path, *, run_files: Path, at_a_time: int = 1) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._run_files = run_files
        self.jobs = Jobs(folder, accepts=self._is_ours, at_a_time=at_a_time)
        self._read: dict[str, tuple[object, Run]] = {}

    @property
    def title(self) -> str:
        return f"Runs in {self.folder.resolve().name}"

    # --- What is shown --------------------------------------------------------------------------

    def run_files(self) -> list[str]:
        """Run files that can be trained, by name."""
        found = []
        for path in sorted(self._run_files.glob("*.toml"))[:_MOST]:
            try:
                values = read_run(path)
                check_is_run(values, path)
            except DovetailError:
                continue
            if "method" in values:
                found.append(path.name)
        return found

    def proposals(self) -> list[str]:
        """Proposals beside the run files, by name."""
        found = []
        for path in sorted(self._run_files.glob("*.json"))[:_MOST]:
            try:
                read_proposal(path)
            except DovetailError:
                continue
            found.append(path.name)
        return found

    def runs(self) -> list[Line]:
        """All runs, the newest first; those that wait before them."""
        known = {path.name: path for path in self.folders()}
        waiting = [
            Line(job.name, job.state)
            for job in self.jobs.all()
            if job.arguments[:1] == ("train",) and job.name not in known and job.state != "done"
        ]
        newest = sorted(known.values(), key=lambda path: _written(path), reverse=True)
        return [*waiting, *(self._line(path) for path in newest)]

    def folders(self) -> list[Path]:
        """The folders of runs."""
        found = [
            Path(entry.path)
            for entry in os.scandir(self.folder)
            if entry.is_dir() and not entry.name.startswith(".") and entry.name.isprintable()
        ]
        return [path for path in found[:_MOST] if _is_run(path)]

    def _line(self, path: Path) -> Line:
        job = self.jobs.of(path.name)
        going = job.state if job is not None and job.state in GOING else ""
        try:
            run = self.run(path.name)
        except DovetailError as error:
            return Line(path.name, going or "failed", progress=str(error))
        figure = headline(run, known_names().of(run.method))
        finished = all(seed.finished for seed in run.seeds)
        return Line(
            path.name,
            going or ("done" if finished else job.state if job is not None else "stopped"),
            run.method,
            "" if finished else _progress(run),
            figure.figure,
            figure.figure_name,
            figure.against.partition("; ")[2],
            run.audit.verdict if run.audit is not None else "not run" if finished else "",
        )

    def run(self, name: str) -> Run:
        """Contents of a run's folder; read again when its files have changed.

        Raises:
            ConfigError: no such run.
        """
        path = self._path(name)
        stamp = [(str(each), _written_file(each)) for each in _files_of(path)]
        kept = self._read.get(name)
        if kept is None or kept[0] != stamp:
            kept = self._read[name] = (stamp, read_folder(path))
        return kept[1]

    def report(self, names: Sequence[str]) -> str:
        """The report of one run, or of several side by side: a page.

        Raises:
            ConfigError: no such run.
        """
        runs = [self.run(name) for name in names]
        for run, shown in zip(runs, names_of([run.path for run in runs]), strict=True):
            run.name = shown
        held = {run.name: coverage_of(run, read_tables=False) for run in runs}
        coverage = {name: each for name, each in held.items() if each is not None}
        return html(runs, known_names(), coverage=coverage)

    def models(self, name: str) -> list[str]:
        """Whose models a run's folder has."""
        folder = self._path(name)
        return sorted(
            path.parent.relative_to(folder).as_posix()
            for pattern in ("models/*/model.json", "seed-*/models/*/model.json")
            for path in folder.glob(pattern)
        )

    def card(self, name: str, model: str) -> str:
        """A model's card, as text.

        Raises:
            ModelError: no such model.
        """
        folder = self._model(name, model)
        return markdown(card(folder, heads=kept_heads(folder)))

    def columns(self, name: str, model: str) -> list[str]:
        """The columns that a model reads."""
        opened = open_model(self._model(name, model))
        names = [
            each for input_ in opened.inputs.values() for each in getattr(input_, "columns", ())
        ]
        return list(dict.fromkeys(names))

    def predict(self, name: str, model: str, rows: str) -> Prediction:
        """Prediction of a model for some rows.

        Args:
            rows: CSV, the names of columns in its first line.

        Raises:
            DataError: rows that do not fit.
        """
        if len(rows.encode()) > MAX_ROWS_BYTES:
            raise DataError(f"a model is tried on {MAX_ROWS_BYTES:,} bytes of rows at most")
        opened = open_model(self._model(name, model))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "rows.csv"
            path.write_text(rows.replace("\r\n", "\n"), encoding="utf-8")
            return opened.predictions(path, allow_unseen=True)

    def files(self) -> Iterator[Path]:
        """Files that change when anything that is shown does."""
        yield self.folder
        for path in self.folders():
            yield from _files_of(path)
        yield from self.jobs.logs()

    def state(self) -> object:
        """State of what is in no file."""
        return self.jobs.state()

    # --- What is done ---------------------------------------------------------------------------

    def train(self, file: str, name: str, *, proposal: str = "", resume: bool = False) -> Job:
        """Let a run wait for its turn: ``dovetail train``.

        Args:
            file: the run file.
            name: of the run's folder.
            proposal: the file that all parties have signed; "": none is asked for.
            resume: go on with a run that was stopped.

        Raises:
            ConfigError: no such run file or proposal, or a name that is taken.
        """
        if name.startswith(_AUDIT):
            raise ConfigError(f"a run is not called {_AUDIT!r}..., as audits are")
        if (self.folder / name).exists() and not resume:
            raise ConfigError(f"there is a run {name!r} already; give it another name")
        return self.jobs.add(name, self._arguments(file, name, proposal, resume))

    def _arguments(self, file: str, name: str, proposal: str, resume: bool) -> list[str]:
        """Raises ConfigError: no such run file or proposal."""
        if file not in self.run_files():
            raise ConfigError(f"there is no run file {file!r} in {self._run_files}")
        path = str((self._run_files / file).resolve())
        arguments = ["train", path, "--out", str((self.folder / name).resolve())]
        if proposal:
            if proposal not in self.proposals():
                raise ConfigError(f"there is no proposal {proposal!r} in {self._run_files}")
            arguments += ["--proposal", str((self._run_files / proposal).resolve())]
        return [*arguments, *(["--resume"] if resume else [])]

    def _is_ours(self, job: Job) -> bool:
        """Whether a command that waits is one that this room would begin."""
        try:
            kind, path, *options = job.arguments
            if kind == "audit":
                expected = self._audit(job.name.removeprefix(_AUDIT))
            else:
                file, resume = Path(path).name, "--resume" in options
                of = options.index("--proposal") + 1 if "--proposal" in options else None
                proposal = "" if of is None else Path(options[of]).name
                expected = self._arguments(file, job.name, proposal, resume)
        except (ConfigError, IndexError, TypeError, ValueError):
            return False
        return [*job.arguments] == expected

    def audit(self, name: str) -> Job:
        """Let an audit of a run wait for its turn: ``dovetail audit``.

        Raises:
            ConfigError: no such run, or one that is not done.
        """
        if not all(seed.finished for seed in self.run(name).seeds):
            raise ConfigError(f"the run {name!r} is not done; an audit needs its models")
        return self.jobs.add(f"{_AUDIT}{name}", self._audit(name))

    def _audit(self, name: str) -> list[str]:
        return ["audit", str(self._path(name).resolve())]

    def stop(self, name: str) -> None:
        """End a run that waits or trains; what it has finished is kept.

        Raises:
            ConfigError: none of that name waits or runs.
        """
        self.jobs.stop(name)

    def _path(self, name: str) -> Path:
        path = self.folder / name
        if path.parent != self.folder or name.startswith(".") or not _is_run(path):
            raise ConfigError(f"there is no run {name[:80]!r} in {self.folder}")
        return path

    def _model(self, name: str, model: str) -> Path:
        if model not in self.models(name):
            raise ConfigError(f"the run {name!r} has no model {model[:80]!r}")
        return self._path(name) / model


def _is_run(path: Path) -> bool:
    return (path / "run.toml").exists() or any(path.glob("seed-*/run.toml"))


def _files_of(path: Path) -> list[Path]:
    """The files of a run that change while it goes on."""
    names = ("run.toml", "metrics.jsonl", "result.json", "audit.json")
    return [
        folder / name for folder in (path, *sorted(path.glob("seed-*"))[:100]) for name in names
    ]


def _written(path: Path) -> float:
    return max(map(_written_file, _files_of(path)), default=0.0)


def _written_file(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _progress(run: Run) -> str:
    """How far an unfinished run is."""
    seed = run.seeds[-1]
    for variant in reversed(seed.variants):
        lines = seed.lines.get(variant)
        if lines:
            what = "epoch" if "epoch" in lines[-1] else "round"
            rows = {row.name: row for row in scored(run)}
            values = rows[variant].values("accuracy") if variant in rows else []
            scores = f", accuracy {value_text(values)}" if values else ""
            return f"seed {seed.seed}, {variant}: {what} {lines[-1].get(what)}{scores}"
    return f"seed {seed.seed}: starts"
