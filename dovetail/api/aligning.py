"""``dovetail.align``: which rows are the same sample, found privately, kept at each site."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.table import Table

from dovetail.api.lines import Partners
from dovetail.api.party import Party
from dovetail.api.progress import talk_of
from dovetail.api.shown import Shown, line, lined_table
from dovetail.data.coverage import hides, shown
from dovetail.errors import ConfigError
from dovetail.methods.aligning import zeros_apart
from dovetail.methods.base import Site
from dovetail.node.driver import Driver
from dovetail.node.overlaps import aligned_here, counted_here, rated, starter_of, with_driver
from dovetail.node.partyfile import add_site
from dovetail.runs.train import Agreed

WHERE = "dovetail.align"


@dataclass(frozen=True, eq=False, repr=False)
class Matched(Shown):
    """Which rows are shared, in numbers.

    Attributes:
        result: who began, how many rows each has and shares; of match keys what each has found; of
            parties with a truth column how much of it is right; where each one's part is kept.
        least: smaller numbers of shared rows are hidden in what is shown.
    """

    result: Mapping[str, Any]
    least: int = 0

    @property
    def shared(self) -> dict[str, int]:
        """Partner -> rows it shares with the party that began."""
        return dict(self.result["shared"])

    def to_json(self) -> dict[str, Any]:
        """All of it; numbers that are too small to be shown are named instead."""
        return dict(self._hidden)

    @cached_property
    def _hidden(self) -> Mapping[str, Any]:
        result, least = self.result, self.least
        small = {name: count for name, count in result["shared"].items() if hides(count, least)}
        if not small:
            return result
        kept = {name: count for name, count in result["shared"].items() if name not in small}
        hidden = {name: shown(count, least=least) for name, count in small.items()}
        rest = {name: value for name, value in result.items() if name not in ("keys", "truth")}
        return {**rest, "shared": kept, "shared_by_all": None, "not_shown": hidden}

    def shown(self) -> Iterator[RenderableType]:
        yield self._table()
        yield from self._key_tables()
        for text in self._learned():
            yield line(text)

    def _table(self) -> Table:
        result, least = self.result, self.least
        starter = result["initiator"]
        num_rows = result["rows"][starter]
        counted = [(name, f"{result['rows'][name]:,}", n) for name, n in result["shared"].items()]
        if "shared_by_all" in result:
            counted.append(("all of them", "", result["shared_by_all"]))
        rows = [(starter, f"{num_rows:,}", "", "")]
        for name, of_name, count in counted:
            share = "" if hides(count, least) else f"{count / num_rows:.1%}"
            rows.append((name, of_name, shown(count, least=least), share))
        return lined_table(("party", "rows", "shared", ""), rows, title=f"Shared with {starter!r}")

    def _key_tables(self) -> Iterator[Table]:
        """Tables of what each match key found with each partner; with truth, how much of it is
        right."""
        result = self._hidden
        for party, passes in result.get("keys", {}).items():
            truth = result.get("truth", {}).get(party)
            right = truth["right_by_key"] if truth else [None] * len(passes)
            caption = None
            if truth and truth["precision"] is not None and truth["recall"] is not None:
                caption = (
                    f"{truth['in_both']:,} people are at both: recall {truth['recall']:.3f}, "
                    f"precision {truth['precision']:.4f}"
                )
            counted = {"entered": "entered", "ambiguous": "shared key", "missing": "no key"}
            if result["mode"] == "intersection":  # a count does not tell how many have one there
                counted["entered_there"] = "there"
            counted["matched"] = "matched"
            rows = []
            for each, num_right in zip(passes, right, strict=True):
                counts = [each[name] for name in counted]
                wrong = [] if num_right is None else [each["matched"] - num_right]
                rows.append((each["key"], *(f"{count:,}" for count in (*counts, *wrong))))
            head = ("key", *counted.values(), *["wrong"] * bool(truth))
            yield lined_table(head, rows, title=f"Found by key, with {party!r}", caption=caption)

    def _learned(self) -> Iterator[str]:
        """Sentences on what each side learned."""
        result = self.result
        starter = result["initiator"]
        if result["mode"] == "cardinality":
            yield (
                f"{starter!r} has learned how many rows each partner has and shares; each partner "
                f"how many rows {starter!r} has. Nobody has learned which."
            )
            return
        yield (
            f"{starter!r} has learned which of its rows each partner has; each partner which of "
            f"its rows {starter!r} has. Nothing else (docs/alignment.md)."
        )
        files = ", ".join(result["files"].values())
        if len(result["files"]) == 1:
            yield f"Each party keeps its own part; {starter!r}: {files}"
        else:
            yield f"Each party keeps its own part: {files}"


@dataclass(frozen=True, eq=False, repr=False)
class RatedKeys(Shown):
    """Quality of match keys at their site, and how few guesses would try all of each.

    Attributes:
        keys: of each its name, the rows, and how many are ``unique``, ``ambiguous``, ``missing``.
    """

    keys: Sequence[Mapping[str, Any]]

    def to_json(self) -> list[dict[str, Any]]:
        """All of it, ready for JSON."""
        return [dict(each) for each in self.keys]

    def shown(self) -> Iterator[RenderableType]:
        shares = ("unique", "ambiguous", "missing")
        rows = (
            (
                each["key"],
                *(f"{each[name] / each['rows']:.1%}" for name in shares),
                f"{each['guesses']:.1e}",
            )
            for each in self.keys
        )
        head = ("key", "own alone", "shared key", "no key", "guesses")
        yield lined_table(head, rows, title="Each key by itself; nothing has been sent")
        yield line(
            "own alone: rows that this key can match. shared key: several rows have the same, so "
            "that none of them can be."
        )
        yield line(
            "guesses: how many keys try every combination of values such as your rows have. A "
            "driver may try policy.max_ids of them a day: where that is not far fewer, it can find "
            "out who is in your table (docs/alignment.md)."
        )


def align(
    parties: Party | str | Path | Sequence[Party | str | Path],
    *,
    count: bool = False,
    initiator: str | None = None,
    partners: Partners | None = None,
    hide_below: int = 0,
    workers: int = 1,
    quiet: bool = False,
) -> Matched:
    """Find which rows are the same sample, by private set intersection.

    What ``dovetail align`` does: no party sees another's ids, which are compared multiplied by
    both parties' secrets. Each party's part is kept at its site, where ``fit`` finds it.

    Args:
        parties: two parties or party files, or more; with ``partners``, the one that drives.
        count: count what is shared, and keep nothing; nobody learns which.
        initiator: who starts; None: the one with labels, or the first.
        partners: parties on other machines, of ``listen``.
        hide_below: smaller numbers of shared rows are hidden, for handing on.
        workers: processes for the arithmetic.
        quiet: show no bar.

    Raises:
        ConfigError: too few parties, or what does not go together.
        AlignmentError: ids or match keys that cannot be compared.
        NetworkError: partners who do not come.
    """
    listed = [parties] if isinstance(parties, (Party, str, Path)) else list(parties)
    sites: dict[str, Site] = {}
    for each in listed:
        add_site(sites, (each if isinstance(each, Party) else Party.read(each)).site)
    if partners is not None:
        if len(sites) != 1:
            raise ConfigError(f"{WHERE}: with partners elsewhere give the one party that drives")
        (site,) = sites.values()
        return align_with(
            site, partners, count=count, hide_below=hide_below, workers=workers, quiet=quiet
        )
    if len(sites) < 2:
        raise ConfigError(
            "name two party files or more: dovetail align bank.toml shop.toml; or where the "
            "others are elsewhere: dovetail align bank.toml --partners shop --listen HOST:PORT"
        )
    starter = initiator or starter_of(sites)
    if starter not in sites:
        raise ConfigError(f"--initiator is {starter!r}; parties are {sorted(sites)}")
    act, talk = counted_here if count else aligned_here, talk_of(shown=not quiet)
    for sentence in zeros_apart(sites):
        talk.warn(f"WARNING: {sentence}")
    return Matched(act(sites, starter, workers=workers, talk=talk), hide_below)


def align_with(
    site: Site,
    partners: Partners,
    *,
    count: bool,
    hide_below: int,
    workers: int,
    quiet: bool,
    agreed: Agreed | None = None,
) -> Matched:
    """Overlap with partners elsewhere; ``agreed`` is the proposal that all have signed."""
    with partners.driving(site, resume=False, talk=talk_of(shown=not quiet)) as driver:
        assert isinstance(driver, Driver)  # a site drives
        if agreed is not None:
            driver.agreed(*agreed)
        return Matched(with_driver(driver, count=count, workers=workers), hide_below)


def rate_keys(party: Party | str | Path) -> RatedKeys:
    """Quality of a party's match keys, computed at its site; nothing is sent.

    Raises:
        ConfigError: it has none.
    """
    return RatedKeys(rated((party if isinstance(party, Party) else Party.read(party)).site))
