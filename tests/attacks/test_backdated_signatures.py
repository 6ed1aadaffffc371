"""The key of a certificate that has expired: what can still be signed with it?"""

from datetime import UTC, datetime, timedelta

import pytest

from dovetail.errors import ConfigError, MessageError
from dovetail.network.certificates import Authority, certificate_pem, key_pem, new_key
from dovetail.network.credentials import Credentials
from dovetail.network.renewal import Certified
from dovetail.node.agreements import Agreements, Show
from dovetail.node.proposal import Proposal, Signature, sign

NOW = datetime.now(UTC).replace(microsecond=0)
AUTHORITY = Authority.create(now=NOW - timedelta(days=800))


def identity(name, *, issued, days, authority=AUTHORITY):
    key = new_key()
    certificate = authority.issue(name, key.public_key(), now=issued, days=days)
    return Certified(Credentials(authority.pem, certificate_pem(certificate), key_pem(key)))


BANK = identity("bank", issued=NOW - timedelta(days=700), days=800)
SHOP = identity("shop", issued=NOW - timedelta(days=700), days=800)
#: Its certificate expired an hour ago; a thief has the key.
OLD = identity("shop", issued=NOW - timedelta(days=10), days=10 - 1 / 24)


def proposed(created, expires):
    return Proposal(
        purpose="credit",
        driver="bank",
        parties=("bank", "shop"),
        method="apfed-mixed",
        variants=("apfed-mixed",),
        seeds=(0,),
        algorithms=("apfed-mixed",),
        messages=(),
        settings={},
        models="each keeps one",
        created=created,
        expires=expires,
        dovetail="0.1.0",
    )


def signed_by(proposal, party, who, when):
    return Signature(proposal=proposal.name, party=party, decision="signed", time=when).signed(who)


@pytest.fixture
def shop(tmp_path):
    return Agreements(tmp_path, "shop", BANK.authorities, required=True, num_rows=10)


def show(shop, proposal, *signatures):
    shop.shown(Show(proposal.text, tuple(each.text for each in signatures)), "bank")


def approved(shop, proposal):
    return shop.approve(
        "1/apfed-mixed/seed-0", proposal.name, "apfed-mixed", "bank", samples=str
    ).variant


@pytest.mark.parametrize(
    ("created", "signed", "why"),
    [
        (NOW, NOW - timedelta(days=9), "is said to have signed .* it was made on"),
        (NOW, NOW - timedelta(hours=2), "is said to have signed .* it was made on"),
        (NOW - timedelta(days=9), NOW - timedelta(days=8), "signed .* with expired on"),
        (NOW - timedelta(hours=3), NOW - timedelta(hours=2), "signed .* with expired on"),
        (NOW - timedelta(hours=3), NOW, "certificate"),
    ],
    ids=[
        "before the proposal was made",
        "hours before it was made",
        "of a proposal that is as old",
        "between its making and the certificate's end",
        "now",
    ],
)
def test_an_expired_key_signs_no_new_proposal(shop, created, signed, why):
    proposal = proposed(created, NOW + timedelta(days=30))
    signature = signed_by(proposal, "bank", BANK, max(created, signed))
    with pytest.raises(MessageError, match=why):
        show(shop, proposal, signature, signed_by(proposal, "shop", OLD, signed))
    with pytest.raises(ConfigError, match="not shown"):
        approved(shop, proposal)


def test_what_was_seen_in_time_holds_when_its_certificate_has_expired(shop, monkeypatch):
    proposal = proposed(NOW - timedelta(days=2), NOW + timedelta(days=30))
    then = NOW - timedelta(days=1)

    class Then(datetime):
        @classmethod
        def now(cls, tz=None):
            return then.astimezone(tz)

    signatures = [
        signed_by(proposal, "bank", BANK, then),
        signed_by(proposal, "shop", OLD, then),
    ]
    with monkeypatch.context() as earlier:
        earlier.setattr("dovetail.node.proposal.datetime", Then)
        show(shop, proposal, *signatures)
    show(shop, proposal, *signatures)  # the driver shows the same again
    assert approved(shop, proposal) == "apfed-mixed"
    changed = signed_by(proposal, "shop", OLD, then + timedelta(seconds=1))
    with pytest.raises(MessageError, match="expired on"):
        show(shop, proposal, changed)


def test_nothing_is_signed_after_a_proposal_has_ended(shop):
    proposal = proposed(NOW - timedelta(days=2), NOW - timedelta(days=1))
    with pytest.raises(MessageError, match="ends on"):
        show(shop, proposal, sign(proposal, "bank", BANK), sign(proposal, "shop", SHOP))


def test_where_signatures_are_asked_for_an_authority_says_whose_they_are(tmp_path):
    with pytest.raises(ConfigError, match=r"needs an authority .* ca\.pem"):
        Agreements(tmp_path, "shop", (), required=True, num_rows=10)
    authority = Authority.create(now=NOW - timedelta(days=1))
    forged = identity("shop", issued=NOW - timedelta(hours=1), days=30, authority=authority)
    shop = Agreements(tmp_path, "shop", BANK.authorities, required=True, num_rows=10)
    proposal = proposed(NOW - timedelta(minutes=1), NOW + timedelta(days=1))
    with pytest.raises(MessageError, match="shop"):
        show(shop, proposal, sign(proposal, "bank", BANK), sign(proposal, "shop", forged))
