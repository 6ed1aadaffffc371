"""Remark 2: a new party takes its part of a model that others have trained."""

from __future__ import annotations

import numpy as np

from dovetail.errors import PartyError
from dovetail.federated import Federation
from dovetail.methods.hyfem.agreement import Holding
from dovetail.methods.hyfem.hyfem import Coordinator, Finish, Finished


class InvitingCoordinator(Coordinator):
    """A server that new parties come to; one takes those neurons that most parties have."""

    def welcome(self, party: str, holding: Holding) -> None:
        """A new party with blocks the server knows counts from the next round on.

        Raises:
            PartyError: what it holds does not fit the others.
        """
        widths, server = self.server.widths, self.server
        if any(width > most for width, most in zip(holding.widths, widths, strict=False)):
            raise PartyError(
                party, f"its hidden widths {holding.widths} exceed the server's {widths}"
            )
        self.agreed.note(party, holding)
        chosen = []
        for i, width in enumerate(holding.widths):
            held = np.concatenate([assignment[i] for assignment in server.assignments.values()])
            popularity = np.bincount(held, minlength=widths[i])
            chosen.append(np.sort(np.argsort(-popularity, kind="stable")[:width]))
        server.assignments[party] = tuple(chosen)
        self.known[party] = self.slice(party)

    def invite(self, federation: Federation, party: str) -> None:
        """A new party gets its model at once, and takes part from the next round on.

        Raises:
            PartyError: it cannot begin, or holds what does not fit the others.
        """
        self.welcome(party, federation.ask({party: self.hello()}, Holding).or_raise()[party])
        self.ask_to_begin(federation, [party]).or_raise()
        asked, timeout_s = {party: Finish(*self.known[party])}, self.config.timeout_s
        federation.ask(asked, Finished, timeout_s=timeout_s).or_raise()
