"""The docs of this version, beside those of others: `python .ci/pages.py FOLDER`, at each tag.

    FOLDER/0.2.0/          this version's site; others stay as they are
    FOLDER/versions.json   all that are there, newest first, for the theme's choice of versions
    FOLDER/index.html      leads to the newest

FOLDER is what a web server shows; nothing else is needed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from mkdocs.commands.build import build
from mkdocs.config import load_config

from dovetail import __version__

ROOT = Path(__file__).parents[1]

FIRST = '<!doctype html><meta http-equiv="refresh" content="0; url={0}/index.html">{0}\n'


def publish(folder: Path) -> list[str]:
    """Build this version's site into the folder; the versions that are there, newest first."""
    site = folder / __version__
    config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(site), strict=True)
    build(config)
    found = sorted((each.parent.name for each in folder.glob("*/index.html")), key=_order)[::-1]
    listed = [{"version": each, "title": each, "aliases": []} for each in found]
    (folder / "versions.json").write_text(json.dumps(listed), encoding="utf-8")
    (folder / "index.html").write_text(FIRST.format(found[0]), encoding="utf-8")
    return found


def _order(version: str) -> list[int]:
    return [int(part) if part.isdigit() else -1 for part in version.split(".")]


if __name__ == "__main__":
    print(*publish(Path(sys.argv[1]).resolve()))
