"""A table as Markdown for people, and its runs as JSON lines for programs."""

from __future__ import annotations

import json
import platform
import re
import statistics
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import torch

from benchmarks.tables.cells import (
    Line,
    Run,
    Table,
    half_interval,
    mean_and_spread,
    numbers_text,
)
from dovetail.errors import ConfigError
from dovetail.network.retry import write_text

#: At or above the paper's figure, as printed; and below it.
ABOVE, BELOW = "▲", "▼"


def json_line(table: str, run: Run, **more: Any) -> str:
    """One run, flat, so that pandas reads it; scores are fractions.

    Args:
        more: what else is told of the run.
    """
    cell = run.cell
    line = {
        "bench": table,
        "cell": cell.name,
        **cell.labels,
        "seed": run.seed,
        **more,
        "run": cell.run,
        "score": cell.score,
        **run.scores,
        "seconds": round(run.seconds, 1),
    }
    return json.dumps(line, ensure_ascii=False) + "\n"


def machine() -> dict[str, str]:
    """What the runs of today are made with."""
    return {
        "date": date.today().isoformat(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "machine": platform.machine(),
    }


def difference(line: Line) -> str:
    """Ours less the paper's, with its mark.

    >>> from benchmarks.tables.cells import Figure
    >>> difference(Line({}, "alone", Figure(95.24, 0.12), [95.2, 95.0]))
    '▼ −0.14'
    >>> difference(Line({}, "alone", Figure(95.24, 0.12), [95.239, 95.241]))
    '▲ +0.00'
    """
    value = line.difference
    if value is None:
        return ""
    return f"{ABOVE if value >= 0 else BELOW} {signed(value)}"


def signed(value: float, spread: float | None = None) -> str:
    """A difference, with its sign."""
    sign = "−" if value < 0 else "+"
    return sign + numbers_text(abs(value), spread)


def grid(table: Table, lines: Sequence[Line]) -> tuple[list[str], list[list[str]]]:
    """Names of the columns, and the cells of the table as text."""
    if table.wide:
        return _wide(table, lines)
    labels = list(lines[0].labels) if lines else []
    compared = any(line.paper is not None for line in lines)
    gained = any(line.gains for line in lines)
    titles = {score: title for cell in table.cells for score, title in cell.scores.items()}
    names = [*labels, "method"]
    names += ["paper %"] if compared else []
    names += ["here %"]
    names += ["here − paper"] if compared else []
    names += [f"less {titles[table.against]}"] if gained else []
    more = {
        column: any(line.more[column][0] is not None for line in lines)
        for column in table.more.values()
    }
    for column, printed in more.items():
        names += [f"paper's {column}", f"{column} here"] if printed else [column]
    names += ["runs"]
    rows = []
    for line in lines:
        row = [*(line.labels[name] for name in labels), line.method]
        row += [str(line.paper or "")] if compared else []
        row += [numbers_text(line.mean, line.spread) if line.values else ""]
        row += [difference(line)] if compared else []
        row += [_gain(line)] if gained else []
        for column, printed in more.items():
            paper, values = line.more[column]
            row += ["" if paper is None else f"{paper:.4f}"] if printed else []
            row += [_plain(statistics.fmean(values)) if values else ""]
        done = len(line.values)
        row += [str(done) if done == line.planned else f"{done} of {line.planned}"]
        rows.append(row)
    return names, rows


def _wide(table: Table, lines: Sequence[Line]) -> tuple[list[str], list[list[str]]]:
    """A line a group: the means of all scores, and the gains that are the point."""
    groups, titles = _groups(lines), _titles(table)
    shown = [title for title in titles.values() if any(title in group for group in groups.values())]
    against = titles[table.against]
    labels = list(lines[0].labels) if lines else []
    names = [*labels, *shown, *(f"{titles[score]} less {against}" for score in table.wide)]
    names += [f"{against} less best learner"] if table.singles else []
    names += ["runs"]
    rows = []
    for values, group in groups.items():
        row = [*values, *(f"{group[title].mean:.1f}" if title in group else "" for title in shown)]
        row += [_wide_gain(group.get(titles[score])) for score in table.wide]
        if table.singles:
            behind = _behind(table, group)
            row.append("" if behind is None else f"{behind[0]:+.1f}".replace("-", "−"))
        line = next(iter(group.values()))
        done, planned = max(len(each.values) for each in group.values()), line.planned
        row.append(str(done) if done == planned else f"{done} of {planned}")
        rows.append(row)
    return names, rows


def _wide_gain(line: Line | None) -> str:
    gains = () if line is None else line.gains
    half = half_interval(gains)
    gain = f"{sum(gains) / len(gains):+.1f}".replace("-", "−") if gains else ""
    return gain if half is None else f"{gain} ± {half:.1f}"


def _groups(lines: Sequence[Line]) -> dict[tuple[str, ...], dict[str, Line]]:
    """Labels -> method -> its line; of those with figures."""
    groups: dict[tuple[str, ...], dict[str, Line]] = {}
    for line in lines:
        if line.values:
            groups.setdefault(tuple(line.labels.values()), {})[line.method] = line
    return groups


def _titles(table: Table) -> dict[str, str]:
    return {score: title for cell in table.cells for score, title in cell.scores.items()}


def _behind(table: Table, group: Mapping[str, Line]) -> tuple[float, list[float]] | None:
    """What is compared against, less the best of ``singles``: by their means, and run by run."""
    titles = _titles(table)
    reference = group.get(titles[table.against])
    singles = [group[titles[name]] for name in table.singles if titles[name] in group]
    if (
        reference is None
        or not singles
        or any(len(s.values) != len(reference.values) for s in singles)
    ):
        return None
    each = [
        value - max(others)
        for value, *others in zip(reference.values, *(s.values for s in singles), strict=True)
    ]
    return reference.mean - max(single.mean for single in singles), each


def _behind_text(table: Table, lines: Sequence[Line]) -> str:
    """How often a choice of learner was wrong."""
    margins = [_behind(table, group) for group in _groups(lines).values()]
    known = [each for each in margins if each is not None]
    if not known:
        return ""
    fixed = sum(mean < -0.5 for mean, _ in known)
    runs = [run for _, each in known for run in each]
    return (
        '"less best learner": the one with the best mean over the runs of a line. More than half a '
        f"point behind it in {fixed} of {len(known)} lines; behind the best of each run, seen "
        f"afterwards, in {sum(run < -0.5 for run in runs)} of {len(runs)} runs."
    )


def _plain(value: float) -> str:
    """A loss with three decimals, megabytes with none.

    >>> _plain(0.31251), _plain(3884.52)
    ('0.313', '3,885')
    """
    return f"{value:,.0f}" if value >= 100 else f"{value:.3f}"


def _gain(line: Line) -> str:
    return signed(*mean_and_spread(line.gains)) if line.gains else ""


def markdown(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table.

    >>> print(markdown(["a", "b"], [["1", "2"]]), end="")
    | a | b |
    | --- | --- |
    | 1 | 2 |
    """
    every = [names, ["---"] * len(names), *rows]
    return "".join(f"| {' | '.join(row)} |\n" for row in every)


def page(
    table: Table,
    lines: Sequence[Line],
    *,
    command: str,
    about: Mapping[str, Any],
    left_out: Mapping[str, Sequence[str]],
    picture: str = "",
) -> str:
    """The Markdown page of a table.

    Args:
        command: that made it.
        about: what it was made with.
        left_out: reason -> cells that have no figures for it.
        picture: file name of a picture beside it.
    """
    text = f"# {table.title}\n\n`{command}`\n\n{body(table, lines)}"
    if picture:
        text += f"\n![{table.title}]({picture})\n"
    for reason, cells in left_out.items():
        text += f"\nNot here: {', '.join(cells)}: {reason}\n"
    about_text = ", ".join(f"{key} {value}" for key, value in about.items())
    return f"{text}\n{about_text}.\n"


def body(table: Table, lines: Sequence[Line]) -> str:
    """The table and what has to be said with it; only lines that have figures."""
    filled = [line for line in lines if line.values]
    text = markdown(*grid(table, filled)) if filled else "Nothing has run yet.\n"
    paragraphs = []
    if any(line.paper is not None for line in filled):
        paragraphs.append(
            f"Paper: {table.source}. {ABOVE} at or above the paper's figure, {BELOW} below it."
        )
    if table.wide:
        paragraphs.append("Means over the runs; ±: half the 95 % interval of the gain, run by run.")
        paragraphs += [
            filled for filled in [_behind_text(table, lines)] if filled and table.singles
        ]
    elif any(len(line.values) > 1 for line in filled):
        paragraphs.append("± is the standard deviation over the runs.")
    if any(line.gains for line in filled) and not table.wide:
        paragraphs.append('"less": the difference run by run, and its spread.')
    if table.note:
        paragraphs.append(table.note)
    return text + "".join(f"\n{sentence}\n" for sentence in [" ".join(paragraphs)] if paragraphs)


def put_into(path: Path, name: str, text: str) -> None:
    """Put a table between its marks in a page: <!-- bench NAME --> and <!-- /bench NAME -->.

    Raises:
        ConfigError: the page is not there, or lacks the marks.
    """
    try:
        whole = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the page {path}: {error}") from None
    start, end = f"<!-- bench {name} -->", f"<!-- /bench {name} -->"
    pattern = re.compile(rf"({re.escape(start)}\n).*?({re.escape(end)})", re.DOTALL)
    if not pattern.search(whole):
        raise ConfigError(f"{path} lacks the lines {start} and {end}, between which the table goes")
    write_text(path, pattern.sub(lambda match: f"{match[1]}{text}{match[2]}", whole, count=1))


def time_text(seconds: float) -> str:
    """In words.

    >>> told_time(50), told_time(3000), told_time(30000)
    ('50 s', '50 min', '8.3 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
