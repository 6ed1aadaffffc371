"""Certificates say who somebody is, belong together, end in time, and their keys stay private."""

from __future__ import annotations

import ipaddress
import logging
import os
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from dovetail.errors import ConfigError
from dovetail.network.certificates import (
    Authority,
    certificate_name,
    certificate_pem,
    fingerprint,
    host_name,
    hosts_of,
    key_pem,
    make_folder,
    make_request,
    may_listen,
    name_of,
    new_key,
    read_request,
    tls_name,
    write_file,
)
from dovetail.network.credentials import Credentials

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority.create(now=NOW)


def put(folder: Path, authority: Authority, name: str = "shop", **how: int) -> Path:
    """A party's three files."""
    key = new_key()
    certificate = authority.issue(name, key.public_key(), now=NOW, **how)  # type: ignore[arg-type]
    folder.mkdir(exist_ok=True)
    (folder / "ca.pem").write_bytes(authority.pem)
    (folder / f"{name}.pem").write_bytes(certificate_pem(certificate))
    write_file(folder / f"{name}.key", key_pem(key), private=True, replace=True)
    return folder


def refuse(folder: Path, words: str, *, now: datetime = NOW, name: str = "shop") -> None:
    with pytest.raises(ConfigError, match=words) as raised:
        Credentials.load(folder, name, now=now)
    assert "\n" not in str(raised.value)


# --- Certificates ---------------------------------------------------------------------------------


def test_a_drivers_chain_verifies_for_its_name_and_its_hosts(authority: Authority) -> None:
    hosts = ("bank.example.org", "192.0.2.7", "2001:db8::1")
    key = new_key().public_key()
    bank = authority.issue("bank", key, now=NOW, listens=True, hosts=hosts)
    builder = PolicyBuilder().store(Store(list(authority.certificates))).time(NOW)
    for subject in (
        x509.DNSName(tls_name("bank")),
        x509.DNSName("bank.example.org"),
        x509.IPAddress(ipaddress.ip_address("192.0.2.7")),
        x509.IPAddress(ipaddress.ip_address("2001:db8::1")),
    ):
        chain = builder.build_server_verifier(subject).verify(bank, [])
        assert chain == [bank, authority.certificates[0]]
    with pytest.raises(VerificationError):
        builder.build_server_verifier(x509.DNSName(tls_name("shop"))).verify(bank, [])
    assert hosts_of(bank) == hosts


def test_a_driver_with_anothers_name_as_a_host_does_not_pass_for_it(authority: Authority) -> None:
    key = new_key().public_key()
    bank = authority.issue("bank", key, now=NOW, listens=True, hosts=("clinic",))
    builder = PolicyBuilder().store(Store(list(authority.certificates))).time(NOW)
    with pytest.raises(VerificationError):
        builder.build_server_verifier(x509.DNSName(tls_name("clinic"))).verify(bank, [])
    for host in (tls_name("clinic"), tls_name("clinic").upper()):
        with pytest.raises(ConfigError, match="--host takes a host's name"):
            authority.issue("bank", key, now=NOW, listens=True, hosts=(host,))
    assert tls_name("clinic") != tls_name("Clinic")


def test_a_site_may_dial_and_cannot_pass_for_a_driver(authority: Authority) -> None:
    key = new_key().public_key()
    shop = authority.issue("shop", key, now=NOW)
    store = Store(list(authority.certificates))
    builder = PolicyBuilder().store(store).time(NOW)
    assert builder.build_client_verifier().verify(shop, []).chain[0] == shop
    with pytest.raises(VerificationError):
        builder.build_server_verifier(x509.DNSName(tls_name("shop"))).verify(shop, [])
    assert (may_listen(shop), hosts_of(shop)) == (False, ())
    usage = shop.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.CLIENT_AUTH]


def test_another_authority_verifies_nothing(authority: Authority) -> None:
    shop = authority.issue("shop", new_key().public_key(), now=NOW)
    other = Authority.create(now=NOW)
    builder = PolicyBuilder().store(Store(list(other.certificates))).time(NOW)
    with pytest.raises(VerificationError):
        builder.build_client_verifier().verify(shop, [])
    assert other.certificates[0].subject != authority.certificates[0].subject


def test_a_party_cannot_sign(authority: Authority) -> None:
    key = new_key()
    shop = authority.issue("shop", key.public_key(), now=NOW)
    forged = Authority((shop,), key).issue("bank", new_key().public_key(), now=NOW, listens=True)
    builder = PolicyBuilder().store(Store(list(authority.certificates))).time(NOW)
    with pytest.raises(VerificationError):
        builder.build_server_verifier(x509.DNSName(tls_name("bank"))).verify(forged, [shop])


def test_certificates_name_their_party_and_last_as_long_as_said(authority: Authority) -> None:
    key = new_key().public_key()
    first, second = (authority.issue("shop", key, now=NOW, days=10) for _ in range(2))
    assert name_of(first) == "shop"
    assert first.serial_number != second.serial_number
    assert first.not_valid_after_utc == NOW + 10 * DAY
    assert first.not_valid_before_utc < NOW
    late = authority.issue("shop", key, now=NOW + 3649 * DAY)
    assert late.not_valid_after_utc == authority.expires == NOW + 3650 * DAY
    with pytest.raises(ConfigError, match="the authority expired on 2039-12-30; make a new one"):
        authority.issue("shop", key, now=NOW + 3650 * DAY)


@pytest.mark.parametrize("name", ["shop", "a", "a..b", "Shop_2.north-west", "x" * 64])
def test_names_that_a_certificate_can_carry(authority: Authority, name: str) -> None:
    key = new_key().public_key()
    certificate = authority.issue(name, key, now=NOW, listens=True)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert name_of(certificate) == certificate_name(name)
    assert names.get_values_for_type(x509.DNSName) == [tls_name(name)]
    assert re.fullmatch(r"party-[0-9a-f]{32}\.dovetail\.invalid", tls_name(name))


@pytest.mark.parametrize(
    "name", ["", "my shop", "café", "*", "*.org", ".shop", "shop-", "..", "a/b", "x" * 65, "a\nb"]
)
def test_names_that_a_certificate_cannot_carry(name: str) -> None:
    words = f"a certificate cannot carry the name {name!r}: it takes at most 64 letters a-z"
    with pytest.raises(ConfigError, match=re.escape(words)):
        certificate_name(name)


@pytest.mark.parametrize("host", ["", "bank:7443", "*.example.org", "http://bank", "a b", "é.org"])
def test_what_is_no_host_is_refused(host: str) -> None:
    with pytest.raises(ConfigError, match="--host takes a host's name or IP address, without a po"):
        host_name(host)


# --- Requests -------------------------------------------------------------------------------------


def test_a_request_gives_a_name_and_a_key_and_nothing_else() -> None:
    key = new_key()
    name, public_key = read_request(make_request("shop", key), where="shop.csr")
    assert name == "shop"
    assert public_key == key.public_key()
    assert fingerprint(public_key) == fingerprint(key.public_key())
    assert re.fullmatch(r"([0-9a-f]{4} ){7}[0-9a-f]{4}", fingerprint(public_key))
    assert fingerprint(new_key().public_key()) != fingerprint(public_key)


def test_requests_that_are_none_are_refused() -> None:
    key = new_key()
    whole = make_request("shop", key)
    with pytest.raises(ConfigError, match=r"shop\.csr is no certificate request \(PEM\)"):
        read_request(whole[:100], where="shop.csr")
    nameless = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    named = x509.CertificateSigningRequestBuilder().subject_name(
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "shop")])
    )
    other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    for request in (nameless.sign(key, hashes.SHA256()), named.sign(other, hashes.SHA256())):
        pem = request.public_bytes(serialization.Encoding.PEM)
        with pytest.raises(ConfigError, match="is no request that Dovetail made; its party makes"):
            read_request(pem, where="shop.csr")


def test_a_request_whose_sender_lacks_the_key_is_refused() -> None:
    der = x509.load_pem_x509_csr(make_request("shop", new_key())).public_bytes(
        serialization.Encoding.DER
    )
    renamed = x509.load_der_x509_csr(der.replace(b"shop", b"bank"))
    pem = renamed.public_bytes(serialization.Encoding.PEM)
    with pytest.raises(ConfigError, match="is no request that Dovetail made"):
        read_request(pem, where="shop.csr")


# --- What a party has -----------------------------------------------------------------------------


def test_a_partys_three_files_are_read(tmp_path: Path, authority: Authority) -> None:
    loaded = Credentials.load(put(tmp_path, authority), "shop", now=NOW)
    assert loaded.name == "shop"
    assert loaded.expires == NOW + 365 * DAY
    assert loaded.ca == authority.pem
    assert loaded.key == (tmp_path / "shop.key").read_bytes()
    assert "PRIVATE" not in repr(loaded)
    assert str(loaded.key) not in repr(loaded)


@pytest.mark.parametrize("file", ["ca.pem", "shop.pem", "shop.key"])
def test_a_missing_file_says_how_to_get_it(tmp_path: Path, authority: Authority, file: str) -> None:
    (put(tmp_path, authority) / file).unlink()
    refuse(tmp_path, rf"there is no .*{file}, .*'shop'.*dovetail certificates shop --request")


@pytest.mark.parametrize("file", ["ca.pem", "shop.pem", "shop.key"])
def test_a_file_that_is_something_else_is_refused(
    tmp_path: Path, authority: Authority, file: str
) -> None:
    (put(tmp_path, authority) / file).write_text("something else")
    refuse(tmp_path, rf"{file} holds no (certificate \(PEM\)|private key that Dovetail made)")


def test_files_that_do_not_belong_together_are_refused(
    tmp_path: Path, authority: Authority
) -> None:
    mine = put(tmp_path / "mine", authority)
    newer = put(tmp_path / "newer", authority)
    bank = put(tmp_path / "bank", authority, "bank")
    stranger = put(tmp_path / "stranger", Authority.create(now=NOW))
    (mine / "shop.key").write_bytes((newer / "shop.key").read_bytes())
    refuse(mine, r"shop\.key is not the key of .*shop\.pem; put the certificate that was issued")
    (newer / "ca.pem").write_bytes((stranger / "ca.pem").read_bytes())
    refuse(newer, r"shop\.pem is not signed by the authority in .*ca\.pem; take both from")
    for ending in ("pem", "key"):
        (bank / f"bank.{ending}").rename(bank / f"shop.{ending}")
    refuse(bank, r"shop\.pem is of 'bank', not of 'shop'")


def test_what_has_expired_is_refused_and_says_what_renews_it(
    tmp_path: Path, authority: Authority
) -> None:
    put(tmp_path, authority, days=10)
    late = NOW + 10 * DAY
    words = r"shop\.pem expired on 2030-01-11 12:00 UTC; renew it where the authority is \(dovetail"
    refuse(tmp_path, words, now=late)
    put(tmp_path, Authority.create(now=NOW, days=5), days=10)
    words = r"ca\.pem expired on 2030-01-06 12:00 UTC; dovetail certificates --renew-ca"
    refuse(tmp_path, words, now=NOW + 5 * DAY)
    refuse(tmp_path, "is valid only from 2030-01-01 11:00 .* set this machine's", now=NOW - DAY)


def test_what_expires_soon_is_told(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path, authority, days=40)
    with caplog.at_level(logging.WARNING):
        Credentials.load(tmp_path, "shop", now=NOW + 10 * DAY)
        assert caplog.messages == []
        Credentials.load(tmp_path, "shop", now=NOW + 11 * DAY)
    (warning,) = caplog.messages
    assert re.search(r"shop\.pem expires on 2030-02-10, in 29 days; renew it where", warning)


def test_a_key_that_others_may_read_is_told(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path, authority)
    (tmp_path / "shop.key").chmod(0o644)
    Credentials.load(tmp_path, "shop", now=NOW)
    (warning,) = caplog.messages
    assert re.search(r"shop\.key may be read by other users of this machine: chmod 600", warning)


def test_a_new_authority_is_believed_beside_the_old_until_that_ends(
    tmp_path: Path, authority: Authority
) -> None:
    put(tmp_path, authority)
    newer = Authority.create(now=NOW + DAY, beside=authority.certificates)
    (tmp_path / "ca.pem").write_bytes(newer.pem)
    assert Credentials.load(tmp_path, "shop", now=NOW + DAY).name == "shop"
    put(tmp_path / "renewed", newer)
    assert Credentials.load(tmp_path / "renewed", "shop", now=NOW + DAY).name == "shop"
    last = Authority.create(now=NOW + 3651 * DAY, beside=newer.certificates)
    assert [each.subject for each in last.certificates[1:]] == []
    put(tmp_path / "last", last)
    refuse(put(tmp_path, authority), "expired", now=NOW + 3651 * DAY)


# --- Files ----------------------------------------------------------------------------------------


def test_a_private_file_is_never_readable_by_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes = []
    replace = os.replace

    def look(fresh: Path, target: Path) -> None:
        modes.append(fresh.stat().st_mode & 0o777)
        replace(fresh, target)

    monkeypatch.setattr(os, "replace", look)
    old = os.umask(0)
    try:
        write_file(tmp_path / "key", b"secret", private=True, replace=False)
        write_file(tmp_path / "certificate", b"public", private=False, replace=False)
        make_folder(tmp_path / "certificates" / "shop")
    finally:
        os.umask(old)
    assert modes == [0o600, 0o644]
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    for folder in ("certificates", "certificates/shop"):
        assert (tmp_path / folder).stat().st_mode & 0o777 == 0o700


def test_a_file_is_kept_unless_it_is_to_be_replaced(tmp_path: Path) -> None:
    write_file(tmp_path / "key", b"old", private=True, replace=False)
    with pytest.raises(ConfigError, match="key exists and is kept; --force makes a new one in its"):
        write_file(tmp_path / "key", b"new", private=True, replace=False)
    assert (tmp_path / "key").read_bytes() == b"old"
    write_file(tmp_path / "key", b"new", private=True, replace=True)
    assert (tmp_path / "key").read_bytes() == b"new"
    assert [file.name for file in tmp_path.iterdir()] == ["key"]


def test_a_file_that_cannot_be_written_whole_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_file(tmp_path / "key", b"secret", private=True, replace=False)
    assert list(tmp_path.iterdir()) == []


def test_an_authority_is_read_back_with_its_own_key_only(
    tmp_path: Path, authority: Authority
) -> None:
    authority.save(tmp_path / "ca")
    loaded = Authority.load(tmp_path / "ca")
    assert loaded.certificates == authority.certificates
    assert key_pem(loaded.key) == key_pem(authority.key)
    assert (tmp_path / "ca" / "ca.key").stat().st_mode & 0o777 == 0o600
    with pytest.raises(ConfigError, match=r"ca\.key exists and is kept"):
        authority.save(tmp_path / "ca")
    write_file(tmp_path / "ca" / "ca.key", key_pem(new_key()), private=True, replace=True)
    with pytest.raises(ConfigError, match=r"ca\.key is not the key of the first certificate in"):
        Authority.load(tmp_path / "ca")
