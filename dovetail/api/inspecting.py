"""``dovetail.inspect``: who holds what, which methods fit and why, and what would cross."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from dovetail import methods
from dovetail.api import methods as papers
from dovetail.api.methods import DISTIL, MIXED, SEALED
from dovetail.api.party import Party
from dovetail.api.picture import picture
from dovetail.api.progress import talk_of
from dovetail.api.shown import Shown, framed, plain_table, terminal_text
from dovetail.api.simulation import Simulation
from dovetail.audit.measured import reported, reported_of
from dovetail.data import coverage
from dovetail.data.coverage import Overlaps, Part
from dovetail.data.leaks import leaks
from dovetail.data.wording import bytes_text, class_shares, count_text, toml_key, toml_text
from dovetail.errors import ConfigError
from dovetail.files import read_run
from dovetail.methods.aligning import count_sites, zeros_apart
from dovetail.methods.base import Progress, Site
from dovetail.methods.facets.fits import Fit, MessageSize, Sizes
from dovetail.models.shown import few
from dovetail.node.partyfile import open_sites
from dovetail.node.site_folder import warnings_of
from dovetail.report import views
from dovetail.runs import situations, write_text
from dovetail.runs.expected_gain import Expected
from dovetail.runs.inspecting import (
    as_values,
    expected_of_part,
    expected_of_site,
    part_of,
)
from dovetail.runs.label_copies import copies_of_sites
from dovetail.runs.letters import by_letter, of_run
from dovetail.runs.runfile import RunFile, check_run, load_run
from dovetail.runs.setup import NOTHING, Given, far_of, guessed_of, load_data, with_labels

if TYPE_CHECKING:
    from dovetail.api.fit import Parties

WHERE = "dovetail.inspect"

#: In the place of a run file's path: the next step is a word of Python.
PYTHON = ""

#: More lines of messages than this are cut short; JSON has them all.
_MESSAGES_SHOWN = 8

#: What solo and joint models gained on tables that no default was chosen on
#: (benchmarks/results/unseen.jsonl; a test recomputes it).
UNSEEN = (
    "On 18 tables that nothing of the solo model was chosen on, it gained 0.6 points of AUC over "
    "the best local model with 100 labels, and 0.4 with 300. The joint model, which needs the "
    "partners at each prediction, gained 2.8 and 3.3 (means)."
)

Expecting = Callable[[Overlaps], Expected | None]


@dataclass(frozen=True, eq=False, repr=False)
class Inspection(Shown):
    """Result of an inspection: which party holds what, and which method fits.

    Attributes:
        title: what was inspected.
        parts: what each party brings.
        overlaps: the samples that they share.
        fits: of each method whether it fits, why, the next command and the messages to come.
        expected: what the label owner's own rows say of help, where APFed fits.
        variant: what is to be trained, such as "apfed", if that is known.
        elsewhere: partners on other machines, whose tables cannot be looked at from here.
        settings: method -> its section of the run file, where one says.
    """

    title: str
    parts: Sequence[Part]
    overlaps: Overlaps
    fits: Sequence[Fit]
    expected: Expected | None = None
    variant: str | None = None
    elsewhere: Sequence[str] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def _variant(fit: Fit) -> str:
        """Variant of a method that its next command trains."""
        named = re.search(r"method=([\w-]+)", fit.next_command)
        if named is not None:
            return named[1]
        return fit.method

    @property
    def recommended(self) -> str | None:
        """The method that fits best; None: none does as things are."""
        best = situations.recommended(self.fits)
        return None if best is None else best.method

    @property
    def verdict(self) -> str:
        """In words: which method fits, and what to expect of the solo and of the joint model."""
        best = situations.recommended(self.fits)
        if best is None:
            return f"None of the {_number(self.fits)} methods fits as things are: " + " ".join(
                f"{fit.title}: {fit.reason}." for fit in self.fits
            )
        sentences = [f"{best.title} fits ({best.reason})."]
        if self.expected is not None and best.method == "apfed":
            sentences = [*self.expected.sentences(), UNSEEN]
        return "\n".join(sentences)

    def to_json(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        return as_values(self.parts, self.fits, self.overlaps, title=self.title, hint=self.expected)

    @cached_property
    def page(self) -> str:
        """Self-contained HTML page: the picture, its numbers, overlaps, methods."""
        return views.html(self.parts, self.fits, self.overlaps, title=self.title)

    def save(self, path: str | Path) -> Path:
        """Write the page.

        Raises:
            ConfigError: it cannot be written.
        """
        path = Path(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, self.page)
        except OSError as error:
            raise ConfigError(f"cannot write {path}: {error.strerror}") from None
        return path

    def _repr_html_(self) -> str:
        return framed(self.page, height=700)

    def shown(self) -> Iterator[RenderableType]:
        yield terminal_text(self.title, style="bold")
        yield terminal_text(coverage.summary(self.parts, self.overlaps))
        yield ""
        if self.overlaps.groups is not None and not self.overlaps.least:
            yield picture(self.parts, self.overlaps.groups)
            yield ""
        yield _party_table(self.parts)
        yield from map(terminal_text, _class_lines(self.parts))
        yield from _read_lines(self.parts)
        yield ""
        if self.overlaps.shared or self.overlaps.withheld:
            yield from _overlap_lines(self.overlaps)
            yield ""
        if self.elsewhere:
            yield terminal_text(
                f"Partners on other machines: {', '.join(self.elsewhere)}. Their tables stay "
                "there, so which method fits is not said here. While they run dovetail join, this "
                "counts the rows that they share:"
            )
            yield terminal_text(f"  dovetail align {shlex.quote(self.title)} --count")
            if self.expected is not None:
                yield ""
                yield from map(terminal_text, self.expected.sentences())
            return
        yield _method_table(self.fits)
        yield ""
        best = situations.recommended(self.fits)
        if best is None:
            yield terminal_text(
                f"None of the {_number(self.fits)} fits as things are; each line above says what "
                "is missing."
            )
            return
        if self.expected is not None:
            yield from map(terminal_text, self.expected.sentences())
            yield ""
        yield _expectations([fit.method for fit in self.fits if fit.applies])
        yield ""
        for fit in self.fits:
            if fit.applies and fit.blocks:
                yield terminal_text(f"Blocks of {fit.title}, to paste:")
                yield from map(
                    _unwrapped, _blocks_of(fit, python=best.next_command.startswith("dovetail."))
                )
                yield ""
        method = None if self.variant is None else methods.method_of(self.variant).name
        for fit in self.fits:
            if fit.applies and fit.messages:
                yield from _message_lines(fit.title, fit.messages)
                variant = self.variant if fit.method == method else None
                yield from map(terminal_text, _measured_text(fit.method, variant))
                letters = by_letter(variant or self._variant(fit), self.settings.get(fit.method))
                yield terminal_text(letters)
                yield ""
        yield Text.assemble("Recommended: ", (best.title, "bold"))
        command = terminal_text(best.next_command, style="bold" if best.available else "")
        line_text = terminal_text("Next: ") + command
        line_text.no_wrap, line_text.overflow = True, "ignore"  # a command is copied in one piece
        yield line_text


def _number(fits: Sequence[Fit]) -> str:
    """How many methods say what they fit."""
    return "four" if len(fits) == 4 else str(len(fits))


def _blocks_of(fit: Fit, *, python: bool) -> Iterator[str]:
    """Lines that name a method's blocks, for Python or for party files."""
    for party, blocks in fit.blocks.items():
        if python:
            given = {name: list(columns) for name, columns in blocks.items()}
            yield f"  dovetail.Party({party!r}, ..., blocks={given!r})"
            continue
        yield f"  # in the party file of {party}, below [party]; columns = [...] goes"
        for name, columns in blocks.items():
            yield f"  blocks.{toml_key(name)} = {toml_text(list(columns))}"


def _unwrapped(line: str) -> Text:
    """A line that is copied in one piece."""
    text = terminal_text(line)
    text.no_wrap, text.overflow = True, "ignore"
    return text


def inspect(
    parties: Parties,
    *,
    private: bool = False,
    hide_below: int = 0,
    overrides: Sequence[str] = (),
    quiet: bool = False,
) -> Inspection:
    """Which party holds what, and which of the methods fit and why; what ``dovetail inspect`` does.

    Reads every party's table; trains nothing but a linear model of the label owner's columns,
    which says by cross-validation how its score grows with labels.

    Args:
        parties: parties, party files, one run file, or one table that ``simulate`` splits.
        private: compare ids only blinded, by private set intersection, and count; there is no
            picture of samples then.
        hide_below: smaller numbers of shared samples are hidden, for handing on.
        overrides: changes of a run file's keys, such as "apfed.epochs=5".
        quiet: print nothing but the result.

    Returns:
        What a terminal or a notebook shows; ``to_json()``, ``save("page.html")``, ``recommended``.

    Raises:
        ConfigError: a file that does not fit.
        DataError: tables that cannot be read or compared.
    """
    talk = talk_of(shown=not quiet)
    if isinstance(parties, Simulation):
        if overrides:
            raise ConfigError(f"{WHERE}: overrides change a run file's keys")
        deal, given = _run_of(parties)
        return _of_simulation(
            deal,
            given,
            title=repr(parties).strip("<>"),
            private=private,
            least=hide_below,
            path=PYTHON,
        )
    listed = [parties] if isinstance(parties, (Party, str, Path)) else list(parties)
    paths = [Path(each) for each in listed if isinstance(each, (str, Path))]
    run: RunFile | None = None
    lacking: dict[str, str] = {}
    title = ", ".join(each.name if isinstance(each, Party) else str(each) for each in listed)
    if len(listed) == len(paths) == 1 and "party" not in read_run(paths[0]):
        run = load_run(paths[0], overrides=tuple(overrides))
        if run.data is not None:
            return _of_simulation(
                run, NOTHING, title=title, private=private, least=hide_below, path=str(paths[0])
            )
        sites = open_sites(tuple(map(Path, run.parties or ())), lacking=lacking)
        path = str(paths[0])
    else:
        if overrides:
            raise ConfigError("--set changes a run file's keys; party files were named")
        path = "RUN" if len(paths) == len(listed) else PYTHON
        sites = _sites(listed, lacking)
    for sentence in (
        *lacking.values(),
        *(warning for site in sites.values() for warning in warnings_of(site)),
        *(sentence for site in sites.values() for sentence in far_of(site)),
        *(f"WARNING: {each}" for site in sites.values() for each in guessed_of(site)),
        *(f"WARNING: {sentence}" for sentence in ([] if private else zeros_apart(sites))),
        *(f"WARNING: {sentence}" for sentence in copies_of_sites(sites)),
        *(f"WARNING: {sentence}" for site in sites.values() for sentence in leaks(site.table)),
    ):
        talk.warn(sentence)
    withheld = dict.fromkeys(lacking, "column missing")
    parts = [part_of(site) for site in sites.values()]
    sizes = counts = None
    if run is not None:
        sizes = situations.sizes_of(run, parts, sites, sealed=_is_sealed(run.method))
    if private:
        counts = _counted(sites, parts, withheld, talk)

    elsewhere = () if run is None else getattr(run.engine, "partners", ())
    if elsewhere and not parts:
        raise ConfigError(
            f"{title} names no party file: its partners ({', '.join(elsewhere)}) are on other "
            "machines; name the party files that are here"
        )

    def expecting(overlaps: Overlaps) -> Expected | None:
        unlabelled = None if elsewhere else overlaps.unlabelled()
        return expected_of_site(sites[overlaps.centre], unlabelled=unlabelled)

    return of_parts(
        parts,
        title=title,
        run_path=path,
        overlaps_by_cardinality=counts,
        withheld=withheld,
        least=hide_below,
        sizes=sizes,
        expecting=expecting,
        variant_name=None if run is None else run.method,
        elsewhere=elsewhere,
        variant=_allowed(sites) if paths else SEALED,
        settings=None if run is None else of_run(run),
    )


def _is_sealed(variant: str) -> bool:
    """Whether APFed is what is recommended of it, where a run file trains this."""
    return variant == SEALED or methods.method_of(variant).name != "apfed"


def _allowed(sites: Mapping[str, Site]) -> str:
    """The first variant of APFed that all partners' policies allow; else the paper's."""
    partners = [site for site in sites.values() if site.table.labels is None]
    for variant in (SEALED, DISTIL):
        if all(variant in site.policy.section.algorithms for site in partners):
            return variant
    return MIXED


def of_parts(
    parts: Sequence[Part],
    *,
    title: str,
    run_path: str = "RUN",
    overlaps_by_cardinality: Mapping[str, int] | None = None,
    withheld: Mapping[str, str] | None = None,
    least: int = 0,
    sizes: Sizes | None = None,
    expecting: Expecting | None = None,
    variant_name: str | None = None,
    elsewhere: Sequence[str] = (),
    variant: str = SEALED,
    settings: Mapping[str, Any] | None = None,
) -> Inspection:
    """Which methods fit what these parties bring.

    Args:
        parts: the parties.
        title: what was inspected.
        run_path: the run file, for the next command; ``PYTHON``: it is one of Python.
        overlaps_by_cardinality: party -> samples it shares with the party with labels (the first
            of them, or the first party where none has), where ids are not to be compared.
        withheld: party -> why there is no such number of it.
        least: smaller numbers of shared samples are hidden.
        sizes: of batches and codes, where a run file says; None assumes ``Sizes()``.
        expecting: what the label owner's own rows say of help, where APFed fits.
        variant_name: what the run file trains, such as "apfed": the next command does not change
            it, and what its messages reveal is its own.
        elsewhere: partners on other machines.
        variant: of APFed, which partners' policies allow.
        settings: method -> its section of the run file; None: as by default.

    Raises:
        DataError: parties that cannot be compared.
    """
    overlaps = situations.overlaps(
        parts, by_cardinality=overlaps_by_cardinality, withheld=withheld, least=least
    )
    method_name = None if variant_name is None else methods.method_of(variant_name).name

    def command(fit: Fit) -> str:
        """The next step, of this run and variant."""
        if run_path == PYTHON and fit.available:
            return f"dovetail.fit(dovetail.{_made(fit)}, ...)"
        text = fit.next_command.replace("RUN", shlex.quote(run_path), 1)
        if fit.method == method_name:
            return text.partition(" --set method=")[0]
        return text.replace(f"method={SEALED}", f"method={variant}")

    fits = [
        replace(fit, next_command=command(fit))
        for fit in situations.fits(
            parts, counted=overlaps, sizes=sizes or Sizes(sealed=variant == SEALED)
        )
    ]
    labelled = any(part.data.labels is not None for part in parts)
    helped = any(fit.applies and fit.method == "apfed" for fit in fits) or (elsewhere and labelled)
    hint = expecting(overlaps) if expecting is not None and helped else None
    return Inspection(title, parts, overlaps, fits, hint, variant_name, elsewhere, settings or {})


def _made(fit: Fit) -> str:
    """The method in Python: a paper's own class, or one of an installed package by its name."""
    paper = getattr(papers, fit.title, None)
    return f"Method({fit.method!r})" if paper is None else f"{fit.title}()"


def _run_of(simulation: Simulation) -> tuple[RunFile, Given]:
    """A run of the first method that is simulated on this partition, to read its rows by."""
    kind = simulation.section.partition.kind
    method = next(name for name, each in methods.every().items() if kind in each.partitions)
    test = None if simulation.pooled[1] is not None else 0.25
    values = {"method": method, "data": simulation.values(test, Path())}
    return check_run(values, where=WHERE), Given(WHERE, pooled=simulation.pooled)


def _of_simulation(
    run: RunFile,
    given: Given,
    *,
    title: str,
    private: bool,
    least: int,
    path: str = "RUN",
) -> Inspection:
    """Inspection of one table that is split."""
    if private:
        raise ConfigError("--private is for party files; this run file splits one pooled data set")
    loaded = load_data(run, given=given)
    if run.data is not None and run.data.labels is not None:
        loaded = with_labels(loaded, run.data.labels, run.all_seeds()[0])
    parts = coverage.from_partition(loaded.data)
    sizes = situations.sizes_of(run, parts, {}, sealed=_is_sealed(run.method))
    by_name = {part.name: part.data for part in parts}

    def expecting(overlaps: Overlaps) -> Expected | None:
        return expected_of_part(
            by_name[overlaps.centre], loaded.data.task, unlabelled=overlaps.unlabelled()
        )

    return of_parts(
        parts,
        title=title,
        run_path=path,
        least=least,
        sizes=sizes,
        expecting=expecting,
        variant_name=run.method if given is NOTHING else None,
        settings=of_run(run),
    )


def _sites(listed: Sequence[Party | str | Path], lacking: dict[str, str]) -> dict[str, Site]:
    """Name -> site, of files and of parties, in their order."""
    files = [Path(each) for each in listed if isinstance(each, (str, Path))]
    read = open_sites(tuple(files), lacking=lacking) if files else {}
    by_path = {site.path: site for site in read.values()}
    sites: dict[str, Site] = {}
    for each in listed:
        site = each.site if isinstance(each, Party) else by_path.get(Path(each))
        if site is None:
            continue  # lacks a column: named above
        if site.name in sites:
            raise ConfigError(f"{WHERE}: two parties are called {site.name!r}; names must differ")
        sites[site.name] = site
    if not sites:
        raise ConfigError(f"{WHERE}: there is no party to look at")
    return sites


def _counted(
    sites: Mapping[str, Site], parts: Sequence[Part], withheld: dict[str, str], talk: Progress
) -> dict[str, int]:
    """Party -> samples shared with the one in the middle; who refuses is withheld.

    Raises:
        ConfigError: all refuse.
    """
    middle = situations.centre(parts)
    for name, site in sites.items():
        if name != middle:
            try:
                site.check_policy("align", middle)
            except ConfigError:
                withheld[name] = "refused"
                if {*sites} - {*withheld} == {middle}:  # there is nothing to be counted
                    raise
    agreeing = {name: site for name, site in sites.items() if name not in withheld}
    counted = count_sites(agreeing, middle, talk=talk)
    return {name: overlap.num_shared for name, overlap in counted.items()}


# --- What is shown --------------------------------------------------------------------------------


def _party_table(parts: Sequence[Part]) -> Table:
    table = plain_table(("party", "blocks (columns)", "classes", "rows", "labelled"), right=2)
    for part in parts:
        has_labels = part.data.labels is not None
        table.add_row(
            terminal_text(part.name),
            terminal_text(coverage.blocks_text(part) or "none"),
            terminal_text(coverage.classes_text(part) or "-"),
            f"{part.data.num_rows:,}",
            f"{len(part.data.labelled_rows()):,}" if has_labels else "-",
        )
    return table


def _class_lines(parts: Sequence[Part]) -> Iterator[str]:
    """How many of each party's labelled rows are of which class."""
    for part in parts:
        labels = part.data.labels
        names = None if labels is None else part.label_names()
        if names is None or labels is None:
            continue
        counts = labels[labels >= 0].unique(return_counts=True)[1].tolist()
        if shares := class_shares(dict(zip(names, counts, strict=True))):
            yield f"  {part.name} has the classes {shares}"


def _read_lines(parts: Sequence[Part]) -> Iterator[Text]:
    """How columns are read, of those that are read alike a line; and what is in doubt."""
    for part in parts:
        alike: dict[str, list[str]] = {}
        doubts: list[str] = []
        for name, text in part.read.items():
            said, *doubted = text.splitlines()
            how, _, examples = said.partition(" (") if said.endswith(")") else (said, "", "")
            alike.setdefault(how, []).append(f"{name} ({examples}" if examples else name)
            doubts += [f"    {name}: {doubt}" for doubt in doubted]
        for how, names in alike.items():
            if how != "number":
                yield terminal_text(f"  {part.name} reads {few(names, 4)} as {how}")
        yield from map(_unwrapped, doubts)


def _overlap_lines(overlaps: Overlaps) -> tuple[RenderableType, ...]:
    centre = overlaps.centre
    rows = overlaps.rows[centre]
    text = f"Samples shared with {centre}, which has {count_text(rows, 'row')}"
    if overlaps.common is not None:
        text += f"; {coverage.shown(overlaps.common, least=overlaps.least)} are at every party"
    if overlaps.groups is None:
        text += " (counted without comparing ids in the clear)"
    table = plain_table(("party", "rows", "shared", f"of {centre}'s"), right=3)
    for name in (*overlaps.shared, *overlaps.withheld):
        text_of = (overlaps.shown(name), overlaps.share_shown(name))
        num_rows = f"{overlaps.rows[name]:,}" if name in overlaps.rows else "-"
        table.add_row(terminal_text(name), num_rows, *text_of)
    return terminal_text(text), table


def _method_table(fits: Sequence[Fit]) -> Table:
    table = plain_table(("method", "does it fit?"))
    for fit in fits:
        style = "bold green" if fit.applies else ""
        table.add_row(terminal_text(fit.title, style=style), terminal_text(fit.reason))
    return table


def _expectations(fitting: Sequence[str]) -> Table:
    """Table of methods that fit: what receivers learn and what it gained, as was measured."""
    table = plain_table(("method", "others learn, by our audits", "gain, median of our settings"))
    for variant, each in reported().items():
        if each.gain and methods.method_of(variant).name in fitting:
            shows = "; ".join(each.shows)
            table.add_row(*map(terminal_text, (variant, shows, each.gain)))
    return table


def _measured_text(method: str, variant: str | None) -> list[str]:
    """Limits of what a method's messages reveal, and what audits found if no table has it."""
    known = reported_of(variant or method)
    lines = [] if known.gain else [f"  {line}" for line in known.shows]
    if lines:
        lines.insert(0, "What they reveal, by our audits:")
    if known.bounds:
        limits = ", ".join(known.bounds)
        measured = "in simulation, dovetail audit RUN --try measures the cost"
        lines.append(f"Limited by: {limits} ({measured})")
    return lines or ["dovetail audit RUN measures what they reveal."]


def _message_lines(title: str, messages: Sequence[MessageSize]) -> tuple[RenderableType, ...]:
    table = plain_table(("party", "with", "per", "sends", "receives"), right=2)
    for size in messages[:_MESSAGES_SHOWN]:
        table.add_row(
            terminal_text(size.party),
            terminal_text(size.partner),
            size.per,
            bytes_text(size.sent_bytes),
            bytes_text(size.received_bytes),
        )
    more = len(messages) - _MESSAGES_SHOWN
    if more > 0:
        table.add_row(terminal_text(f"and {more:,} more"))
    return terminal_text(f"Messages with {title} ({messages[0].assuming}):"), table
