"""A first party file and a first run file, with every key and what it means in comments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from textwrap import wrap

from dovetail.data.wording import toml_text
from dovetail.runs.keys import Key, Part, party_file_parts, run_file_parts


@dataclass(frozen=True)
class Start:
    """Knowledge of a party that starts.

    Attributes:
        name, table, query, id, label, task, columns: keys of its [party].
        events: of its [party.events]; None: a row is a sample.
        why_not: column that is left out -> why.
        encode: line of its [party.encode] -> why.
        driver: who may ask; of a partner.
        partners: of a label owner.
        here: whether their party files are beside its own.
        listen: where they connect, if not.
    """

    name: str
    table: str
    id: tuple[str, ...]
    query: str | None = None
    label: str | None = None
    task: str = "classification"
    columns: tuple[str, ...] = ("*",)
    why_not: Mapping[str, str] = field(default_factory=dict)
    encode: Mapping[str, str] = field(default_factory=dict)
    driver: str | None = None
    partners: tuple[str, ...] = ()
    here: bool = False
    listen: str = "0.0.0.0:7443"
    events: Mapping[str, str] | None = None


def _lines(part: Part, given: Mapping[str, object]) -> Iterator[str]:
    """A table of a file: what is given is there, all else behind a comment, with its default."""
    for key in sorted(part.keys, key=lambda key: key.name not in given):
        yield from (f"# {line}" for line in wrap(_about(key), 96))
        if key.name in given:
            yield f"{key.name} = {toml_text(given[key.name])}"
        else:
            value = '"..."' if key.default in ("none", "required") else key.default
            yield f"# {key.name} = {value}"
        yield ""


def _about(key: Key) -> str:
    default = "" if key.default in ("none", "required") else f" [{key.default}]"
    return f"{key.meaning.replace('``', '')} ({key.type}){default}"


def _part(parts: list[Part], title: str) -> Part:
    return next(part for part in parts if part.title == title)


def party_text(start: Start) -> str:
    """Text of its party file: [party] and [policy] with every key, and where the others are
    explained."""
    parts = party_file_parts()
    values: dict[str, object] = {"name": start.name, "table": start.table}
    if start.query is not None:
        values["query"] = start.query
    values["id"] = start.id[0] if len(start.id) == 1 else list(start.id)
    if start.label is not None:
        values |= {"label": start.label, "task": start.task}
    if len(start.columns) > 1:
        values["columns"] = list(start.columns)
    drivers = start.driver or start.name
    policy = {"algorithms": ["align", "apfed"], "drivers": [drivers]}
    why = [f"# left out: {name!r} {reason}" for name, reason in start.why_not.items()]
    return "\n".join(
        [
            f"# The party file of {start.name!r}: what it has and agrees to. It stays at its site.",
            "# Keys behind a # have their defaults, which are in brackets. All keys, also of the",
            "# methods' sections such as [apfed]: docs/party-file.md",
            "",
            "[party]",
            *why,
            *_lines(_part(parts, "[party]"), values),
            *_encode_lines(start),
            *_events_lines(parts, start),
            "# What others may ask of this party; anything else is refused, and kept in a record.",
            "[policy]",
            *_lines(_part(parts, "[policy]"), policy),
        ]
    )


def _encode_lines(start: Start) -> Iterator[str]:
    """Lines of [party.encode], if columns are not what they look like."""
    if start.encode:
        yield "# How columns are read that rules would take for text."
        yield "[party.encode]"
        for line, why in start.encode.items():
            yield f"# {why}"
            yield line
        yield ""


def _events_lines(parts: list[Part], start: Start) -> Iterator[str]:
    """Lines of [party.events], if a sample has several rows."""
    if start.events is None:
        return
    yield "# Several rows a sample become one: counts, sums, means, last values, shares."
    yield "[party.events]"
    yield from _lines(_part(parts, "[party.events]"), start.events)


def run_text(start: Start) -> str:
    """Text of its run file: the general keys and where partners are."""
    parts = run_file_parts()
    files = [f"{start.name}.toml"]
    if start.here:
        files += [f"{name}.toml" for name in start.partners]
    values: dict[str, object] = {
        "method": "apfed" if start.partners else "best-alone",
        "parties": files,
        "test": 0.25,
    }
    lines = [
        f"# What {start.name!r} trains: dovetail train run.toml",
        "# Keys behind a # have their defaults, which are in brackets. All keys, also of the",
        "# methods' sections such as [apfed]: docs/run-file.md",
        "",
        *_lines(_part(parts, "at the top"), values),
    ]
    if start.partners and not start.here:
        stream = _part(parts, '[engine], kind = "stream"')
        engine = {"kind": "stream", "listen": start.listen, "partners": list(start.partners)}
        lines += ["[engine]", *_lines(stream, engine)]
    return "\n".join(lines)
