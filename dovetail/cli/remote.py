"""Options of a command line about partners on other machines."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dovetail.errors import ConfigError
from dovetail.methods.validation import validate
from dovetail.node.engines import ElsewhereSection, StreamSection, elsewhere_section
from dovetail.runs.runfile import RunFile


@dataclass(frozen=True)
class Elsewhere:
    """Options about partners on other machines."""

    partners: str | None = None
    listen: str | None = None
    certificates: Path | None = None
    wait_s: float | None = None
    timeout_s: float | None = None
    mailbox: str | None = None
    proxy_ca: Path | None = None

    def reached(self, *, where: str) -> ElsewhereSection | None:
        """How partners are reached, by connections or by letter; None if all parties are here.

        Raises:
            ConfigError: half of what it takes, or both.
        """
        if self.mailbox is None:
            return self.listening(where=where)
        if self.partners is None or self.listen is not None:
            raise ConfigError("--mailbox PLACE goes with --partners A,B, and without --listen")
        ca = None if self.proxy_ca is None else str(self.proxy_ca)
        values = {"kind": "mailbox", "place": self.mailbox, "proxy_ca": ca, **self._values()}
        return validate(elsewhere_section("mailbox"), values, where=where)

    def listening(self, *, where: str) -> StreamSection | None:
        """Where to listen and for whom; None if all parties are here.

        Raises:
            ConfigError: half of what it takes.
        """
        options = self._said()
        if not options:
            return None
        if self.partners is None or self.listen is None:
            raise ConfigError(
                f"{options[0]} is for partners on other machines: give --partners and --listen, "
                "for example --partners shop --listen 0.0.0.0:7443"
            )
        values = {"kind": "stream", "listen": self.listen, **self._values()}
        return validate(StreamSection, values, where=where)

    def _values(self) -> dict[str, object]:
        """Values that both kinds of engine take."""
        assert self.partners is not None
        return {
            "partners": tuple(name.strip() for name in self.partners.split(",")),
            "certificates": None if self.certificates is None else str(self.certificates),
            "wait_s": self.wait_s,
            **({} if self.timeout_s is None else {"timeout_s": self.timeout_s}),
        }

    def aligning(
        self, run: RunFile | None, paths: tuple[Path, ...], initiator: str | None
    ) -> ElsewhereSection | None:
        """Where partners of an alignment are waited for; None if all parties are here.

        Raises:
            ConfigError: half of what it takes, or what does not go with it.
        """
        options = self._said()
        if run is not None and options:
            raise ConfigError(
                f"a run file says in [engine] who is elsewhere; leave {options[0]} out"
            )
        section: ElsewhereSection | None = self.listening(where="dovetail align")
        if run is not None and isinstance(run.engine, ElsewhereSection) and run.engine.joined:
            section = run.engine
        if section is not None and len(paths) > 1:
            raise ConfigError("name one party file, the driver's own; --partners names the others")
        if section is not None and initiator is not None:
            raise ConfigError("the driver starts; leave --initiator out")
        return section

    def _said(self) -> list[str]:
        """Which options were given."""
        given = {
            "--partners": self.partners,
            "--listen": self.listen,
            "--certificates": self.certificates,
            "--wait": self.wait_s,
            "--timeout": self.timeout_s,
            "--proxy-ca": self.proxy_ca,
        }
        return [name for name, value in given.items() if value is not None]
