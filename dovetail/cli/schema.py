"""``dovetail schema``: JSON Schema of run files and party files, for editors."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path


class File(StrEnum):
    """The files that people write."""

    RUN = "run"
    PARTY = "party"


def schema(
    file: File,
    out: Path | None = None,
) -> None:
    """Print the JSON Schema of run files or party files, for editors.

    With it an editor completes keys and checks values while you type:

    dovetail schema run --out run.schema.json

    The first line of a run file names it, for editors that know Taplo (VS Code's Even Better TOML,
    Zed, Neovim):

    #:schema ./run.schema.json

    Args:
        file: which file it describes.
        out: write it to this file; None: print it.
    """
    from dovetail.network.retry import write_text
    from dovetail.runs.keys import schema_of

    text = json.dumps(schema_of(file), indent=2) + "\n"
    if out is None:
        print(text, end="")
    else:
        write_text(out, text)
