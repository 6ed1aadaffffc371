"""Options that several commands have, said once."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from dovetail.errors import ConfigError


class LogKind(StrEnum):
    """How a long-running command reports."""

    TEXT = "text"
    JSON = "json"


TrainedModel = Annotated[Path, typer.Argument(help="A model's folder, RUN/models/PARTY, or a RUN.")]
RunOrFolder = Annotated[Path, typer.Argument(help="A run's folder, or a run file (TOML).")]
LabelColumn = Annotated[str | None, typer.Option(help="The label's column. [as in training]")]
AllowUnseen = Annotated[
    bool, typer.Option("--allow-unseen", help="Take categories unseen in training as missing.")
]
HideBelow = Annotated[
    int, typer.Option(min=0, help="Hide numbers of shared samples below this, for handing on.")
]
Signed = Annotated[
    Path | None, typer.Option(help="The proposal that all parties signed (dovetail propose).")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON, nothing else.")]
Ray = Annotated[
    str | None,
    typer.Option("--ray", metavar="auto|ADDRESS", help="Compute on a Ray cluster. [this process]"),
]
Device = Annotated[
    str | None, typer.Option(help="Where to compute: cpu, cuda, cuda:1. [run file, or cpu]")
]
Recipe = Annotated[str | None, typer.Option(help="A recipe of the run file, for example cpu.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a key: --set apfed.epochs=5."),
]
RunKeys = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the run file."),
]
Seeds = Annotated[list[int] | None, typer.Option(help="Run this seed; repeat for several.")]
Align = Annotated[
    bool, typer.Option("--align", help="Align anew first, also where an alignment is kept.")
]
RunOut = Annotated[Path | None, typer.Option(help="The run's folder. [out/NAME of the run file]")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the run in this folder.")]
Certificates = Annotated[
    Path | None,
    typer.Option(help="ca.pem, NAME.pem, NAME.key. [certificates/NAME beside the party file]"),
]
SiteFolder = Annotated[
    Path | None, typer.Option("--site", help="The party's folder. [STEM.site beside its file]")
]
Listen = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="Where partners elsewhere dial in.")
]
ProxyCa = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="With --mailbox https://...: authority (PEM) of a company's proxy that opens TLS.",
    ),
]
Health = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT", help="Answer /health, /ready and /metrics here, for an orchestrator."
    ),
]
Log = Annotated[
    LogKind, typer.Option(help="json: one JSON object a line on standard error, for collectors.")
]


def check_one_way(*, resume: bool, overwrite: bool) -> None:
    """Refuse to go on with what is to be replaced.

    Raises:
        ConfigError: both are asked for.
    """
    if resume and overwrite:
        raise ConfigError(
            "--resume goes on with the run in the folder, --overwrite begins anew: give one of them"
        )
