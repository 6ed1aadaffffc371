"""``dovetail serve``: models' folders in, predictions over HTTP out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dovetail.cli import precheck


def serve(
    models: Annotated[list[str], typer.Argument(metavar="MODEL")],
    host: str = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8000,
    token_file: Path | None = None,
    certificates: Path | None = None,
    max_rows: Annotated[int, typer.Option(min=1)] = 20_000,
    max_bytes: Annotated[int, typer.Option(min=1)] = 16 * 2**20,
    max_requests: Annotated[int, typer.Option(min=1)] = 512,
    watch: Annotated[float, typer.Option(min=0)] = 2.0,
    party: Path | None = None,
    partners: Annotated[str | None, typer.Option(metavar="A,B")] = None,
    listen: str | None = None,
    mailbox: Annotated[str | None, typer.Option(hidden=True)] = None,
    partner_certificates: Path | None = None,
    ids: Path | None = None,
    within: Annotated[float, typer.Option(min=0.01)] = 1.0,
    quiet: bool = False,
) -> None:
    """Answer predictions over HTTP: POST /predict with rows as JSON, CSV or Parquet.

    GET / is a page to try one row; /docs lists the rest. Listens on this machine only, unless a
    token or certificates guard it. A model whose folder changes is read again. Needs pip install
    'dovetail-fl[serve]'.

    A joint model asks its partners, which run `dovetail join`, about rows that have an id:

    dovetail serve out/run --party bank.toml --partners shop --listen 0.0.0.0:7443

    Each answer names the model that made it.

    Args:
        models: a model's folder, RUN or .onnx file; NAME=PATH.
        host: where to listen.
        port: 0 takes a free one.
        token_file: a file with the token that requests must bear.
        certificates: folder of ca.pem, NAME.pem, NAME.key: only who has a certificate is answered.
        max_rows: rows that a request may have.
        max_bytes: bytes of its body.
        max_requests: requests at a time; more are answered 503.
        watch: seconds between looks for a changed model; 0: never.
        party: of a joint model: your party file; partners are asked.
        partners: its partners, on other machines.
        partner_certificates: what partners are met with; None: certificates/NAME beside the party
            file.
        ids: a table with the ids that may be asked about; None: the party file's.
        within: seconds that partners have; then the model alone answers.
    """
    from dovetail.errors import ConfigError

    if mailbox is not None:
        raise ConfigError(
            "dovetail serve asks partners about each row as it comes, and a letter takes minutes: "
            "let them connect (--listen HOST:PORT), or predict a whole table by letter with "
            "dovetail predict --mailbox PLACE"
        )
    precheck.check_models(models)
    from contextlib import ExitStack
    from functools import partial

    from dovetail.cli.remote import Elsewhere
    from dovetail.companions.service.serving import Address, named, run
    from dovetail.models.model_folders import model_folder
    from dovetail.network.credentials import revoked_by

    section = Elsewhere(partners, listen, partner_certificates).listening(where="dovetail serve")
    if (section is None) != (party is None) or (ids is not None and party is None):
        raise ConfigError(
            "to ask partners give --party, --partners and --listen, for example --party bank.toml "
            "--partners shop --listen 0.0.0.0:7443"
        )
    with ExitStack() as stack:
        jointly = column = None
        folders = named(models, model_folder)
        if section is not None and party is not None:
            from dovetail.api.progress import talk_of
            from dovetail.companions.service.joint import (
                JointPredictor,
                id_column,
                joint_serving,
                served_folder,
            )

            folders = named(models, served_folder)
            asks = joint_serving(
                folders, party, section, ids=ids, within_s=within, talk=talk_of(shown=not quiet)
            )
            jointly, column = (
                JointPredictor(stack.enter_context(asks)),
                id_column(asks.site.party.id),
            )
        run(
            folders,
            Address(host, port, token_file, certificates),
            max_rows=max_rows,
            max_bytes=max_bytes,
            max_requests=max_requests,
            watch_s=watch,
            quiet=quiet,
            jointly=jointly,
            id_column=column,
            revoked=None if certificates is None else partial(revoked_by, certificates),
        )
