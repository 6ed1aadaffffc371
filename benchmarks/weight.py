"""What Dovetail needs, installed: files of all packages, with and without PyTorch."""

from __future__ import annotations

import re
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement

from benchmarks import _results

NAME = "dovetail-fl"


def needed(leave_out: frozenset[str] = frozenset()) -> dict[str, int]:
    """Package -> bytes of its files, of all that Dovetail needs without extras."""
    found: dict[str, int] = {}

    def walk(text: str) -> None:
        requirement = Requirement(text)
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        is_asked = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if not is_asked or name in found or name in leave_out:
            return
        package = distribution(name)
        paths = [Path(str(package.locate_file(file))) for file in package.files or ()]
        found[name] = sum(path.stat().st_size for path in paths if path.is_file())
        for each in package.requires or ():
            walk(each)

    for each in distribution(NAME).requires or ():
        walk(each)
    return found


def main() -> None:
    """Write the table."""
    rows = []
    for what, left_out in (("all that it needs", frozenset[str]()), ("without PyTorch", {"torch"})):
        packages = needed(frozenset(left_out))
        rows.append(
            {
                "installed": what,
                "packages": len(packages),
                "MB": round(sum(packages.values()) / 1e6),
                "largest": ", ".join(
                    f"{name} {size / 1e6:.0f}"
                    for name, size in sorted(packages.items(), key=lambda each: -each[1])[:5]
                ),
            }
        )
    _results.write("weight", "What Dovetail needs, installed", rows)


if __name__ == "__main__":
    main()
