"""A label owner that predicts with data owners on other machines (FedOptimus).

It drives, they join it: ``dovetail join clinic.toml --driver HOST:PORT --name north``. Which rows
are meant is agreed on by private set intersection, for this prediction only; then each data owner
embeds those that it has, with the network that it kept of the run that the label owner's model is
of.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from dovetail import alignment as psi
from dovetail.alignment.stored import predicting_run
from dovetail.errors import ModelError, NetworkError, PartyError
from dovetail.methods.base import SILENT, Talk
from dovetail.methods.fedoptimus import predicting
from dovetail.methods.party import Site
from dovetail.models import Model
from dovetail.models.owners import TopSpec
from dovetail.site.driver import Listener, check_partners, listens
from dovetail.site.engines import StreamSection
from dovetail.site.home import certificates_of, home_of

#: Seconds that data owners are waited for, unless somebody says.
WAIT_S = 60.0


@dataclass(frozen=True, eq=False)
class Together:
    """Mean embeddings of rows, and whose they are.

    Attributes:
        mean_NE: (N, E), zeros where nobody answered.
        answered: data owner -> (N,) bool, whether its embedding is in the mean.
        missed: data owner -> why it is in none, or not in all that it could be.
    """

    mean_NE: Tensor
    answered: Mapping[str, Tensor]
    missed: Mapping[str, str]


class Asker(Listener):
    """A label owner that drives for one prediction.

    Args:
        site: its party file.
        model: its top, of a run over a network.
        section: the data owners that are asked, and how long they are waited for.
        talk: told who is waited for.

    Raises:
        ModelError: the model is of somebody else, or of another kind of run.
        ConfigError: its own name among the partners, or certificates that will not do.
    """

    def __init__(
        self, site: Site, model: Model, section: StreamSection, *, talk: Talk = SILENT
    ) -> None:
        trained = model.about.get("run")
        if not isinstance(model.spec, TopSpec) or not isinstance(trained, str):
            raise ModelError(
                f"the model of party {model.party!r} is no label owner's of a run with data owners "
                "on other machines; name its folder at home, for example north.site/models/RUN, "
                "or leave --party and --partners out"
            )
        if model.party != site.name:
            raise ModelError(
                f"the model is of label owner {model.party!r}, and {site.path} is of "
                f"{site.name!r}; each predicts with its own"
            )
        check_partners(site, section)
        if section.wait_s is None:
            section = section.model_copy(update={"wait_s": WAIT_S})
        certificates = None if section.certificates else certificates_of(site)
        reach = listens(section, site.name, certificates)
        super().__init__(site.name, home_of(site.path), section, reach, talk=talk)
        self._site = site
        self._trained = trained
        self._embedding = model.spec.embedding

    def ask(self, ids: np.ndarray) -> Together:
        """What the data owners that come and answer say of the samples with these ids.

        Raises:
            AlignmentError: ids that cannot be compared.
            NetworkError: no data owner came, or none answered.
        """
        here, missed = self._come()
        run = predicting_run(secrets.token_hex(8))
        while here:
            engine = self._engine(run, here)
            try:
                with self._talk.points("aligning") as bar:
                    aligned = psi.align(
                        engine,
                        ids,
                        lower=self._site.party.lowercase_ids,
                        progress=bar.points,
                    ).alignment.rows
            except PartyError as failure:  # the others begin again, without it
                missed[failure.party] = failure.cause
                here = tuple(name for name in here if name != failure.party)
                continue
            held = {name: aligned[name] >= 0 for name in here}
            said = predicting.recall(engine, self._trained, self._embedding, held)
            missed |= said.missed
            missed |= {name: "has none of these samples" for name in here if not held[name].any()}
            sample_N = aligned[self.name].argsort()  # by row
            return Together(
                said.mean_NE[sample_N],
                {name: answered[sample_N] for name, answered in said.answered.items()},
                missed,
            )
        raise NetworkError(f"no data owner answers: {told(missed)}")

    def _come(self) -> tuple[tuple[str, ...], dict[str, str]]:
        """Who came in time, and who did not."""
        try:
            self.wait()
        except NetworkError:
            here = self._lines.connected
            if not here:
                raise
            why = f"did not come within {self._section.wait_s:g} s"
            return here, {name: why for name in self.partners if name not in here}
        return self.partners, {}


def told(missed: Mapping[str, str]) -> str:
    """Who is missing, and why."""
    return "; ".join(f"{name} ({why})" for name, why in missed.items())
