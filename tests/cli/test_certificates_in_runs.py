"""Certificates that are renewed and revoked while a run is under way, as commands do it."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from same_secrets import as_in_one_process
from test_driver import Clinics, federation, result, weights

__all__ = ["federation"]

pytestmark = pytest.mark.network

#: Long enough that something can happen in the middle.
LONG = (('"alone", "tvfl"', ""), ("epochs = 2", "epochs = 100\ntimeout_s = 60"))


def test_renewal_costs_a_run_nothing_and_a_revoked_partner_leaves_it_at_once(
    federation: Clinics, dovetail: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    partners = {name: federation.join(name) for name in ("lab", "registry")}
    run = federation.write_run(*LONG)
    driver = federation.start("train", run, "--out", "renewed")
    federation.wait_for_lines("renewed", 5, driver)
    renewed = dovetail("certificates", "clinic", "lab", "registry", "--renew", "-q")
    assert renewed.code == 0, renewed.err
    for partner in partners.values():
        partner.wait_for("the certificate was renewed; the line to clinic begins anew")
        partner.wait_for(r"(?s)begins anew.*connected to clinic")
    assert len(federation.lines("renewed")) < 100  # it was in the middle
    assert driver.ended() == 0, driver.printed()
    here = federation.write_here(*LONG)
    as_in_one_process(monkeypatch.setattr)
    assert dovetail("train", here, "--out", "here", "-q").code == 0
    assert weights(federation.folder / "renewed") == weights(federation.folder / "here")
    assert result(federation.folder / "renewed")["missed"] == {}

    driver = federation.start("train", run, "--out", "revoked")
    federation.wait_for_lines("revoked", 5, driver)
    revoked = dovetail("certificates", "registry", "--revoke")
    assert revoked.code == 0, revoked.err
    assert revoked.out.count("Revoked: the certificate of 'registry' with serial") == 2
    sentence = "the certificate of 'registry' with serial [0-9a-f]+ is revoked since .* key compr"
    driver.wait_for(f"cut the line to registry .*: {sentence}")
    assert len(federation.lines("revoked")) < 100
    partners["registry"].wait_for(f"clinic refused: {sentence}")
    line = federation.first_missed("revoked", 5, driver)
    assert list(line["missed"]) == ["registry"]
    driver.signal(signal.SIGINT)
    assert driver.ended() == 130, driver.printed()
    for partner in partners.values():
        partner.signal(signal.SIGINT)
        assert partner.ended() == 0
