"""What a party shows and believes when it drives, or asks partners for a prediction."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from dovetail.errors import ConfigError
from dovetail.methods.base import Site
from dovetail.node import issuing
from dovetail.node.engines import StreamSection
from dovetail.node.joint_prediction import JointServing
from dovetail.node.partyfile import open_site
from dovetail.node.reach import party_driver

SECTION = StreamSection(kind="stream", listen="127.0.0.1:0", partners=("lab",))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    (tmp_path / "clinic.csv").write_text("id,x,y\n1,1,a\n2,2,b\n3,3,a\n")
    (tmp_path / "clinic.toml").write_text(
        '[party]\nname = "clinic"\ntable = "clinic.csv"\nid = "id"\nlabel = "y"\n'
        'revoked = "lists/revoked.pem"\n'
    )
    folder = issuing.Folder(tmp_path / "certificates")
    terms = issuing.Terms(drivers=("clinic",), days=30, now=datetime.now(UTC))
    issuing.issue(folder, ("clinic", "lab"), terms, renew=False)
    return open_site(tmp_path / "clinic.toml")


def test_whoever_asks_partners_heeds_the_list_of_revoked_that_its_file_names(site: Site) -> None:
    for made in (
        lambda: party_driver(site, SECTION),
        lambda: JointServing(site, np.arange(3), SECTION, within_s=1.0),
    ):
        with pytest.raises(ConfigError, match=r"lists/revoked\.pem, the list of revoked"):
            made()


def test_a_party_is_not_its_own_partner(site: Site) -> None:
    section = SECTION.model_copy(update={"partners": ("clinic",)})
    with pytest.raises(ConfigError, match="'clinic', which is the driver itself"):
        JointServing(site, np.arange(3), section, within_s=1.0)
