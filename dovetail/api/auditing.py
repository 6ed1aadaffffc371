"""``dovetail.audit``: a run's own messages, attacked as their receivers could."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from dovetail.api.progress import talk_of
from dovetail.api.shown import Shown, framed, line, lined_table
from dovetail.audit.attack import Settings
from dovetail.audit.defence_search import Tried
from dovetail.audit.defence_search import try_defences as try_each
from dovetail.audit.run import Audit, write_audit
from dovetail.audit.run import audit as audit_of
from dovetail.audit.verdict import THRESHOLDS, VERDICTS, Finding
from dovetail.cluster import tasks_at
from dovetail.errors import ConfigError
from dovetail.models.card import renew_all
from dovetail.report.audit import audit_page, defences_svg
from dovetail.runs import write_text
from dovetail.runs.runfile import load_run
from dovetail.runs.runfolder import using
from dovetail.runs.valuing import folders_of


@dataclass(frozen=True, eq=False, repr=False)
class Audited(Shown):
    """Result of an audit: what each party could learn of the others.

    Attributes:
        audit: findings, scores, what was not tried.
        folder: the run's, where ``audit.json`` and ``audit.html`` are.
    """

    audit: Audit
    folder: Path

    @property
    def verdict(self) -> str:
        """The strongest of all findings: "none", "low" or "high"."""
        return self.audit.verdict

    @property
    def findings(self) -> list[Finding]:
        """The most telling first."""
        return sorted(
            self.audit.findings, key=lambda each: (-VERDICTS.index(each.verdict), -each.advantage)
        )

    def to_json(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        return self.audit.to_json()

    @cached_property
    def page(self) -> str:
        """HTML page to read or print."""
        return audit_page(self.to_json(), self.folder.name)

    def _repr_html_(self) -> str:
        return framed(self.page, height=700)

    def shown(self) -> Iterator[RenderableType]:
        audit = self.audit
        yield self._table()
        for variant, scores in audit.scores.items():
            text = ", ".join(f"{name} {value:.4f}" for name, value in scores.items())
            yield line(f"{variant}: {text}")
        yield line(f"Verdicts: {THRESHOLDS}.")
        worst = [
            (each, each.worst)
            for each in self.findings
            if each.worst is not None and each.target == "columns"
        ]
        if worst:
            first, (name, before, after) = max(worst, key=lambda each: each[1][2] - each[1][1])
            yield line(
                f"Worst off: {first.owner}'s {name!r}, R2 {before:.2f} without messages, "
                f"{after:.2f} with ({first.channel} to {first.observer})."
            )
        if audit.tried is not None:
            yield _tried_table(audit.tried)
            for name, why in audit.tried.failed.items():
                yield line(f"{name}: did not train ({why}).")
            text = audit.tried.recommended or "none of these; the table is the curve"
            yield line(f"Within {audit.tried.limit!r}, the best on held-out rows: {text}.")
        yield line(f"Not tried: {'; '.join(audit.not_tried)}.")
        yield line(f"Audit: {self.folder / 'audit.html'}, {self.folder / 'audit.json'}")

    def _table(self) -> Table:
        """A row a finding."""
        head = ("who learns of whom", "what", "attack", "without", "with", "gained", "verdict")
        table = lined_table(head, left=(0, 1, 2, 6))
        several = len(self.audit.variants) > 1 or self.audit.malicious
        for each in self.findings:
            variant = f" ({each.variant})" if several else ""
            cells = (
                f"{each.observer} <- {each.owner}",
                f"{each.target} from {each.channel}{variant}",
                each.threat.attack,
                f"{each.baseline:.3f}",
                f"{each.score:.3f}",
                f"{each.advantage:+.0%} [{each.low:+.0%}, {each.high:+.0%}]",
                each.verdict,
            )
            table.add_row(*map(Text, cells))
        return table


def audit(
    run: str | PathLike[str],
    *,
    variants: Sequence[str] = (),
    seeds: int = 1,
    known: int = 100,
    fast: bool = False,
    malicious: bool = False,
    try_defences: bool = False,
    limit: Literal["none", "low"] = "low",
    recipe: str | None = None,
    overrides: Sequence[str] = (),
    quiet: bool = False,
    ray: str | None = None,
) -> Audited:
    """Attack a run's own messages: what could each party learn of the others?

    What ``dovetail audit`` does, whose options these are. Trains the run again in this process, by
    its own settings and seeds, keeps what crosses, and attacks it as a receiver would.
    ``audit.json`` and ``audit.html``, in the run's folder, have all of it. Nothing found is no
    proof that there is nothing to find.

    Args:
        run: a run, its folder, or a run file; all parties here.
        variants: the method or a baseline of the run, for each that is audited; (): the method.
        seeds: how many of the run's seeds to train again.
        known: rows of the other side that an attacker knows.
        fast: linear attackers only.
        malicious: also try peers that break the protocol.
        try_defences: also train with a dozen defences, and say what each costs.
        limit: the verdict that a recommended defence may have at most.
        recipe: a recipe of the run file.
        overrides: changes of the run file's keys, such as "apfed.epochs=5".
        quiet: print nothing on the way.
        ray: train and attack on a Ray cluster: "auto", or its address.

    Raises:
        ConfigError: a run whose partners are elsewhere, or a variant it does not have.
    """
    if limit not in VERDICTS[:-1]:
        raise ConfigError(f"--limit takes none or low, got {limit!r}")
    file, folder, seeds_found = folders_of(Path(run), recipe)
    run_file = load_run(file, recipe=recipe, overrides=tuple(overrides))
    every = (seeds_found or run_file.all_seeds())[:seeds]
    talk = talk_of(shown=not quiet)
    with using(folder), tasks_at(ray, "ray") as tasks:
        result = audit_of(
            run_file,
            every,
            variants=tuple(variants),
            settings=Settings(known=known, network=not fast),
            malicious=malicious,
            talk=talk,
            tasks=tasks,
        )
        if try_defences:
            result.tried = try_each(run_file, every, limit=limit, talk=talk, tasks=tasks)
        write_audit(result, folder)
        audited = Audited(result, folder)
        write_text(folder / "audit.html", audited.page)
        if result.tried is not None:
            write_text(folder / "defences.svg", defences_svg(result.tried.to_json()))
        renew_all(folder)
    return audited


def _tried_table(tried: Tried) -> Table:
    """A row a defence."""
    names = list(dict.fromkeys(name for cell in tried.cells for name in cell.advantage))
    head = ("defence", "held out", "test", *names, "verdict", "epsilon")
    table = lined_table(head, left=(0, len(head) - 2), title="Defences")
    for cell in tried.cells:
        test = cell.test.get("auc", cell.test.get("accuracy", cell.test.get("r2")))
        table.add_row(
            cell.name,
            f"{cell.held_out:.3f}",
            "" if test is None else f"{test:.3f}",
            *(f"{cell.advantage[name]:+.0%}" if name in cell.advantage else "" for name in names),
            cell.verdict if cell.advantage else "",
            "" if cell.epsilon is None else f"{cell.epsilon:.3g}",
        )
    return table
