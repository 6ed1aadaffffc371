"""``dovetail audit``: what each side of a run could learn, beside what it knows already."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dovetail.cli import early
from dovetail.cli.options import AsJson, Quiet, RunKeys
from dovetail.errors import ConfigError

if TYPE_CHECKING:
    from dovetail.audit.run import Audit
    from dovetail.audit.trying import Tried
    from dovetail.audit.verdict import Finding

#: Verdicts that ``--fail-over`` takes, from the weaker.
_FAIL_OVER = ("low", "high")


def audit(
    run: Annotated[Path, typer.Argument(help="A run's folder, or a run file (TOML).")],
    stage: Annotated[
        list[str] | None,
        typer.Option(help="The method or a ruler of the run; repeat for several. [the method]"),
    ] = None,
    seeds: Annotated[
        int, typer.Option(min=1, help="How many of the run's seeds to train again.")
    ] = 1,
    known: Annotated[
        int, typer.Option(min=10, help="Rows of the other side that an attacker knows.")
    ] = 100,
    fast: Annotated[bool, typer.Option("--fast", help="Linear attackers only.")] = False,
    malicious: Annotated[
        bool, typer.Option("--malicious", help="Also try peers that break the protocol.")
    ] = False,
    try_: Annotated[
        bool, typer.Option("--try", help="Also train with a dozen defences: what each costs.")
    ] = False,
    limit: Annotated[
        str, typer.Option(metavar="none|low", help="The verdict that --try may recommend up to.")
    ] = "low",
    fail_over: Annotated[
        str | None,
        typer.Option(metavar="low|high", help="Exit with 1 at this verdict or a stronger one."),
    ] = None,
    recipe: Annotated[str | None, typer.Option(help="A recipe of the run file.")] = None,
    overrides: RunKeys = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Attack a run's own messages: what could each party learn of the others?

    Trains the run again in this process, by its own settings and seeds, keeps what crosses, and
    attacks it as an honest but curious receiver would; with --malicious also as a driver or a
    partner that steers the other's training, within the limits of a home. Each figure stands
    beside the same attack without messages; the verdict is none, low or high. audit.json and
    audit.html, in the run's folder, have all of it.

    Nothing found is no proof that there is nothing to find.
    """
    if fail_over is not None and fail_over not in _FAIL_OVER:
        raise ConfigError(f"--fail-over takes low or high, got {fail_over!r}")
    if limit not in ("none", "low"):
        raise ConfigError(f"--limit takes none or low, got {limit!r}")
    if not run.is_dir():
        early.check_run(run, overrides)
    from dovetail.audit.attack import Settings
    from dovetail.audit.run import audit as audit_of
    from dovetail.audit.run import write_audit
    from dovetail.audit.trying import try_defences
    from dovetail.audit.verdict import VERDICTS
    from dovetail.cli.output import console
    from dovetail.experiment import write_text
    from dovetail.experiment.runfile import load_run
    from dovetail.experiment.valuing import places_of
    from dovetail.face.talk import talk_of
    from dovetail.models.card import renew_all
    from dovetail.report.audit import audit_page, defences_svg

    file, folder, found_seeds = places_of(run, recipe)
    run_file = load_run(file, recipe=recipe, overrides=tuple(overrides or ()))
    every = found_seeds or run_file.all_seeds()
    result = audit_of(
        run_file,
        every[:seeds],
        stages=tuple(stage or ()),
        settings=Settings(known=known, network=not fast),
        malicious=malicious,
        talk=talk_of(shown=not (quiet or as_json)),
    )
    if try_:
        talk = talk_of(shown=not (quiet or as_json))
        result.tried = try_defences(run_file, every[:seeds], limit=limit, talk=talk)  # type: ignore[arg-type]
    written = write_audit(result, folder)
    page = folder / "audit.html"
    write_text(page, audit_page(result.to_json(), folder.name))
    if result.tried is not None:
        write_text(folder / "defences.svg", defences_svg(result.tried.to_json()))
    renew_all(folder)
    if as_json:
        print(json.dumps(result.to_json(), indent=2))
    elif not quiet:
        _show(result)
        text = f"Audit: {page}, {written}"
        console().print(text, highlight=False, markup=False, soft_wrap=True)
    if fail_over and VERDICTS.index(result.verdict) >= VERDICTS.index(fail_over):
        raise typer.Exit(1)


def _show(result: Audit) -> None:
    """A row a finding, the most telling first."""
    from rich.table import Table

    from dovetail.audit.verdict import THRESHOLDS
    from dovetail.cli.output import console

    table = Table(title_justify="left", caption_justify="left")
    for name in ("who learns of whom", "what", "attack", "without", "with", "gained", "verdict"):
        table.add_column(name, justify="right" if name in ("without", "with", "gained") else "left")
    for each in sorted(result.findings, key=_order):
        several = len(result.stages) > 1 or result.malicious
        stage = f" ({each.stage})" if several else ""
        table.add_row(
            f"{each.observer} <- {each.owner}",
            f"{each.target} from {each.channel}{stage}",
            each.threat.attack,
            f"{each.baseline:.3f}",
            f"{each.score:.3f}",
            f"{each.advantage:+.0%} [{each.low:+.0%}, {each.high:+.0%}]",
            each.verdict,
        )
    out = console()
    out.print(table)
    for stage, scores in result.scores.items():
        told = ", ".join(f"{name} {value:.4f}" for name, value in scores.items())
        out.print(f"{stage}: {told}", highlight=False, markup=False, soft_wrap=True)
    out.print(f"Verdicts: {THRESHOLDS}.", highlight=False, markup=False, soft_wrap=True)
    worst = [each for each in result.findings if each.worst and each.target == "columns"]
    if worst:
        first = max(worst, key=lambda each: each.worst[2] - each.worst[1] if each.worst else 0)
        assert first.worst is not None
        name, before, after = first.worst
        out.print(
            f"Worst off: {first.owner}'s {name!r}, R2 {before:.2f} without messages, {after:.2f} "
            f"with ({first.channel} to {first.observer}).",
            highlight=False, markup=False, soft_wrap=True,
        )  # fmt: skip
    if result.tried is not None:
        _show_tried(result.tried)
    out.print(
        f"Not tried: {'; '.join(result.not_tried)}.", highlight=False, markup=False, soft_wrap=True
    )


def _show_tried(tried: Tried) -> None:
    """A row a defence."""
    from rich.table import Table

    from dovetail.cli.output import console

    names = list(dict.fromkeys(name for cell in tried.cells for name in cell.advantage))
    table = Table(title="Defences", title_justify="left", caption_justify="left")
    for name in ("defence", "held out", "test", *names, "verdict", "epsilon"):
        table.add_column(name, justify="left" if name in ("defence", "verdict") else "right")
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
    console().print(table)
    told = tried.recommended or "none of these; the table is the curve"
    text = f"Within {tried.limit!r}, the best on held-out rows: {told}."
    console().print(text, highlight=False, markup=False, soft_wrap=True)


def _order(finding: Finding) -> tuple[int, float]:
    from dovetail.audit.verdict import VERDICTS

    return -VERDICTS.index(finding.verdict), -finding.advantage
