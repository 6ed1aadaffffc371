"""Certificates that are renewed and revoked while lines are open, and those of a company's CA."""

from __future__ import annotations

import logging
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import torch
from processes import Answer, Doubles, Question

from dovetail.errors import ConfigError, MessageError
from dovetail.network.certificates import (
    Authority,
    Revocations,
    certificate_pem,
    read_certificates,
    tls_name,
)
from dovetail.network.client import Event, Way, serve
from dovetail.network.credentials import Credentials, certificate_warnings
from dovetail.network.host import Host
from dovetail.network.renewal import Certified
from dovetail.network.stream import Stream
from dovetail.node import issuing
from dovetail.node.issuing import Folder

pytestmark = pytest.mark.network

QUESTION = Question(torch.tensor([1.0, 2.0]))


def issue(
    folder: Path, *names: str, days: int = 365, renew: bool = False, force: bool = False
) -> Folder:
    """Certificates as ``dovetail certificates`` makes them."""
    made = Folder(folder)
    terms = issuing.Terms(drivers=("bank",), days=days, force=force, now=datetime.now(UTC))
    issuing.issue(made, names, terms, renew=renew)
    return made


def revoke(folder: Folder, *names: str, reason: str = "keyCompromise") -> None:
    issuing.revoke(folder, names, reason, 30, now=datetime.now(UTC))


def serial(credentials: Credentials) -> int:
    return read_certificates(credentials.certificate, where="it")[0].serial_number


@dataclass
class Joined:
    """A party that dials, and what it was told."""

    party: Doubles
    stop: threading.Event
    events: list[Event] = field(default_factory=list)

    def wait_for(self, words: str, timeout_s: float = 30.0) -> float:
        """Seconds until it was told so."""
        began = time.monotonic()
        while not any(words in event.text for event in self.events):
            assert time.monotonic() - began < timeout_s, self.events
            time.sleep(0.02)
        return time.monotonic() - began


Join = Callable[..., Joined]


@contextmanager
def lines(folder: Path, *names: str, way: Way | None = None) -> Iterator[tuple[Stream, Join]]:
    """A driver's stream whose certificate is in this folder, and what makes parties dial it."""
    with ExitStack() as stack:
        stream = stack.enter_context(
            Stream(
                "127.0.0.1:0",
                driver="bank",
                credentials=Certified.load(folder / "bank", "bank"),
                parties=names,
                silence_s=3.0,
            )
        )

        def join(name: str) -> Joined:
            party, stop = Doubles(), threading.Event()
            joined = Joined(party, stop)
            thread = threading.Thread(
                target=serve,
                args=(Host(name, lambda *_: party), f"127.0.0.1:{stream.port}"),
                kwargs={
                    "credentials": Certified.load(folder / name, name),
                    "driver": "bank",
                    "stop": stop,
                    "way": way or Way(proxy=""),
                    "on_event": joined.events.append,
                },
            )
            thread.start()
            stack.callback(thread.join)
            stack.callback(stop.set)
            return joined

        yield stream, join


# --- Revocation -----------------------------------------------------------------------------------


def test_a_revoked_certificate_loses_its_open_line_in_the_middle_of_an_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = issue(tmp_path, "bank", "shop", "lab")
    with lines(tmp_path, "shop", "lab") as (stream, join):
        shop, lab = join("shop"), join("lab")
        stream.wait(30)
        engine = stream.engine("a run", grace_s=20.0)
        assert set(engine.ask(dict.fromkeys(("shop", "lab"), QUESTION), Answer)) == {"shop", "lab"}
        slow = Question(torch.ones(1), sleep_s=8.0)
        sent = engine.send({"shop": slow, "lab": QUESTION}, Answer)
        began = time.monotonic()
        local_list = tmp_path / "shop" / "crl.pem"
        revoke(folder, "shop")
        local_list.unlink()  # a thief heeds no list
        replies = sent.replies()
        took_s = time.monotonic() - began
        assert list(replies) == ["lab"]
        sentence = r"certificate of 'shop' with serial [0-9a-f]+ is revoked since .* key compromise"
        assert replies.failures["shop"].cause
        assert re.search(sentence, replies.failures["shop"].cause)
        assert took_s < 7, took_s  # neither the answer nor the grace period was waited for
        shop.wait_for("refused: the certificate of 'shop'")
        assert re.search(f"cut the line to shop .*{sentence}", caplog.text)
        # It dials again, and is turned away; the other party goes on.
        time.sleep(0.5)
        again = engine.ask(dict.fromkeys(("shop", "lab"), QUESTION), Answer)
        assert list(again) == ["lab"]
        assert re.search(sentence, again.failures["shop"].cause)
        assert "refused a connection" in caplog.text
        assert [event.kind for event in lab.events] == ["connected"]
        shop.party.accepts = ()  # what it still computes is nobody's


def test_a_driver_whose_certificate_is_revoked_loses_its_line_at_the_party(tmp_path: Path) -> None:
    folder = issue(tmp_path, "bank", "shop")
    with lines(tmp_path, "shop") as (stream, join):
        shop = join("shop")
        stream.wait(30)
        revoke(folder, "bank")
        (tmp_path / "bank" / "crl.pem").unlink()  # a thief heeds no list
        shop.wait_for("cut the line to bank: the certificate of 'bank' with serial", 8)
        shop.wait_for("no line to bank: what is said to be of party 'bank' does not count")
        # A new key and certificate of the same name is believed again.
        issue(tmp_path, "bank", renew=True, force=True)
        before = len(shop.events)
        deadline = time.monotonic() + 30
        while not any(event.kind == "connected" for event in shop.events[before:]):
            assert time.monotonic() < deadline, shop.events
            time.sleep(0.05)


def test_a_list_counts_only_if_it_is_whole_and_signed_by_who_is_believed(tmp_path: Path) -> None:
    folder = issue(tmp_path / "one", "bank", "shop")
    other = issue(tmp_path / "other", "bank", "shop")
    revoke(folder, "shop", reason="superseded")
    revoke(other, "shop")
    bank_folder = tmp_path / "one" / "bank"
    with pytest.raises(ConfigError, match=r"crl\.pem: the certificate of 'shop' .* superseded"):
        Credentials.load(tmp_path / "one" / "shop", "shop")
    (bank_folder / "crl.pem").write_bytes((tmp_path / "other" / "bank" / "crl.pem").read_bytes())
    with pytest.raises(ConfigError, match=r"is not signed by an authority in ca\.pem"):
        Credentials.load(bank_folder, "bank")
    (bank_folder / "crl.pem").write_text("nothing")
    with pytest.raises(ConfigError, match="holds no revocation list"):
        Credentials.load(bank_folder, "bank")
    (bank_folder / "crl.pem").unlink()
    assert not Credentials.load(bank_folder, "bank").revoked
    with pytest.raises(ConfigError, match=r"there is no .*list of revoked certificates"):
        Credentials.load(bank_folder, "bank", revoked=bank_folder / "crl.pem")


def test_words_signed_with_a_revoked_certificate_do_not_count(tmp_path: Path) -> None:
    folder = issue(tmp_path, "bank", "shop")
    shop = Certified.load(tmp_path / "shop", "shop")
    shown = Certified.load(tmp_path / "bank", "bank")
    bank, proof = shown, shop.sign(b"so it is")
    bank.check("shop", b"so it is", proof)
    revoke(folder, "shop")
    assert shown.refresh()
    with pytest.raises(MessageError, match=r"does not count: the certificate of 'shop' with"):
        bank.check("shop", b"so it is", proof)


def test_certificates_of_an_authority_that_was_replaced_can_still_be_revoked(
    tmp_path: Path,
) -> None:
    folder = issue(tmp_path, "bank", "shop")
    old = read_certificates((tmp_path / "shop" / "shop.pem").read_bytes(), where="it")
    issuing.renew_authority(folder, datetime.now(UTC))
    issue(tmp_path, "bank", renew=True)
    revoke(folder, "shop", reason="cessationOfOperation")
    bank = Certified.load(tmp_path / "bank", "bank")
    reason = bank.revocations.why(old)
    assert reason is not None
    assert reason.endswith("cessation of operation")
    with pytest.raises(ConfigError, match="has given 'lab' no certificate; it has given some to"):
        revoke(folder, "lab")


def test_a_key_that_was_lost_gets_no_second_certificate(tmp_path: Path) -> None:
    folder = issue(tmp_path, "bank", "shop")
    revoke(folder, "shop")
    with pytest.raises(ConfigError, match=r"the key of 'shop' is one that somebody else may have"):
        issue(tmp_path, "shop", renew=True)
    issue(tmp_path, "shop", renew=True, force=True)
    assert Credentials.load(tmp_path / "shop", "shop").revoked


def test_a_list_that_should_have_been_followed_by_another_is_told(tmp_path: Path) -> None:
    folder = issue(tmp_path, "bank", "shop")
    revoke(folder)
    later = datetime.now(UTC) + timedelta(days=40)
    (warning,) = certificate_warnings(tmp_path / "bank", "bank", now=later)
    assert "was to be followed by another on" in warning
    (soon, _) = certificate_warnings(tmp_path / "bank", "bank", now=later + timedelta(days=310))
    assert "bank.pem expires on" in soon


# --- Renewal --------------------------------------------------------------------------------------


def test_certificates_of_both_sides_are_renewed_and_no_step_is_lost(tmp_path: Path) -> None:
    issue(tmp_path, "bank", "shop")
    with lines(tmp_path, "shop") as (stream, join):
        shop = join("shop")
        stream.wait(30)
        engine = stream.engine("a run")
        first = serial(Credentials.load(tmp_path / "shop", "shop"))
        handled = 0
        deadline = time.monotonic() + 30
        while not any("was renewed" in event.text for event in shop.events):
            if handled == 5:
                issue(tmp_path, "shop", "bank", renew=True)
            handled += 1
            answer = engine.ask({"shop": QUESTION}, Answer).or_raise()["shop"]
            assert answer.handled == handled
            assert time.monotonic() < deadline
        for _ in range(20):
            handled += 1
            answer = engine.ask({"shop": QUESTION}, Answer).or_raise()["shop"]
            assert answer.handled == handled
        (connection,) = stream.links["shop"].connections
        second = serial(Credentials.load(tmp_path / "shop", "shop"))
        assert (connection.shown[0].serial_number, first != second) == (second, True)
        # The driver shows its new one, too: a party that comes now is shown it.
        assert shop.party.handled == handled


def test_files_that_are_halfway_replaced_change_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    issue(tmp_path / "a", "bank", "shop")
    issue(tmp_path / "b", "bank", "shop")
    shown = Certified.load(tmp_path / "a" / "shop", "shop")
    before = shown.credentials
    with caplog.at_level(logging.WARNING):
        for file in ("shop.key", "shop.pem"):
            shutil.copy(tmp_path / "b" / "shop" / file, tmp_path / "a" / "shop" / file)
            assert not shown.refresh()
            assert shown.credentials is before
        assert not caplog.records
        assert not shown.refresh()  # it stays so, and that is told once
        assert not shown.refresh()
        assert caplog.text.count("what was there before still counts") == 1
        shutil.copy(tmp_path / "b" / "shop" / "ca.pem", tmp_path / "a" / "shop" / "ca.pem")
        assert shown.refresh()
    assert shown.credentials == Credentials.load(tmp_path / "b" / "shop", "shop")


def test_both_sides_are_told_of_a_certificate_that_is_about_to_expire(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    issue(tmp_path, "bank", "shop", days=20)
    with lines(tmp_path, "shop") as (stream, join):
        shop = join("shop")
        stream.wait(30)
        shop.wait_for("the certificate of 'bank' expires on")
    assert "bank: the certificate of 'shop' expires on" in caplog.text


# --- A company's authority ------------------------------------------------------------------------

OPENSSL = """
set -e
openssl req -x509 -newkey rsa:2048 -nodes -keyout root.key -out root.pem -days 3650 \
  -subj "/O=Example Group/CN=Example Root" -addext basicConstraints=critical,CA:true \
  -addext keyUsage=critical,keyCertSign,cRLSign
openssl req -newkey rsa:2048 -nodes -keyout between.key -out between.csr \
  -subj "/O=Example Group/CN=Example Issuing CA"
printf '%s\n' basicConstraints=critical,CA:true,pathlen:0 keyUsage=critical,keyCertSign,cRLSign \
  subjectKeyIdentifier=hash authorityKeyIdentifier=keyid >between.ext
openssl x509 -req -in between.csr -CA root.pem -CAkey root.key -CAcreateserial -days 1825 \
  -extfile between.ext -out between.pem
"""

SIGN = """
set -e
printf '%s\n' "subjectAltName=DNS:{dns}" extendedKeyUsage={usage} \
  basicConstraints=critical,CA:false keyUsage=critical,digitalSignature >{name}.ext
openssl x509 -req -in {name}.csr -CA between.pem -CAkey between.key -CAcreateserial -days 365 \
  -extfile {name}.ext -out {name}.leaf
"""

REVOKE = """
set -e
touch index.txt
printf '%s\n' '[ca]' default_ca=own '[own]' database=index.txt default_md=sha256 \
  default_crl_days=30 crlnumber=number >ca.cnf
echo 01 >number
openssl ca -config ca.cnf -cert between.pem -keyfile between.key -revoke shop.leaf \
  -crl_reason affiliationChanged
openssl ca -config ca.cnf -cert between.pem -keyfile between.key -gencrl -out crl.pem
"""


@pytest.fixture(scope="module")
def company(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root, and an authority below it that signs."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed, which makes a company's CA here")
    folder = tmp_path_factory.mktemp("company")
    shell(folder, OPENSSL)
    return folder


def shell(folder: Path, script: str) -> None:
    subprocess.run(["sh", "-c", script], cwd=folder, check=True, capture_output=True)


def signed(company: Path, folder: Path, name: str, *, dns: str, usage: str) -> None:
    """A party's key and request, signed by the company: the key never travels."""
    made = Folder(folder)
    issuing.request(made, name, force=False)
    shutil.copy(made.of(name, ".csr"), company / f"{name}.csr")
    shell(company, SIGN.format(name=name, dns=dns, usage=usage))
    chain = (company / f"{name}.leaf").read_bytes() + (company / "between.pem").read_bytes()
    made.of(name, ".pem").write_bytes(chain)
    shutil.copy(company / "root.pem", made.of(name) / "ca.pem")


@pytest.mark.parametrize("names", ["dovetail's", "hosts'"])
def test_a_companys_ca_with_an_authority_in_between_is_believed_and_can_revoke(
    company: Path, tmp_path: Path, names: str
) -> None:
    is_dovetail = names == "dovetail's"
    usage = "clientAuth,serverAuth"
    signed(
        company,
        tmp_path,
        "bank",
        dns=tls_name("bank") if is_dovetail else "bank.example.org",
        usage=usage,
    )
    signed(company, tmp_path, "shop", dns=tls_name("shop"), usage="clientAuth")
    way = Way(proxy="", tls_name=None if is_dovetail else "bank.example.org")
    with lines(tmp_path, "shop", way=way) as (stream, join):
        shop = join("shop")
        stream.wait(30)
        engine = stream.engine("a run")
        assert engine.ask({"shop": QUESTION}, Answer).or_raise()["shop"].handled == 1
        bank = Certified.load(tmp_path / "bank", "bank")
        proof = Certified.load(tmp_path / "shop", "shop").sign(b"so it is")
        bank.check("shop", b"so it is", proof)
        shell(company, REVOKE)
        shutil.copy(company / "crl.pem", tmp_path / "bank" / "crl.pem")
        shop.wait_for("refused: the certificate of 'shop' with serial", 8)
        assert "affiliation changed" in shop.events[-1].text
    (company / "index.txt").unlink()


def test_a_host_of_the_company_is_not_taken_for_its_driver(company: Path, tmp_path: Path) -> None:
    dns = "bank.example.org"
    signed(company, tmp_path, "bank", dns=dns, usage="clientAuth,serverAuth")
    signed(company, tmp_path, "mail", dns=dns, usage="clientAuth,serverAuth")
    signed(company, tmp_path, "shop", dns=tls_name("shop"), usage="clientAuth")
    shutil.rmtree(tmp_path / "bank")
    shutil.copytree(tmp_path / "mail", tmp_path / "bank")
    for end in ("pem", "key"):
        (tmp_path / "bank" / f"mail.{end}").rename(tmp_path / "bank" / f"bank.{end}")
    with pytest.raises(ConfigError, match=r"bank\.pem is of 'mail', not of 'bank'"):
        Certified.load(tmp_path / "bank", "bank")
    mail_folder = tmp_path / "mail"
    mail = Credentials.load(mail_folder, "mail")
    with Stream("127.0.0.1:0", driver="bank", credentials=mail, parties=["shop"]) as stream:
        events: list[Event] = []
        stop = threading.Event()
        thread = threading.Thread(
            target=serve,
            args=(Host("shop", lambda *_: Doubles()), f"127.0.0.1:{stream.port}"),
            kwargs={
                "credentials": Certified.load(tmp_path / "shop", "shop"),
                "driver": "bank",
                "stop": stop,
                "way": Way(proxy="", tls_name=dns),
                "on_event": events.append,
            },
        )
        thread.start()
        deadline = time.monotonic() + 30
        while not events:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        stop.set()
        thread.join()
    assert "signed with the certificate of another" in events[0].text


def test_a_list_of_changes_only_is_refused() -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.serialization import Encoding

    now = datetime.now(UTC)
    authority = Authority.create(now=now)
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(authority.certificates[0].subject)
        .last_update(now)
        .next_update(now + timedelta(days=1))
        .add_extension(x509.DeltaCRLIndicator(1), critical=True)
    )
    pem = builder.sign(authority.key, hashes.SHA256()).public_bytes(Encoding.PEM)
    with pytest.raises(ConfigError, match="ask for the full list"):
        Revocations.read(pem, authority.certificates, where="it")
    assert certificate_pem(*authority.certificates) == authority.pem
