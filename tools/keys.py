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


def page(name: str, text: str) -> str:
    """A page of ``PAGES``: its own text as far as the mark, and every key; equal tables once."""
    lines = [text.partition(MARK)[0] + MARK]
    alike: dict[tuple[str, tuple[Key, ...]], list[Part]] = {}
    for part in PAGES[name]():
        alike.setdefault((part.about, part.keys), []).append(part)
    for part, *others in alike.values():
        about = part.about.replace("``", "`")
        lines += ["", f"## {part.title.replace('[', chr(92) + '[', 1)}", ""]
        if about and not about.startswith("["):
            lines += [about, ""]
        if others:
            lines += [f"The same keys: {', '.join(f'`{each.title}`' for each in others)}.", ""]
        lines += ["| key | type | default | meaning |", "|---|---|---|---|"]
        for key in part.keys:
            default = key.default if key.default in ("none", "required") else f"`{key.default}`"
            cells = (f"`{key.name}`", key.type, default, key.meaning.replace("``", "`"))
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


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
