"""A site's log on a disk that is full."""

from __future__ import annotations

import errno
import logging
from pathlib import Path
from typing import Any

import pytest

from dovetail.node.site_folder import logged


def test_a_log_on_a_full_disk_shows_no_traceback_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, log, is_full = tmp_path / "join.log", logging.getLogger("dovetail.node"), True
    real = logging.StreamHandler.flush

    def flush(self: Any) -> None:
        if is_full and isinstance(self, logging.FileHandler):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(self)

    monkeypatch.setattr(logging.StreamHandler, "flush", flush)
    with logged(path):
        log.warning("while it is full")
        is_full = False
        log.warning("when there is room")
        is_full = True
    assert capsys.readouterr().err == ""
    assert "when there is room" in path.read_text()
