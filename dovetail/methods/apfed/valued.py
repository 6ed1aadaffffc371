"""Values of APFed's partners: by the solo model, and by the joint one."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import torch

from dovetail.data import Task
from dovetail.errors import ConfigError
from dovetail.methods import selection
from dovetail.methods.apfed.local_data import LabelOwnerData
from dovetail.methods.apfed.variants import label_owner_data, partner_data_of
from dovetail.methods.facets.valued import (
    JOINT,
    NO_TEST,
    Game,
    Valued,
    classes_of,
    columns_of,
    information,
    silent,
)
from dovetail.methods.outcome import Scores, numbers
from dovetail.methods.training import Training
from dovetail.network import Party

#: The joint model: it needs every partner at each prediction.
CLASSIC = "tvfl"

#: Variants whose runs have a joint model of their own.
WITH_JOINT = ("apfed", "apfed-d")


class _ApfedGame(Game):
    """APFed or classic vertical learning: nobody left is the active party alone."""

    @property
    def partners(self) -> tuple[str, ...]:
        return tuple(partner_data_of(self.setup))

    @property
    def owners(self) -> tuple[str, ...]:
        return (self._label_owner_data.name,)

    @property
    def task(self) -> Task:
        return self._label_owner_data.task

    @property
    def _label_owner_data(self) -> LabelOwnerData:
        return label_owner_data(self.setup)

    @property
    def leaves(self) -> bool:
        return self.setup.method != CLASSIC

    def train(self, coalition: Collection[str], seed: int, *, joint: bool = False) -> Scores:
        setup = self._with(coalition)
        if self._label_owner_data.test is None:
            raise ConfigError(NO_TEST)
        nobody = "best-alone" if setup.method in WITH_JOINT else "alone"
        variant, name = setup.method if coalition else nobody, self._label_owner_data.name
        scores = setup.train(variant, seed, silent).scores
        alone_scores = dict(numbers(scores[variant][name]))
        if not joint:
            return alone_scores
        together = alone_scores
        if coalition:
            if setup.method in WITH_JOINT:
                found = scores.get("joint", scores[variant])
            else:
                found = setup.train(CLASSIC, seed, silent).scores[CLASSIC]
            together = dict(numbers(found[name]))
        return alone_scores | {f"{JOINT}{name}": value for name, value in together.items()}

    def _with(self, coalition: Collection[str]) -> Training:
        """The run with these partners only."""
        name = self._label_owner_data.name
        party_data = {
            each: local_data
            for each, local_data in self.setup.party_data.items()
            if each in coalition
        }
        party_data[name] = self._label_owner_data.among(coalition)
        return replace(self.setup, party_data=party_data, last_only=True)

    def information(self, partners: Collection[str], seed: int) -> dict[str, float]:
        """Each on the labelled rows that it shares with the active party."""
        local_data, party_data = self._label_owner_data, partner_data_of(self.setup)
        train, alignment = local_data.train, local_data.alignment
        assert train.labels is not None
        labelled = torch.zeros(train.num_rows, dtype=torch.bool)
        labelled[train.labelled_rows()] = True
        values: dict[str, float] = {}
        for name in partners:
            samples = alignment.shared(local_data.name, name)
            rows = alignment.rows[local_data.name][samples]
            samples, rows = samples[labelled[rows]], rows[labelled[rows]]
            # In the order of the active party's rows: samples are numbered at random.
            order = rows.argsort()
            samples, rows = samples[order], rows[order]
            shared = party_data[name].shared
            assert shared is not None
            labels = classes_of(local_data.task, train.labels[rows])
            parties: dict[str, Party] = {
                name: selection.DataOwner(name, columns_of({local_data.name: shared})),
                local_data.name: selection.LabelOwner(local_data.name, samples, labels),
            }
            values |= information(parties, [name], [local_data.name], seed)
        return values


class ApfedValued(Valued):
    """Methods of an active party with partners."""

    variants = ("apfed", "apfed-r", "apfed-c", "apfed-mixed", "apfed-d", CLASSIC)
    game = _ApfedGame

    def joint(self, method: str) -> str | None:
        return None if method in WITH_JOINT else CLASSIC
