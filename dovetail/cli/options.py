"""Options that several commands have, said once."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import typer

from dovetail.errors import ConfigError


class LogKind(StrEnum):
    """How a long-running command reports."""

    TEXT = "text"
    JSON = "json"


#: Name of a parameter -> its option, in every command that does not say otherwise.
SHARED: Mapping[str, Any] = {
    "recipe": typer.Option(help="A recipe of the run file, for example cpu."),
    "overrides": typer.Option(
        "--set", metavar="KEY=VALUE", help="Change a key: --set apfed.epochs=5."
    ),
    "seed": typer.Option(help="Run this seed; repeat for several."),
    "align": typer.Option("--align", help="Align anew first, also where an alignment is kept."),
    "proposal": typer.Option(help="The proposal that all parties signed (dovetail propose)."),
    "quiet": typer.Option("--quiet", "-q", help="Print errors only."),
    "out": typer.Option(help="The run's folder. [out/NAME of the run file]"),
    "overwrite": typer.Option("--overwrite", help="Replace the run in this folder."),
    "as_json": typer.Option("--json", help="Print the result as JSON, nothing else."),
    "hide_below": typer.Option(
        min=0, help="Hide numbers of shared samples below this, for handing on."
    ),
    "model": typer.Argument(help="A model's folder, RUN/models/PARTY, or a RUN."),
    "label": typer.Option(help="The label's column. [as in training]"),
    "allow_unseen": typer.Option(
        "--allow-unseen", help="Take categories unseen in training as missing."
    ),
    "certificates": typer.Option(
        help="ca.pem, NAME.pem, NAME.key. [certificates/NAME beside the party file]"
    ),
    "site_folder": typer.Option("--site", help="The party's folder. [STEM.site beside its file]"),
    "health": typer.Option(
        metavar="HOST:PORT", help="Answer /health, /ready and /metrics here, for an orchestrator."
    ),
    "log": typer.Option(help="json: one JSON object a line on standard error, for collectors."),
    "listen": typer.Option(metavar="HOST:PORT", help="Where partners elsewhere dial in."),
    "device": typer.Option(help="Where to compute: cpu, cuda, cuda:1. [run file, or cpu]"),
    "proxy_ca": typer.Option(
        metavar="FILE",
        help="With --mailbox https://...: authority (PEM) of a company's proxy that opens TLS.",
    ),
    "run": typer.Argument(help="A run's folder, or a run file (TOML)."),
    "ray": typer.Option(
        "--ray", metavar="auto|ADDRESS", help="Compute on a Ray cluster. [this process]"
    ),
}


def check_one_way(*, resume: bool, overwrite: bool) -> None:
    """Refuse to go on with what is to be replaced.

    Raises:
        ConfigError: both are asked for.
    """
    if resume and overwrite:
        raise ConfigError(
            "--resume goes on with the run in the folder, --overwrite begins anew: give one of them"
        )
