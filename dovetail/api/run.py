"""A run that was trained: its scores, its models, its folder, a page about it."""

from __future__ import annotations

import json
import shutil
import weakref
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.api.scores import Scores
from dovetail.errors import ConfigError
from dovetail.models import Model
from dovetail.models.joined import open_model
from dovetail.report.folder import number_of, read_run
from dovetail.report.make import make_report

if TYPE_CHECKING:
    import pandas as pd

    from dovetail.api.auditing import Audited
    from dovetail.api.valuing import Values


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
        try:
            import pandas
        except ImportError:
            raise ConfigError("curves() needs pandas: pip install pandas") from None
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

    def value(
        self,
        by: str = "shapley",
        *,
        metric: str | None = None,
        seeds: int | None = None,
        partners: Sequence[str] | None = None,
        permutations: int | None = None,
        fresh: bool = False,
        quiet: bool = False,
    ) -> Values:
        """Rank the partners by what they are worth; trains again with sets of them.

        Args:
            by: "mi" (mutual information of a partner's columns with the labels, trains nothing),
                "loo" (leave-one-out), or "shapley"; each with those before it.
            metric: a test score; None: AUC, accuracy or RMSE, by the label.
            seeds: how many; None: those of the run.
            partners: value these, the others always take part; None: all.
            permutations: sample Shapley by so many random orders; None: beyond 8 partners 20.
            fresh: train again what was trained before.
            quiet: show no bar.

        Raises:
            ConfigError: a measure or score that there is not, or partners who are elsewhere.
        """
        from dovetail.api.valuing import value

        return value(
            self.folder,
            by=by,
            metric=metric,
            seeds=seeds,
            partners=partners,
            permutations=permutations,
            fresh=fresh,
            quiet=quiet,
        )

    def audit(
        self,
        *,
        variants: Sequence[str] = (),
        seeds: int = 1,
        known: int = 100,
        fast: bool = False,
        malicious: bool = False,
        try_defences: bool = False,
        quiet: bool = False,
    ) -> Audited:
        """Attack the run's own messages: what could each party learn of the others?

        Trains it again in this process, and writes audit.json and audit.html to its folder.

        Args:
            variants: the method and baselines to audit; (): the method.
            seeds: how many of the run's.
            known: rows of the other side that an attacker knows.
            fast: linear attackers only.
            malicious: also peers that break the protocol.
            try_defences: also train with a dozen defences, and say what each costs.
            quiet: tell nothing on the way.

        Raises:
            ConfigError: a run whose partners are elsewhere, or a variant it does not have.
        """
        from dovetail.api.auditing import audit

        return audit(
            self.folder,
            variants=variants,
            seeds=seeds,
            known=known,
            fast=fast,
            malicious=malicious,
            try_defences=try_defences,
            quiet=quiet,
        )

    def __repr__(self) -> str:
        return f"{self.scores!r}\nRun folder: {self.folder}"

    def _repr_html_(self) -> str:
        return self.scores._repr_html_() + self.scores.picture()


def _numbers_of(line: Mapping[str, Any]) -> dict[str, float]:
    """What a line measured, but for the number of its epoch or round."""
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
