"""A run file as the proposal that its parties sign, and whether it is still that run."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from dovetail import __version__, methods
from dovetail.errors import ConfigError
from dovetail.methods.base import Site
from dovetail.methods.method import asks
from dovetail.models.shown import markdown_page
from dovetail.network import Message
from dovetail.node import proposal as proposals
from dovetail.node.driver import coordinator_name
from dovetail.node.engines import ElsewhereSection
from dovetail.node.partyfile import algorithms
from dovetail.node.partysections import read_party_file
from dovetail.runs.runfile import RunFile, resolved

#: Of the run file, what is no part of what parties agree to: where the driver keeps its things and
#: how it is watched. Seeds stand in the proposal by themselves.
_OWN = (
    "seed",
    "parties",
    "sha256",
    "device",
    "compute",
    "track",
    "checkpoint_every",
    "evaluate_every",
)

#: Of ``[engine]``, what is: the rest says how partners are reached.
_ENGINE = ("kind", "precision")


def propose(
    run: RunFile,
    *,
    where: str,
    purpose: str,
    days: float,
    least_rows: int = 1,
    attempts: int = 3,
    seeds: tuple[int, ...] = (),
    now: datetime | None = None,
) -> proposals.Proposal:
    """The proposal of a run whose partners are elsewhere.

    Args:
        run: the run file.
        where: what errors call it.
        purpose: what the run is for.
        days: until it ends.
        least_rows: rows that each party is to bring in.
        attempts: how often a variant of a seed may be started.
        seeds: instead of the run file's.
        now: when it is made; None: now.

    Raises:
        ConfigError: a run that nobody else takes part in.
    """
    now = (now or datetime.now(UTC)).replace(microsecond=0)
    driver, parties = _who(run, where)
    method = methods.method_of(run.method)
    variants = tuple(dict.fromkeys((run.method, *run.baselines)))
    asked = asks(method, run)
    return proposals.Proposal(
        purpose=purpose,
        driver=driver,
        parties=parties,
        method=run.method,
        variants=variants,
        seeds=seeds or run.all_seeds(),
        attempts=attempts,
        algorithms=asked,
        messages=tuple(_messages(asked)),
        least_rows=least_rows,
        settings=_settings(run),
        stage_settings={
            variant: dict(settings)
            for variant in variants
            if (settings := method.variant(variant).begin_settings(run, variant))
        },
        models=method.models,
        created=now,
        expires=now + timedelta(days=days),
        dovetail=__version__,
    )


def check_run(
    run: RunFile, seeds: tuple[int, ...], proposal: proposals.Proposal, *, where: str, file: Path
) -> None:
    """Refuse a run that is not the one that was proposed.

    Args:
        run: the run file.
        seeds: that are to be trained.
        proposal: what was signed.
        where: what errors call the run file.
        file: the proposal's.

    Raises:
        ConfigError: what differs, key by key.
    """
    now = propose(
        run,
        where=where,
        purpose=proposal.purpose,
        days=1,
        least_rows=proposal.least_rows,
        attempts=proposal.attempts,
        seeds=proposal.seeds,
    )
    same = {"created", "expires", "dovetail"}
    then, fresh = (json.loads(each.text) for each in (proposal, now))
    for key in same:
        fresh[key] = then[key]
    changed = [
        f"{key} {_short(before)} -> {_short(after)}"
        for key, before, after in proposals.differences(then, fresh)
        if not key.startswith("stage_settings.")  # they follow from the settings
    ]
    other = sorted(set(seeds) - set(proposal.seeds))
    if other:
        changed.append(f"seeds {list(proposal.seeds)} -> {list(seeds)}")
    if changed:
        raise ConfigError(
            f"{where} is not the run of {file}: {'; '.join(changed)}. A changed run is a new "
            "proposal (dovetail propose), which all parties sign again; or undo the change"
        )
    if datetime.now(UTC) > proposal.expires:
        raise ConfigError(
            f"{file} ended on {proposal.expires:%Y-%m-%d %H:%M} UTC; propose the run anew"
        )


def read_agreed(
    run: RunFile, seeds: tuple[int, ...], file: Path | None, *, where: str
) -> tuple[proposals.Proposal, Mapping[str, proposals.Signature]] | None:
    """The proposal that this run is of, and what all its parties say of it; None without a file.

    Raises:
        ConfigError: another run, or a party that refused it or has not answered yet.
    """
    if file is None:
        return None
    proposal = proposals.read_proposal(file)
    check_run(run, seeds, proposal, where=where, file=file)
    signatures = proposals.read_signatures(file, proposal)
    refused = [each for each in signatures.values() if each.decision == "refused"]
    if refused:
        raise ConfigError(
            f"{file} is refused by "
            + "; ".join(f"{each.party!r}: {each.why or 'no reason given'}" for each in refused)
        )
    missing = [name for name in proposal.signers if name not in signatures]
    if missing:
        expected = [proposals.signature_path(file, name).name for name in missing]
        raise ConfigError(
            f"{file} is not signed by {', '.join(missing)} yet: expected {', '.join(expected)} "
            "beside it, which dovetail review FILE --party PARTY.toml writes there"
        )
    return proposal, signatures


def review(proposal: proposals.Proposal, site: Site) -> list[str]:
    """Why this party's policy and table do not go with the proposal; nothing where they do."""
    warnings = []
    if site.name not in proposal.parties:
        warnings.append(f"it is for {', '.join(proposal.parties)}, and not for {site.name!r}")
    if site.name != proposal.driver:
        for algorithm in proposal.algorithms:
            try:
                site.policy.check(algorithm, proposal.driver)
            except ConfigError as refusal:
                warnings.append(str(refusal))
    if site.table.num_rows < proposal.least_rows:
        warnings.append(
            f"it asks for {proposal.least_rows:,} rows or more, and the table has "
            f"{site.table.num_rows:,}"
        )
    if datetime.now(UTC) > proposal.expires:
        warnings.append(f"it ended on {proposal.expires:%Y-%m-%d %H:%M} UTC")
    if proposal.method not in methods.variants():
        warnings.append(
            f"there is no method {proposal.method!r} here; it may be of another version"
        )
    else:
        version = (
            f"both sides must run the same version (it was made with "
            f"{_plain(proposal.dovetail)}, here is "
            f"{__version__})"
        )
        known = {each.name: each for each in _messages(proposal.algorithms)}
        proposed = {each.name: each for each in proposal.messages}
        for name in dict.fromkeys((*proposed, *known)):
            if known.get(name) != proposed.get(name):
                warnings.append(
                    f"the message {_plain(name)} is not what this version sends; {version}"
                )
        if proposal.models != methods.method_of(proposal.method).models:
            warnings.append(f"it says otherwise than this version who keeps which model; {version}")
    return warnings


def _who(run: RunFile, where: str) -> tuple[str, tuple[str, ...]]:
    """The driver, and who takes part."""
    section = run.engine
    if not isinstance(section, ElsewhereSection):
        raise ConfigError(
            f'{where}: a proposal is for partners elsewhere, [engine] kind = "stream", "mailbox" '
            'or "flare"; in one process nobody else need agree'
        )
    if run.parties is None and methods.coordinated(run.method):
        return coordinator_name(section), section.partners
    if run.parties is None:
        raise ConfigError(
            f"{where}: {run.method!r} is driven by the party with labels, which signs, too; name "
            'its file, parties = ["bank.toml"]'
        )
    driver = read_party_file(Path(run.parties[0])).party.name
    return driver, (driver, *section.partners)


def _settings(run: RunFile) -> dict[str, Any]:
    """Settings of the run file that parties agree to."""
    run_method = methods.method_of(run.method)
    others = {*methods.records()} - {run_method.name}
    values = resolved(run, 0)
    engine = values.get("engine", {})
    values["engine"] = {key: engine[key] for key in _ENGINE if key in engine}
    kept = {key: each for key, each in values.items() if key not in (*_OWN, *others)}
    return dict(json.loads(json.dumps(kept)))


def _messages(asked: tuple[str, ...]) -> Iterator[proposals.MessageType]:
    """Every message that goes between driver and party in what is asked for."""
    prefixes = {prefix for prefix, each in algorithms().items() if each.policy in asked}
    kinds = {
        kind.wire_name(): kind
        for kind in _kinds(Message)
        if kind.wire_name().partition(".")[0] in prefixes
    }
    for name, kind in sorted(kinds.items()):
        lines = (kind.__doc__ or "").strip().splitlines()
        about = lines[0].strip().replace("``", "") if lines else ""
        yield proposals.MessageType(
            name=name, fields={each.name: str(each.type) for each in fields(kind)}, about=about
        )


def _kinds(kind: type[Message]) -> Iterator[type[Message]]:
    for below in kind.__subclasses__():
        yield below
        yield from _kinds(below)


# --- The page -------------------------------------------------------------------------------------


def page(proposal: proposals.Proposal) -> str:
    """The proposal for people, in Markdown."""
    titles = methods.variants()
    variants = ", ".join(f"{name} ({titles.get(name, name)})" for name in proposal.variants)
    seeds = f"{', '.join(map(str, proposal.seeds))}; each begun {proposal.attempts} times at most"
    created, expires = (f"{at:%Y-%m-%d %H:%M}" for at in (proposal.created, proposal.expires))
    return markdown_page(
        "dovetail.runs",
        "proposal.md",
        {"plain": _plain, "whole": _whole},
        proposal=proposal,
        purpose=[f"> {_plain(line)}".rstrip() for line in proposal.purpose.splitlines()],
        rows=[
            ("driver", proposal.driver),
            ("parties", ", ".join(proposal.parties)),
            ("trains", variants),
            ("seeds", seeds),
            ("asks for", ", ".join(proposal.algorithms)),
            ("rows", f"each party brings in {proposal.least_rows:,} or more"),
            ("who keeps which model", proposal.models),
            ("valid", f"{created} to {expires} UTC"),
            ("made with", f"Dovetail {proposal.dovetail}"),
        ],
        messages=[
            (
                each.name,
                each.about,
                ", ".join(f"{n}: {k}" for n, k in each.fields.items()) or "none",
            )
            for each in proposal.messages
        ],
        settings=[
            line
            for key, _, value in proposals.differences({}, proposal.settings)
            for line in _flat(key, value)
        ],
        variants=proposal.stage_settings,
        one_of=proposals.ONE_OF,
    )


def _flat(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _flat(f"{key}.{name}", inner)
    else:
        yield key, value


def _short(value: Any) -> str:
    text = _whole(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _whole(value: Any) -> str:
    """Text of a value that is signed, shown to its end."""
    return _plain("nothing" if value is None else json.dumps(value))


def _plain(text: str) -> str:
    """Words of others in one line, none of which hides or draws anything."""
    shown = "".join(each if each.isprintable() else " " for each in text)
    return re.sub(r"[\\`<&|]|(?<=\])\(", r"\\\g<0>", shown)
