"""``dovetail certificates`` as somebody types it: from nothing to files ready to hand over."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from dovetail.network.certificates import (
    fingerprint,
    hosts_of,
    may_listen,
    read_certificates,
    tls_name,
)
from dovetail.network.credentials import Credentials


def assert_refused(done: Any, words: str) -> None:
    assert (done.code, done.out) == (2, "")
    assert re.search(words, done.err), done.err
    assert done.err.startswith("dovetail: ")
    assert done.err.count("\n") == 1


def certificate(name: str, folder: str = "certificates") -> x509.Certificate:
    path = Path(folder) / name / f"{name}.pem"
    return read_certificates(path.read_bytes(), where=str(path))[0]


def content(folder: str = "certificates") -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


def test_one_command_makes_all_that_each_party_needs_and_no_more(dovetail: Any) -> None:
    done = dovetail(
        *("certificates", "bank", "shop", "insurer", "--driver", "bank"),
        *("--host", "bank.example.org", "--host", "127.0.0.1"),
    )
    assert (done.code, done.err) == (0, "")
    for name in ("bank", "shop", "insurer"):
        files = sorted(path.name for path in Path("certificates", name).iterdir())
        assert files == sorted(["ca.pem", f"{name}.key", f"{name}.pem"])
        assert Credentials.load(Path("certificates", name), name).name == name
        assert f"give certificates/{name}/ (ca.pem, {name}.pem, {name}.key) to '{name}'" in done.out
    assert may_listen(certificate("bank"))
    assert hosts_of(certificate("bank")) == ("bank.example.org", "127.0.0.1")
    assert not may_listen(certificate("shop"))
    assert hosts_of(certificate("shop")) == ()
    assert "New authority: certificates/ca" in done.out
    for path in Path("certificates").rglob("*"):
        private = path.is_dir() or path.suffix == ".key"
        assert path.stat().st_mode & 0o077 == (0 if private else 0o044), path


def test_a_driver_whose_host_is_another_drivers_name_has_not_its_name(dovetail: Any) -> None:
    drivers = ("--driver", "a", "--driver", "b")
    assert dovetail("certificates", "a", "b", *drivers, "--host", "b", "-q").code == 0
    authority = read_certificates(Path("certificates/ca/ca.pem").read_bytes(), where="ca.pem")
    builder = PolicyBuilder().store(Store(list(authority)))
    verifier = builder.build_server_verifier(x509.DNSName(tls_name("b")))
    verifier.verify(certificate("b"), [])
    with pytest.raises(VerificationError):
        verifier.verify(certificate("a"), [])


def test_a_site_that_makes_its_own_key_sends_a_request_only(dovetail: Any) -> None:
    assert dovetail("certificates", "bank", "--driver", "bank", "-q").code == 0
    asked = dovetail("certificates", "shop", "--request", "--out", "at-shop")
    assert asked.code == 0
    assert sorted(path.name for path in Path("at-shop/shop").iterdir()) == ["shop.csr", "shop.key"]
    assert "Send at-shop/shop/shop.csr to whoever holds the authority" in asked.out
    Path("at-shop/shop/shop.csr").rename("shop.csr")  # on its way
    signed = dovetail("certificates", "shop", "--sign", "shop.csr")
    assert signed.code == 0
    files = sorted(path.name for path in Path("certificates/shop").iterdir())
    assert files == ["ca.pem", "shop.pem"]  # and no key
    assert "send certificates/shop/ca.pem and shop.pem back to 'shop'" in signed.out
    (digest,) = re.findall(r"by telephone: (.*)\n", asked.out)
    assert digest in signed.out
    for file in files:
        shutil.copy(Path("certificates/shop", file), "at-shop/shop")
    loaded = Credentials.load(Path("at-shop/shop"), "shop")
    assert fingerprint(certificate("shop").public_key()) == digest  # type: ignore[arg-type]
    assert loaded.ca == Path("certificates/ca/ca.pem").read_bytes()


def test_the_same_key_is_asked_for_again_and_another_only_by_force(dovetail: Any) -> None:
    dovetail("certificates", "bank", "--driver", "bank", "-q")
    for _ in range(2):
        assert dovetail("certificates", "shop", "--request", "-q").code == 0
        done = dovetail("certificates", "shop", "--sign", "certificates/shop/shop.csr", "-q")
        assert (done.code, done.err) == (0, "")
    key = Path("certificates/shop/shop.key").read_bytes()
    assert dovetail("certificates", "shop", "--request", "--force", "-q").code == 0
    assert Path("certificates/shop/shop.key").read_bytes() != key
    sign = ("certificates", "shop", "--sign", "certificates/shop/shop.csr", "-q")
    before = content()
    assert_refused(dovetail(*sign), "'shop' has a certificate for another key .* sign it with --fo")
    assert content() == before
    assert dovetail(*sign, "--force").code == 0
    Credentials.load(Path("certificates/shop"), "shop")


def test_a_renewed_certificate_has_the_same_key_role_and_hosts(dovetail: Any) -> None:
    dovetail("certificates", "bank", "shop", "--driver", "bank", "--host", "b.org", "-q")
    old = certificate("bank")
    done = dovetail("certificates", "bank", "shop", "--renew", "--days", "500")
    assert (done.code, done.err) == (0, "")
    new = certificate("bank")
    assert new.serial_number != old.serial_number
    assert new.public_key() == old.public_key()
    assert (may_listen(new), hosts_of(new)) == (True, ("b.org",))
    assert not may_listen(certificate("shop"))
    assert (new.not_valid_after_utc - new.not_valid_before_utc).days == 500
    Credentials.load(Path("certificates/bank"), "bank")
    dovetail("certificates", "bank", "--renew", "--force", "--host", "c.org", "-q")
    assert certificate("bank").public_key() != old.public_key()
    assert hosts_of(certificate("bank")) == ("c.org",)
    Credentials.load(Path("certificates/bank"), "bank")


def test_who_made_its_own_key_is_renewed_without_it(dovetail: Any) -> None:
    dovetail("certificates", "bank", "--driver", "bank", "-q")
    dovetail("certificates", "shop", "--request", "--out", "at-shop", "-q")
    dovetail("certificates", "shop", "--sign", "at-shop/shop/shop.csr", "-q")
    old = certificate("shop")
    assert dovetail("certificates", "shop", "--renew", "-q").code == 0
    assert certificate("shop").public_key() == old.public_key()
    assert certificate("shop").serial_number != old.serial_number
    assert not Path("certificates/shop/shop.key").exists()


def test_a_new_authority_cuts_nobody_off(dovetail: Any) -> None:
    dovetail("certificates", "bank", "shop", "--driver", "bank", "-q")
    old = Path("certificates/ca/ca.pem").read_bytes()
    done = dovetail("certificates", "--renew-ca")
    assert (done.code, done.err) == (0, "")
    new = Path("certificates/ca/ca.pem").read_bytes()
    assert new.endswith(old)
    assert new != old
    assert "1. Give everybody the new certificates/ca/ca.pem. 2. When all have it" in done.out
    for name in ("bank", "shop"):
        assert Path("certificates", name, "ca.pem").read_bytes() == new
        Credentials.load(Path("certificates", name), name)  # still signed by the old one
    dovetail("certificates", "shop", "--renew", "-q")
    shop = Credentials.load(Path("certificates/shop"), "shop")
    authorities = read_certificates(shop.ca, where="ca.pem")
    certificate("shop").verify_directly_issued_by(authorities[0])
    assert dovetail("certificates", "insurer", "-q").code == 0


def test_without_names_it_lists_what_there_is(dovetail: Any) -> None:
    dovetail("certificates", "bank", "shop", "--driver", "bank", "--host", "b.org", "-q")
    dovetail("certificates", "insurer", "--request", "-q")
    done = dovetail("certificates")
    for line in (
        r"ca +│ sign +│ +│ 20\d\d-",
        r"bank +│ listen and dial +│ b\.org +│ 20\d\d-",
        r"shop +│ dial +│ +│ 20\d\d-",
        r"insurer +│ +│ +│ waits for a certificate",
    ):
        assert re.search(line, done.out), done.out
    listed = json.loads(dovetail("certificates", "--json").out)["listed"]
    assert {name: party["driver"] for name, party in listed.items()} == {
        "bank": True,
        "shop": False,
        "insurer": None,
    }


def test_every_certificate_is_written_down(dovetail: Any) -> None:
    dovetail("certificates", "bank", "shop", "--driver", "bank", "--host", "b.org", "-q")
    dovetail("certificates", "shop", "--renew", "-q")
    written = Path("certificates/ca/issued.jsonl").read_text()
    lines = [json.loads(line) for line in written.splitlines()]
    assert [line["name"] for line in lines] == ["bank", "shop", "shop"]
    assert [line["driver"] for line in lines] == [True, False, False]
    assert lines[0]["hosts"] == ["b.org"]
    assert lines[2]["serial"] == f"{certificate('shop').serial_number:x}"
    assert lines[1]["fingerprint"] == lines[2]["fingerprint"]


def test_json_says_what_was_made(dovetail: Any) -> None:
    done = dovetail("certificates", "bank", "--driver", "bank", "--json")
    report = json.loads(done.out)
    assert (report["created"], report["authority"]) == (True, "certificates/ca")
    assert report["parties"]["bank"] == {
        "folder": "certificates/bank",
        "has_key": True,
        "driver": True,
        "hosts": [],
        "fingerprint": fingerprint(certificate("bank").public_key()),  # type: ignore[arg-type]
        "expires": f"{certificate('bank').not_valid_after_utc:%Y-%m-%d}",
    }
    assert dovetail("certificates", "shop", "-q").out == ""


def test_what_is_there_is_kept_unless_forced(dovetail: Any) -> None:
    dovetail("certificates", "bank", "shop", "--driver", "bank", "-q")
    before = content()
    for names in (["shop"], ["insurer", "shop"]):
        done = dovetail("certificates", *names)
        assert_refused(done, r"shop/shop\.key exists and is kept; --renew gives 'shop' a new certi")
    assert content() == before
    assert dovetail("certificates", "shop", "--force", "-q").code == 0
    assert content()["certificates/shop/shop.key"] != before["certificates/shop/shop.key"]
    assert content()["certificates/ca/ca.key"] == before["certificates/ca/ca.key"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("", r"there are no certificates in certificates; make some: dovetail certificates bank"),
        ("my%shop", "a certificate cannot carry the name 'my shop': it takes at most 64 letters"),
        ("ca", "'ca' is the authority's folder; give the party another name"),
        ("shop shop", r"name each party once, got \['shop', 'shop'\]"),
        ("shop --driver bank", "--driver says 'bank', which is none of the parties named: shop"),
        ("shop --host b.org", "--host is where a driver listens; say who drives with --driver NAM"),
        ("bank --driver bank --host b.org:1", r"--host takes a host's name or IP address, without"),
        (
            "bank Bank",
            "'bank' and 'Bank' differ only in case|'Bank' and 'bank' differ only in case",
        ),
        ("shop --renew", r"there is no certificates/shop/shop\.pem, so there is nothing to renew;"),
        ("--renew", "--renew needs the party's name: dovetail certificates shop --renew"),
        ("--request", "--request needs the party's name: dovetail certificates shop --request"),
        ("--renew-ca", "there is no authority in certificates/ca; name the folder it is in with"),
        ("shop --renew-ca", "--renew-ca is for all parties; leave their names out"),
        ("shop --sign no.csr", "there is no authority in certificates/ca"),
        ("shop --request --renew", "give one of --request and --renew: each is a step of its own"),
        ("shop --request --driver shop", "who drives is said by whoever signs; leave --driver out"),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_nothing(
    dovetail: Any, arguments: str, words: str
) -> None:
    typed = [word.replace("%", " ") for word in arguments.split()]
    assert_refused(dovetail("certificates", *typed), words)
    assert not Path("certificates").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("shop --sign no.csr", r"there is no no\.csr, the request"),
        ("shop --sign text", "text is no certificate request"),
        ("insurer --sign shop.csr", r"shop\.csr is a request of 'shop', not of 'insurer'"),
        ("shop insurer --sign shop.csr", "--sign takes one request, for one party; got"),
        ("BANK", "'BANK' and 'bank' differ only in case, and people and file systems would take"),
    ],
)
def test_a_mistake_of_the_authoritys_holder_changes_nothing(
    dovetail: Any, arguments: str, words: str
) -> None:
    dovetail("certificates", "bank", "--driver", "bank", "-q")
    dovetail("certificates", "shop", "--request", "--out", "shop", "-q")
    Path("shop/shop/shop.csr").rename("shop.csr")
    Path("text").write_text("text")
    before = content()
    assert_refused(dovetail("certificates", *arguments.split()), words)
    assert content() == before
