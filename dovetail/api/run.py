"""A run that was trained: its scores, its models, its folder, a page about it."""

from __future__ import annotations

import json
import shutil
import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.api.scores import Scores
from dovetail.errors import ConfigError
from dovetail.lazy import needed
from dovetail.models import Model
from dovetail.models.joined import open_model
from dovetail.report.folder import number_of, read_run
from dovetail.report.make import make_report

if TYPE_CHECKING:
    import pandas as pd

    from dovetail.api import auditing, valuing


class _Later:
    """A method that is a function of another module, imported when it is first used."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name

    def __get__(self, run: object, owner: type) -> Callable[..., Any]:
        function: Callable[..., Any] = getattr(import_module(self.module), self.name)
        return function if run is None else partial(function, run)


class Models(Mapping[str, Model]):
    """Party -> its model; each is read from the run's folder when it is first asked for."""

    def __init__(self, folder: Path, run: Run) -> None:
        self._run = run  # a temporary folder is removed when nobody holds its run
        self._folders = {
            path.parent.name: path.parent for path in sorted(folder.glob("models/*/model.json"))
        }
        self._read: dict[str, Model] = {}

    def __getitem__(self, party: str) -> Model:
        if party not in self._folders:
            known = ", ".join(map(repr, self)) or "none here"
            raise ConfigError(f"party {party!r} has no model of this run; with a model: {known}")
        if party not in self._read:
            self._read[party] = open_model(self._folders[party])
        return self._read[party]

    def __contains__(self, party: object) -> bool:
        return party in self._folders

    def __iter__(self) -> Iterator[str]:
        return iter(self._folders)

    def __len__(self) -> int:
        return len(self._folders)

    def __repr__(self) -> str:
        return f"<models of {', '.join(self) or 'nobody'}>"


class Run:
    """A finished run; ``Run("out/run")`` opens one that ``dovetail train`` or ``fit`` wrote.

    Args:
        folder: the run's folder.

    ``run.value()`` and ``run.audit()`` are ``dovetail value`` and ``dovetail audit`` of it.

    Attributes:
        folder: where everything of it is.
        result: what ``result.json`` says.

    Raises:
        ConfigError: no folder of a finished run.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        try:
            self.result: dict[str, Any] = json.loads(
                (self.folder / "result.json").read_text(encoding="utf-8")
            )
        except (OSError, ValueError):
            raise ConfigError(
                f"{self.folder} is no folder of a finished run: it has no result.json; name what "
                "--out or out= named, or train it to its end"
            ) from None

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds that were run."""
        return tuple(self.result.get("seeds", [self.result.get("seed", 0)]))

    @cached_property
    def scores(self) -> Scores:
        """Scores on the test rows: of the models, then of the baselines."""
        return Scores(self.result)

    @cached_property
    def models(self) -> Models:
        """Party -> its model, of the first seed."""
        return self.models_of(self.seeds[0])

    def models_of(self, seed: int) -> Models:
        """Party -> its model, of this seed.

        Raises:
            ConfigError: a seed that was not run.
        """
        if seed not in self.seeds:
            raise ConfigError(f"seed {seed} was not run; seeds are {list(self.seeds)}")
        folder = self.folder if "seeds" not in self.result else self.folder / f"seed-{seed}"
        return Models(folder, self)

    def curves(self) -> pd.DataFrame:
        """A line for each epoch or round that was scored or timed, of each seed and variant.

        Columns: ``seed``, ``variant``, ``number`` (the epoch or round, from 1), then whatever was
        measured: ``seconds``, losses, scores on the test rows. Several parties' scores are means;
        ``parties`` of ``metrics.jsonl`` has each.

        Raises:
            ConfigError: pandas is not installed.
        """
        with needed("curves()", "pandas"):
            import pandas
        rows = [
            {"seed": seed.seed, "variant": variant, "number": number_of(line), **_numbers_of(line)}
            for seed in read_run(self.folder).seeds
            for variant, lines in seed.lines.items()
            for line in lines
        ]
        return pandas.DataFrame(rows)

    def report(self, path: str | Path | None = None, *, data: bool = True) -> Path:
        """Write a page about the run, of one file that any browser opens; gives its path.

        Args:
            path: the page; None: report.html in the run's folder.
            data: also draw who has which rows, from the tables that the run names.

        Raises:
            ConfigError: a page that cannot be written.
        """
        page = None if path is None else Path(path)
        return make_report([self.folder], out=page, data=data)

    if TYPE_CHECKING:
        value = valuing.value
        audit = auditing.audit
    else:  # a run that is only trained needs no attacks
        value = _Later("dovetail.api.valuing", "value")
        audit = _Later("dovetail.api.auditing", "audit")

    def __fspath__(self) -> str:
        """The run's folder, wherever a path is taken."""
        return str(self.folder)

    def __repr__(self) -> str:
        return f"{self.scores!r}\nRun folder: {self.folder}"

    def _repr_html_(self) -> str:
        return self.scores._repr_html_() + self.scores.picture()


def _numbers_of(line: Mapping[str, Any]) -> dict[str, float]:
    """Measurements of a line, without the number of its epoch or round."""
    return {
        name: float(value)
        for name, value in line.items()
        if name not in ("epoch", "round") and isinstance(value, int | float)
    }


def temporary(folder: Path) -> Run:
    """A run whose folder, and that above it, are removed when nobody holds the run any more."""
    run = Run(folder)
    weakref.finalize(run, shutil.rmtree, folder.parent, ignore_errors=True)
    return run
