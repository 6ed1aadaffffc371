"""A run that was trained: its scores, its models, its folder, a page about it."""

from __future__ import annotations

import json
import shutil
import weakref
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from dovetail.errors import ConfigError
from dovetail.face.scores import Scores
from dovetail.methods.fedoptimus.predicting import open_model
from dovetail.models import Model
from dovetail.report.make import make_report


class Models(Mapping[str, Model]):
    """Party -> its model; each is read from the run's folder when it is first asked for."""

    def __init__(self, folder: Path) -> None:
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
        """Scores on the test rows: of the models, then of the rulers."""
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
        return Models(self.folder if "seeds" not in self.result else self.folder / f"seed-{seed}")

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

    def __repr__(self) -> str:
        return f"{self.scores!r}\nRun folder: {self.folder}"

    def _repr_html_(self) -> str:
        return self.scores._repr_html_() + self.scores.picture()


def temporary(folder: Path) -> Run:
    """A run whose folder, and that above it, are removed when nobody holds the run any more."""
    run = Run(folder)
    weakref.finalize(run, shutil.rmtree, folder.parent, ignore_errors=True)
    return run
