"""Certificates of a federation, kept in a folder: made, renewed, signed, listed.

    OUT/ca/     ca.pem, ca.key, issued.jsonl   the authority; its holder alone has the key
                old-SERIAL.key                 of one that it took the place of, to revoke with
                revoked.jsonl, crl.pem         certificates that no longer count; as a list (CRL)
    OUT/NAME/   ca.pem, NAME.pem, NAME.key     what party NAME needs, and nothing else
                NAME.csr                       a request, where a party made its key itself
                crl.pem                        the list, once there is one

``issued.jsonl`` has a line for every certificate: name, serial, fingerprint of its key, hosts, from
when until when. It is what a second certificate of a name is compared with.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from dovetail.errors import ConfigError
from dovetail.network import certificates as made
from dovetail.network.certificates import Authority, PublicKey


@dataclass(frozen=True)
class Folder:
    """Where certificates are kept: the authority, and one folder per party."""

    path: Path

    @property
    def authority(self) -> Path:
        return self.path / "ca"

    def of(self, name: str, ending: str = "") -> Path:
        """A party's folder, or a file in it.

        Raises:
            ConfigError: a name that cannot be in a certificate, or that is the authority's.
        """
        if made.certificate_name(name).lower() == "ca":
            raise ConfigError(f"{name!r} is the authority's folder; give the party another name")
        return self.path / name / f"{name}{ending}" if ending else self.path / name

    def parties(self) -> Iterator[str]:
        """Names of parties that have a certificate or a key here."""
        if self.path.is_dir():
            for folder in sorted(self.path.iterdir()):
                if folder != self.authority and any(
                    (folder / f"{folder.name}{end}").exists() for end in (".pem", ".key")
                ):
                    yield folder.name


@dataclass(frozen=True, kw_only=True)
class Terms:
    """Terms of new certificates.

    Attributes:
        drivers: who may listen.
        hosts: where they do, for other tools.
        days: how long they are valid.
        force: make a new key instead of the one there is, or sign it.
        now: since when they are valid.
    """

    drivers: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    days: int
    force: bool = False
    now: datetime


def issue(folder: Folder, names: tuple[str, ...], terms: Terms, *, renew: bool) -> dict[str, Any]:
    """Keys and certificates for these parties; the authority too, if there is none yet."""
    created = not renew and not (folder.authority / "ca.pem").exists()
    old = {name: _old_certificate(folder, name) for name in names} if renew else {}
    for name in names:  # all or none
        if not renew and not terms.force:
            _refuse_existing(folder, name)
    authority = Authority.create(now=terms.now) if created else _authority(folder)
    _check_taken(folder, dict.fromkeys(names))
    if created:
        authority.save(folder.authority)
    issued = {}
    for name in names:
        before = old.get(name)
        if before is not None and not folder.of(name, ".key").exists():
            # The party made its key itself, so that only the certificate is renewed here.
            public_key = before.public_key()
            assert isinstance(public_key, PublicKey)
        else:
            public_key = _own_key(folder, name, force=terms.force).public_key()
        issued[name] = _write_certificate(folder, authority, name, public_key, terms, before)
    return {"authority": str(folder.authority), "created": created, "parties": issued}


def _refuse_existing(folder: Folder, name: str) -> None:
    for ending in (".key", ".pem"):
        if folder.of(name, ending).exists():
            raise ConfigError(
                f"{folder.of(name, ending)} exists and is kept; --renew gives {name!r} a new "
                "certificate for the same key, --force a new key too"
            )


def _own_key(folder: Folder, name: str, *, force: bool) -> made.Key:
    """The key that is here, or a new one."""
    path = folder.of(name, ".key")
    if path.exists() and not force:
        return made.key_in(path)
    key = made.new_key()
    made.make_folder(folder.of(name))
    made.write_file(path, made.key_pem(key), private=True, replace=force)
    return key


def request(folder: Folder, name: str, *, force: bool) -> dict[str, Any]:
    """A party's own key, and what it sends to the authority's holder."""
    key = _own_key(folder, name, force=force)
    path = folder.of(name, ".csr")
    made.write_file(path, made.make_request(name, key), private=False, replace=True)
    return {
        "request": str(path),
        "key": str(folder.of(name, ".key")),
        "fingerprint": made.fingerprint(key.public_key()),
    }


def sign(folder: Folder, names: tuple[str, ...], path: Path, terms: Terms) -> dict[str, Any]:
    """A certificate for a key that its party made itself."""
    if len(names) != 1:
        raise ConfigError(f"--sign takes one request, for one party; got {list(names)}")
    (name,) = names
    authority = _authority(folder)
    asked, public_key = made.read_request(made.read_file(path, what="the request"), where=str(path))
    if asked != name:
        raise ConfigError(f"{path} is a request of {asked!r}, not of {name!r}; name {asked!r}")
    _check_taken(folder, {name: None if terms.force else made.fingerprint(public_key)})
    made.make_folder(folder.of(name))
    issued = _write_certificate(folder, authority, name, public_key, terms)
    return {"authority": str(folder.authority), "created": False, "parties": {name: issued}}


def revoke(
    folder: Folder,
    names: tuple[str, ...],
    reason: str,
    days: int,
    *,
    serial: str | None = None,
    now: datetime,
) -> dict[str, Any]:
    """No certificate counts that these parties were given until now; the list for everybody.

    Without names the list is made again, with a later date until which it is good.

    Raises:
        ConfigError: a party that was given none, or a serial number that it does not have.
    """
    authority = _authority(folder)
    path = folder.authority / "revoked.jsonl"
    lines = _lines(path)
    known = {line["serial"] for line in lines}
    issued = _lines(folder.authority / "issued.jsonl")
    fresh = []
    for name in names:
        serials = [line["serial"] for line in issued if line["name"] == name]
        if not serials:
            raise ConfigError(
                f"{folder.authority} has given {name!r} no certificate; it has given some to "
                f"{', '.join(sorted({line['name'] for line in issued})) or 'nobody'}: name these"
            )
        if serial is not None and serial not in serials:
            raise ConfigError(
                f"{name!r} has no certificate with serial {serial}; name one of "
                f"{', '.join(serials)}"
            )
        fresh += [
            {
                "name": name,
                "serial": each,
                "reason": reason,
                "since": f"{now:%Y-%m-%dT%H:%M:%SZ}",
            }
            for each in serials
            if each not in known and serial in (None, each)
        ]
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in fresh)
    list_path, updated = _write_lists(folder, authority, [*lines, *fresh], days, now)
    return {
        "revoked": {line["serial"]: line["name"] for line in fresh},
        "list": str(list_path),
        "good_until": f"{now + timedelta(days=days):%Y-%m-%d}",
        "updated": updated,
    }


def _write_lists(
    folder: Folder, authority: Authority, lines: list[Any], days: int, now: datetime
) -> tuple[Path, list[str]]:
    """Write the lists of all authorities that are here into one file, for everybody."""
    issuer_of = {
        line["serial"]: line.get("issuer") for line in _lines(folder.authority / "issued.jsonl")
    }
    lists = []
    for each in (authority, *_older(folder)):
        serial = f"{each.certificates[0].serial_number:x}"
        serials = {
            int(line["serial"], 16): (
                datetime.strptime(line["since"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC),
                x509.ReasonFlags(line["reason"]),
            )
            for line in lines
            if issuer_of.get(line["serial"]) in (serial, None)  # of before this was written down
        }
        number = round(now.timestamp())
        lists.append(each.revoke(serials, number=number, now=now, days=days))
    pem = b"".join(each.public_bytes(Encoding.PEM) for each in lists)
    path = folder.authority / "crl.pem"
    updated = []
    for target in (path, *(folder.of(name) / "crl.pem" for name in folder.parties())):
        made.write_file(target, pem, private=False, replace=True)
        updated.append(str(target))
    return path, updated[1:]


def _older(folder: Folder) -> list[Authority]:
    """Authorities that another took the place of, and that are still believed."""
    believed = made.certificates_in(folder.authority / "ca.pem", "the authority")
    authorities = []
    for certificate in believed[1:]:
        path = folder.authority / f"old-{certificate.serial_number:x}.key"
        if path.exists():
            key = made.key_in(path)
            authorities.append(Authority((certificate,), key))
    return authorities


def _lines(path: Path) -> list[Any]:
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text.splitlines()]


def renew_authority(folder: Folder, now: datetime) -> dict[str, Any]:
    """A new authority; the old one is believed beside it, so that nobody is cut off."""
    old = _authority(folder)
    authority = Authority.create(now=now, beside=old.certificates)
    kept = folder.authority / f"old-{old.certificates[0].serial_number:x}.key"
    made.write_file(kept, made.key_pem(old.key), private=True, replace=True)
    authority.save(folder.authority, replace=True)
    updated = []
    for name in folder.parties():
        made.write_file(folder.of(name) / "ca.pem", authority.pem, private=False, replace=True)
        updated.append(str(folder.of(name) / "ca.pem"))
    return {
        "authority": str(folder.authority),
        "expires": f"{authority.expires:%Y-%m-%d}",
        "believed": len(authority.certificates),
        "updated": updated,
    }


def _authority(folder: Folder) -> Authority:
    if not (folder.authority / "ca.pem").exists():
        raise ConfigError(
            f"there is no authority in {folder.authority}; name the folder it is in with --out, or "
            "make one with the first driver's certificate: dovetail certificates bank --driver bank"
        )
    return Authority.load(folder.authority)


def _old_certificate(folder: Folder, name: str) -> x509.Certificate:
    path = folder.of(name, ".pem")
    what = f"so there is nothing to renew; leave --renew out to make one for {name!r}"
    return made.certificates_in(path, what)[0]


def _write_certificate(
    folder: Folder,
    authority: Authority,
    name: str,
    public_key: PublicKey,
    terms: Terms,
    before: x509.Certificate | None = None,
) -> dict[str, Any]:
    """A certificate beside its key; it says no less than the one before it."""
    _refuse_lost(folder, name, public_key)
    listens, hosts = name in terms.drivers, terms.hosts
    if before is not None:
        listens = listens or made.may_listen(before)
        hosts = hosts or made.hosts_of(before)
    hosts = hosts if listens else ()
    certificate = authority.issue(
        name, public_key, now=terms.now, days=terms.days, listens=listens, hosts=hosts
    )
    line = {
        "name": name,
        "serial": f"{certificate.serial_number:x}",
        "issuer": f"{authority.certificates[0].serial_number:x}",
        "fingerprint": made.fingerprint(public_key),
        "driver": listens,
        "hosts": list(hosts),
        "issued": f"{terms.now:%Y-%m-%dT%H:%M:%SZ}",
        "expires": f"{certificate.not_valid_after_utc:%Y-%m-%dT%H:%M:%SZ}",
    }
    with (folder.authority / "issued.jsonl").open("a", encoding="utf-8") as issued:
        issued.write(json.dumps(line) + "\n")
    pem = made.certificate_pem(certificate)
    made.write_file(folder.of(name, ".pem"), pem, private=False, replace=True)
    made.write_file(folder.of(name) / "ca.pem", authority.pem, private=False, replace=True)
    if (folder.authority / "crl.pem").exists():
        listed = made.read_file(folder.authority / "crl.pem", what="the list")
        made.write_file(folder.of(name) / "crl.pem", listed, private=False, replace=True)
    return {
        "folder": str(folder.of(name)),
        "has_key": folder.of(name, ".key").exists(),
        "driver": listens,
        "hosts": list(hosts),
        "fingerprint": line["fingerprint"],
        "expires": f"{certificate.not_valid_after_utc:%Y-%m-%d}",
    }


def _refuse_lost(folder: Folder, name: str, public_key: PublicKey) -> None:
    """Refuse another certificate for a key that somebody else may have."""
    lost = {
        line["serial"]
        for line in _lines(folder.authority / "revoked.jsonl")
        if line["reason"] == "keyCompromise"
    }
    fingerprint = made.fingerprint(public_key)
    for line in _lines(folder.authority / "issued.jsonl"):
        if line["serial"] in lost and line["fingerprint"] == fingerprint:
            raise ConfigError(
                f"the key of {name!r} is one that somebody else may have (its certificate "
                f"{line['serial']} was revoked for that); make a new one: --force with --renew, or "
                "--request --force at its party"
            )


def _check_taken(folder: Folder, fingerprints: dict[str, str | None]) -> None:
    """Refuse what would let one party pass for another."""
    lines = _lines(folder.authority / "issued.jsonl")
    issued = {line["name"]: line["fingerprint"] for line in lines}
    everybody = {*issued, *fingerprints}
    for name, fingerprint in fingerprints.items():
        alike = [each for each in everybody if each != name and each.lower() == name.lower()]
        if alike:
            raise ConfigError(
                f"{name!r} and {alike[0]!r} differ only in case, and people and file systems would "
                "take one for the other; choose another name"
            )
        if fingerprint and issued.get(name, fingerprint) != fingerprint:
            raise ConfigError(
                f"{name!r} has a certificate for another key ({issued[name]}), and this request is "
                f"for {fingerprint}; ask its people whether they made a new key, and then sign it "
                "with --force"
            )


def listed(folder: Folder) -> dict[str, Any]:
    """Contents of the folder."""
    listing: dict[str, Any] = {}
    if (folder.authority / "ca.pem").exists():
        authority = made.certificates_in(folder.authority / "ca.pem", "the authority")[0]
        listing["authority"] = {"expires": f"{authority.not_valid_after_utc:%Y-%m-%d}"}
    parties: dict[str, dict[str, Any]] = {}
    for name in folder.parties():
        path = folder.of(name, ".pem")
        if not path.exists():
            parties[name] = {"driver": None, "hosts": [], "expires": None}
            continue
        certificate = made.certificates_in(path)[0]
        parties[name] = {
            "driver": made.may_listen(certificate),
            "hosts": list(made.hosts_of(certificate)),
            "expires": f"{certificate.not_valid_after_utc:%Y-%m-%d}",
        }
    if not listing and not parties:
        raise ConfigError(
            f"there are no certificates in {folder.path}; make some: dovetail certificates bank "
            "shop --driver bank (see dovetail certificates --help)"
        )
    return {**listing, "listed": parties}
