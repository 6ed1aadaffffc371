"""A proposal as one party sees it: against its policy and table, and against the last one."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dovetail.methods.base import Site
from dovetail.network.credentials import Credentials
from dovetail.network.renewal import Certified
from dovetail.node.agreements import Agreements
from dovetail.node.proposal import Proposal, Signature, differences, sign
from dovetail.node.site_folder import agreements_of, certificates_of, site_folder_of


@dataclass(frozen=True)
class Reviewer:
    """A party that reads proposals and answers them.

    Attributes:
        site: the party.
        identity: what it signs with.
        agreements: the proposals that its site keeps.
    """

    site: Site
    identity: Certified
    agreements: Agreements

    @classmethod
    def of(
        cls, site: Site, *, certificates: Path | None = None, site_folder: Path | None = None
    ) -> Reviewer:
        """The party of a party file.

        Raises:
            ConfigError: no certificate that it could sign with.
        """
        identity = Certified(Credentials.load(certificates or certificates_of(site), site.name))
        return cls(
            site, identity, agreements_of(site, site_folder or site_folder_of(site.path), identity)
        )

    def last_before(self, proposal: Proposal) -> Proposal | None:
        """The newest other proposal of the same driver that is kept."""
        others = (each for each in self.agreements.known() if each.name != proposal.name)
        return next((each for each in others if each.driver == proposal.driver), None)

    def answer(
        self, proposal: Proposal, others: dict[str, Signature], *, refuse: str | None
    ) -> Signature:
        """Sign, or refuse for a reason; the answer is kept with the proposal.

        Args:
            others: party -> what is known of the others' answers.

        Raises:
            MessageError: one of them is no signature of its party.
            ConfigError: it cannot be written.
        """
        answer = sign(proposal, self.site.name, self.identity, refuse=refuse)
        self.agreements.keep(proposal, {**others, self.site.name: answer})
        return answer


def changes(before: Proposal | None, now: Proposal) -> list[tuple[str, Any, Any]]:
    """Differences from an earlier proposal: key, value then, value now."""
    if before is None:
        return []
    then, fresh = (_by_message(json.loads(each.text)) for each in (before, now))
    return [each for each in differences(then, fresh) if each[0] != "created"]


def _by_message(report: dict[str, Any]) -> dict[str, Any]:
    """A proposal whose messages are told apart by name: of thirty, those that differ are shown."""
    messages = {each["name"]: each for each in report["messages"]}
    if len(messages) < len(report["messages"]):  # two of one name are shown as they are
        return report
    return {**report, "messages": messages}
