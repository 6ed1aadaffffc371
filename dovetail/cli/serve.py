"""``dovetail serve``: models' folders in, predictions over HTTP out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dovetail.cli.options import Quiet


def serve(
    models: Annotated[
        list[str],
        typer.Argument(metavar="MODEL", help="A model's folder, RUN or .onnx file; NAME=PATH."),
    ],
    host: Annotated[str, typer.Option(help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    token_file: Annotated[
        Path | None, typer.Option(help="A file with the token that requests must bear.")
    ] = None,
    certificates: Annotated[
        Path | None,
        typer.Option(help="ca.pem, NAME.pem, NAME.key: only who has a certificate is answered."),
    ] = None,
    max_rows: Annotated[int, typer.Option(min=1, help="Rows that a request may have.")] = 20_000,
    max_bytes: Annotated[int, typer.Option(min=1, help="Bytes of its body.")] = 16 * 2**20,
    max_requests: Annotated[
        int, typer.Option(min=1, help="Requests at a time; more are told 503.")
    ] = 512,
    watch: Annotated[
        float, typer.Option(min=0, help="Seconds between looks for a changed model; 0: never.")
    ] = 2.0,
    quiet: Quiet = False,
) -> None:
    """Answer predictions over HTTP: POST /predict with rows as JSON, CSV or Parquet.

    GET / is a page to try one row; /schema, /health, /metrics and /card tell the rest. Listens on
    this machine only, unless a token or certificates guard it. A model whose folder changes is
    read again; requests go on. Needs pip install 'dovetail[serve]'.
    """
    from dovetail.face.reading import model_folder
    from dovetail.service.serving import Address, named, run

    run(
        named(models, model_folder),
        Address(host, port, token_file, certificates),
        max_rows=max_rows,
        max_bytes=max_bytes,
        max_requests=max_requests,
        watch_s=watch,
        quiet=quiet,
    )
