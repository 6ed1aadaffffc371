"""What ``dovetail inspect`` prints, and its page."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dovetail.audit.measured import MEASURED
from dovetail.cli.output import console, plain_table
from dovetail.errors import ConfigError
from dovetail.experiment import coverage, write_text
from dovetail.experiment import situations as methods
from dovetail.experiment.coverage import (
    Overlaps,
    Part,
    bytes_text,
    count_text,
    printable,
)
from dovetail.experiment.expecting import Expected
from dovetail.experiment.inspecting import as_values
from dovetail.experiment.situations import Fit, MessageSize, Sizes
from dovetail.methods import method_of
from dovetail.report import views as page

#: More lines of messages than this are cut short; JSON has them all.
_MESSAGES_SHOWN = 8


def show(
    parts: Sequence[Part],
    *,
    title: str,
    html_path: Path | None,
    as_json: bool,
    quiet: bool,
    run_path: str,
    overlaps_by_cardinality: Mapping[str, int] | None = None,
    withheld: Mapping[str, str] | None = None,
    least: int = 0,
    sizes: Sizes | None = None,
    expecting: Callable[[Overlaps], Expected | None] | None = None,
    stage: str | None = None,
) -> None:
    """Print who holds what and which method fits (or JSON); write the page where one is asked for.

    Args:
        parts: the parties.
        title: what was inspected.
        html_path: where the page goes.
        as_json: print JSON, nothing else.
        quiet: print nothing.
        run_path: the run file, for the next command.
        overlaps_by_cardinality: party -> samples it shares with the party with labels (the first
            of them, or the first party where none has), where ids are not to be compared. There
            is no picture of samples then.
        withheld: party -> why there is no such number of it.
        least: smaller numbers of shared samples are hidden.
        sizes: of batches and codes, where a run file says; None assumes ``Sizes()``.
        expecting: what the label owner's own rows say of help, where APFed fits.
        stage: what the run file trains, such as "apfed-d": the next command does not change it,
            and what its messages tell is its own.

    Raises:
        DataError: parties that cannot be compared.
        ConfigError: the page cannot be written.
    """
    overlaps = methods.overlaps(
        parts, by_cardinality=overlaps_by_cardinality, withheld=withheld, least=least
    )
    command_path = shlex.quote(run_path)
    fits = [
        replace(fit, next_command=fit.next_command.replace("RUN", command_path, 1))
        for fit in methods.fits(parts, counted=overlaps, sizes=sizes)
    ]
    own = None if stage is None else method_of(stage).name
    fits = [
        replace(fit, next_command=fit.next_command.partition(" --set method=")[0])
        if fit.method == own != stage
        else fit
        for fit in fits
    ]
    helped = any(fit.applies and fit.method == "apfed" for fit in fits)
    hint = expecting(overlaps) if expecting is not None and helped else None
    if html_path is not None:
        try:
            html_path.parent.mkdir(parents=True, exist_ok=True)
            write_text(html_path, page.html(parts, fits, overlaps, title=title))
        except OSError as error:
            raise ConfigError(f"cannot write {html_path}: {error.strerror}") from None
    if as_json:
        print(json.dumps(as_values(parts, fits, overlaps, title=title, hint=hint), indent=2))
    elif not quiet:
        _print(console(), parts, fits, overlaps, title, hint, {own: stage})
        if html_path is not None:
            console().print(f"Page: {html_path}", highlight=False, markup=False)


def _print(
    out: Console,
    parts: Sequence[Part],
    fits: Sequence[Fit],
    overlaps: Overlaps,
    title: str,
    hint: Expected | None,
    stages: Mapping[str | None, str | None],
) -> None:
    out.print(printable(title, style="bold"))
    out.print(printable(coverage.summary(parts, overlaps)))
    out.print()
    if overlaps.groups is not None and not overlaps.least:
        out.print(coverage.picture(parts, overlaps.groups))
        out.print()
    out.print(_party_table(parts))
    out.print()
    if overlaps.shared or overlaps.withheld:
        out.print(*_overlap_lines(overlaps), sep="\n")
        out.print()
    out.print(_method_table(fits))
    out.print()
    best = methods.recommended(fits)
    if best is None:
        out.print(
            printable("None of the four fits as things are; each line above says what is missing.")
        )
        return
    if hint is not None:
        out.print(*map(printable, hint.sentences()), sep="\n")
        out.print()
    for fit in fits:
        if fit.applies and fit.messages:
            out.print(*_message_lines(fit.title, fit.messages), sep="\n")
            out.print(*map(printable, _told(fit.method, stages.get(fit.method))), sep="\n")
            out.print()
    out.print(Text.assemble("Recommended: ", (best.title, "bold")))
    command = printable(best.next_command, style="bold" if best.available else "")
    out.print(printable("Next: ") + command, soft_wrap=True)  # a command is copied in one piece


def _party_table(parts: Sequence[Part]) -> Table:
    table = plain_table("party", "blocks (columns)", "classes", "rows", "labelled", right=2)
    for part in parts:
        has_labels = part.data.labels is not None
        table.add_row(
            printable(part.name),
            printable(coverage.blocks_text(part) or "none"),
            printable(coverage.classes_text(part) or "-"),
            f"{part.data.num_rows:,}",
            f"{len(part.data.labelled_rows()):,}" if has_labels else "-",
        )
    return table


def _overlap_lines(overlaps: Overlaps) -> tuple[Text | Table, ...]:
    centre = overlaps.centre
    rows = overlaps.rows[centre]
    said = f"Samples shared with {centre}, which has {count_text(rows, 'row')}"
    if overlaps.common is not None:
        said += f"; {coverage.shown(overlaps.common, least=overlaps.least)} are at every party"
    if overlaps.groups is None:
        said += " (counted without comparing ids in the clear)"
    table = plain_table("party", "rows", "shared", f"of {centre}'s", right=3)
    for name in (*overlaps.shared, *overlaps.withheld):
        said_of = (overlaps.shown(name), overlaps.share_shown(name))
        num_rows = f"{overlaps.rows[name]:,}" if name in overlaps.rows else "-"
        table.add_row(printable(name), num_rows, *said_of)
    return printable(said), table


def _method_table(fits: Sequence[Fit]) -> Table:
    table = plain_table("method", "does it fit?")
    for fit in fits:
        style = "bold green" if fit.applies else ""
        table.add_row(printable(fit.title, style=style), printable(fit.reason))
    return table


def _told(method: str, stage: str | None) -> list[str]:
    """What receivers of its messages learn by default settings, as audits found."""
    lines = [f"  {line}" for line in MEASURED.get(stage or method, MEASURED.get(method, ()))]
    if not lines:
        return ["What they tell: dovetail audit RUN measures it."]
    return ["What they tell, by default settings (yours: dovetail audit RUN):", *lines]


def _message_lines(title: str, messages: Sequence[MessageSize]) -> tuple[Text | Table, ...]:
    table = plain_table("party", "with", "per", "sends", "receives", right=2)
    for size in messages[:_MESSAGES_SHOWN]:
        table.add_row(
            printable(size.party),
            printable(size.partner),
            size.per,
            bytes_text(size.sent_bytes),
            bytes_text(size.received_bytes),
        )
    more = len(messages) - _MESSAGES_SHOWN
    if more > 0:
        table.add_row(printable(f"and {more:,} more"))
    return printable(f"Messages with {title} ({messages[0].assuming}):"), table
