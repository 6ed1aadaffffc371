"""Addresses of the drivers that a party connects to, checked; nothing heavy is read for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from dovetail.errors import ConfigError
from dovetail.network.certificates import certificate_name
from dovetail.settings.section import ADDRESS


def drivers_of(
    where: str, allowed: Sequence[str] | None, given: Sequence[str], name: str | None = None
) -> dict[str, str]:
    """Driver's name -> its address, of HOST:PORT or NAME=HOST:PORT.

    Args:
        where: what errors call the party file.
        allowed: who may drive, as its policy says; None: anybody.
        given: an address each.
        name: of the driver, where there is one; None: the only one that the policy names.

    Raises:
        ConfigError: an address that is none, or a driver that is not named, or not allowed.
    """
    named = [each.rpartition("=")[::2] for each in given]
    for _, address in named:
        check_address(address)
    if len(given) == 1:
        ((name_there, address),) = named
        return {_driver(where, allowed, name_there or name): address}
    drivers: dict[str, str] = {}
    for name_there, address in named:
        if not name_there or name:
            raise ConfigError(
                "with several drivers each has its name, the one in its certificate: --driver "
                f"NAME={address}, and no --name"
            )
        if name_there in drivers:
            raise ConfigError(f"--driver names {name_there!r} twice; each driver has one address")
        drivers[_driver(where, allowed, name_there)] = address
    return drivers


def _driver(where: str, allowed: Sequence[str] | None, chosen: str | None) -> str:
    """Whose certificate the driver must show.

    Raises:
        ConfigError: nobody was named, several are, or the policy would refuse them.
    """
    if chosen is None:
        if allowed is None or len(allowed) != 1:
            named = ", ".join(allowed or ()) or "none"
            raise ConfigError(
                f"{where}: say who drives with --name NAME, the name in the driver's "
                f"certificate; policy.drivers names {named}"
            )
        (chosen,) = allowed
    check_driver(allowed, chosen)
    return certificate_name(chosen)


def drivers_by_letter(
    where: str, allowed: Sequence[str] | None, name: str | None = None
) -> tuple[str, ...]:
    """Whose letters are opened: one that is named, or all that the policy allows.

    Raises:
        ConfigError: nobody was named, or the policy would refuse them.
    """
    if name is None and allowed:
        return tuple(map(certificate_name, allowed))
    return (_driver(where, allowed, name),)


def check_driver(allowed: Sequence[str] | None, driver: str) -> None:
    """Refuse whoever asks; None allows anybody.

    Raises:
        ConfigError: who asked and who may.
    """
    if allowed is not None and driver not in allowed:
        names = ", ".join(allowed) or "nobody"
        raise ConfigError(
            f"refuses the driver {driver!r}: its policy allows {names}; add it to policy.drivers"
        )


def check_address(address: str) -> None:
    """Refuse what is no address.

    Raises:
        ConfigError: what one looks like.
    """
    if not ADDRESS.fullmatch(address):
        raise ConfigError(
            f"--driver takes HOST:PORT, for example bank.example.org:7443, got {address!r}"
        )


def tls_names(drivers: Mapping[str, str], given: Sequence[str]) -> dict[str, str]:
    """Driver's name -> the host in its certificate, of HOST or NAME=HOST.

    Raises:
        ConfigError: a driver that is not joined, or is not named.
    """
    hosts = {}
    for each in given:
        name, _, host = each.rpartition("=")
        if not name and len(drivers) == 1:
            (name,) = drivers
        if name not in drivers:
            raise ConfigError(
                f"--tls-name takes NAME=HOST, of a driver that is joined ({', '.join(drivers)}); "
                f"got {each!r}"
            )
        hosts[name] = host
    return hosts


def check_proxy(proxy: str | None) -> str | None:
    """The proxy as a ``Way`` names it.

    Raises:
        ConfigError: what one looks like.
    """
    if proxy is None or proxy == "none":
        return proxy and ""
    parts = urlsplit(proxy)
    if (
        parts.scheme != "http"
        or not parts.hostname
        or proxy.rstrip("/") != f"http://{parts.netloc}"
    ):
        shown = proxy.rpartition("@")[2]  # without a password
        raise ConfigError(
            f"--proxy takes http://HOST:PORT of a proxy, or none to go without, got {shown!r}; a "
            "name and password are better given in https_proxy of the environment"
        )
    return proxy
