"""Values of FedOptimus' data owners, by the models that need them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import torch

from dovetail.data import Classification, Task
from dovetail.errors import ConfigError
from dovetail.methods import selection
from dovetail.methods.facets.valued import (
    NO_TEST,
    Game,
    Valued,
    classes_of,
    columns_of,
    information,
    silent,
)
from dovetail.methods.fedoptimus.local_data import columns_in, labels_in
from dovetail.methods.outcome import Scores, mean_over
from dovetail.models.losses import loss_of, targets_of
from dovetail.models.metrics import all_scores
from dovetail.network import Party


class _FedOptimusGame(Game):
    """FedOptimus: data owners are the partners; nobody left predicts the classes' shares."""

    @property
    def partners(self) -> tuple[str, ...]:
        return tuple(columns_in(self.setup.party_data))

    @property
    def owners(self) -> tuple[str, ...]:
        return tuple(labels_in(self.setup.party_data))

    @property
    def task(self) -> Task:
        return next(iter(labels_in(self.setup.party_data).values())).task

    def train(self, coalition: Collection[str], seed: int, *, joint: bool = False) -> Scores:
        setup, settings = self.setup, self.setup.settings
        if not coalition:
            return mean_over(self._blind())
        columns = columns_in(setup.party_data)
        party_data = {
            name: local_data
            for name, local_data in setup.party_data.items()
            if name in coalition or name not in columns
        }
        chosen = settings.selection  # of few there is no choice
        few = 2 if chosen is None or not chosen.secure else selection.MASKED_OWNERS
        if chosen is not None and len(party_data) - len(self.owners) < few:
            settings = settings.model_copy(update={"selection": None})
        setup = replace(setup, party_data=party_data, settings=settings, last_only=True)
        scores = setup.train(setup.method, seed, silent).scores
        if setup.method not in scores:
            raise ConfigError(NO_TEST)
        return mean_over(scores[setup.method])

    def _blind(self) -> dict[str, Scores]:
        """Label owner -> scores of predicting every row alike, from its training labels."""
        scores: dict[str, Scores] = {}
        for name, labels_data in labels_in(self.setup.party_data).items():
            if "test" not in labels_data.scored:
                raise ConfigError(NO_TEST)
            labels, task = labels_data.labels_S[labels_data.trained], labels_data.task
            if isinstance(task, Classification):
                counts = torch.bincount(labels, minlength=task.num_outputs)
                output = ((counts + 1) / (counts + 1).sum()).log()  # no class is impossible
            else:
                output = loss_of(task).start(targets_of(task, labels).mean(dim=0))
            tested = labels_data.scored["test"]
            scores[name] = all_scores(task, output.float().expand(len(tested), -1), tested)
        return scores

    def information(self, partners: Collection[str], seed: int) -> dict[str, float]:
        """On the rows that each label owner trains on, weighted by their number."""
        parties: dict[str, Party] = {}
        columns = columns_in(self.setup.party_data)
        for name in partners:
            parties[name] = selection.DataOwner(name, columns_of(columns[name].shared))
        for name, labels_data in labels_in(self.setup.party_data).items():
            labels = classes_of(labels_data.task, labels_data.labels_S[labels_data.trained])
            parties[name] = selection.LabelOwner(name, labels_data.trained, labels)
        return information(parties, list(partners), list(self.owners), seed)


class OwnersValued(Valued):
    """Data owners, who are there at each prediction."""

    variants = ("fedoptimus",)
    game = _FedOptimusGame
