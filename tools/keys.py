"""``docs/run-file.md`` and ``docs/party-file.md``, and the types of settings, from the code.

``python -m tools.keys``, which is ``make keys``, writes them from the repository's folder.
"""

from __future__ import annotations

from pathlib import Path

from dovetail.runs.keys import Key, Part, party_file_parts, run_file_parts
from tools import typed

#: What is below it in a page is written by ``make keys``.
MARK = "<!-- Below: written by make keys from the comments in the code. -->"

#: Pages of docs/, and what they list below the mark.
PAGES = {"run-file.md": run_file_parts, "party-file.md": party_file_parts}

#: Keys that two tables share are listed once if they are so many.
SHARED = 3


def page(name: str, text: str) -> str:
    """A page of ``PAGES``: its own text as far as the mark, and every key; equal keys once."""
    lines = [text.partition(MARK)[0] + MARK, ""]
    alike: dict[tuple[str, tuple[Key, ...]], list[Part]] = {}
    for part in PAGES[name]():
        alike.setdefault((part.about, part.keys), []).append(part)
    of_others = {} if name == "run-file.md" else {each.keys: each for each in run_file_parts()}
    before: list[Part] = []
    for part, *others in alike.values():
        lines += [f"## {part.title.replace('[', chr(92) + '[', 1)}", ""]
        if part.about and not part.about.startswith("["):
            lines += [part.about.replace("``", "`"), ""]
        if others:
            lines += [f"The same keys: {', '.join(f'`{each.title}`' for each in others)}.", ""]
        elsewhere = of_others.get(part.keys)
        if elsewhere and len(part.keys) >= SHARED:
            lines += [f"The keys of `{elsewhere.title}` of [a run file](run-file.md).", ""]
        else:
            lines += _table(part, before)
        before.append(part)
    return "\n".join(lines).rstrip("\n") + "\n"


def _table(part: Part, before: list[Part]) -> list[str]:
    """The keys of a part: what a part before it has as well is named, the rest explained."""
    lines: list[str] = []
    shared = {each.title: [key for key in part.keys if key in each.keys] for each in before}
    title = max(shared, key=lambda each: len(shared[each]), default="")
    known = shared.get(title, [])
    if len(known) >= SHARED:
        names = ", ".join(f"`{key.name}`" for key in known)
        lines += [f"As in `{title}`: {names}.", ""]
    else:
        known = []
    keys = [key for key in part.keys if key not in known and not _is_title(key, part)]
    if not keys:
        return lines
    for key in keys:
        default = key.default if key.default == "required" else f"`{key.default}`"
        value = key.type if key.default == "none" else f"{key.type}; {default}"
        meaning = key.meaning.replace("``", "`")
        lines.append(f"- `{key.name}` ({value}): {meaning}")
    return [*lines, ""]


def _is_title(key: Key, part: Part) -> bool:
    """Whether the title of a table says this key: the only value that it takes there."""
    return part.title.endswith(f"{key.name} = {key.type}")


def main() -> None:
    """Writes the pages again, and the types of settings; from the repository's folder."""
    for name in PAGES:
        path = Path("docs") / name
        path.write_text(page(name, path.read_text(encoding="utf-8")), encoding="utf-8")
        print(path)
    typed.PATH.write_text(typed.module_text(), encoding="utf-8")
    print(typed.PATH)


if __name__ == "__main__":
    main()
