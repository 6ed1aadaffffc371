"""Data of a member of CHFL: raw rows, encoded as all members agree when training starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from dovetail.alignment.columns import agreed_times, encoder_of
from dovetail.data import PartyData, Summary, Survival, Table, TableEncoder, summarise
from dovetail.data.by_column import BLOCK
from dovetail.data.survival import survival_of
from dovetail.errors import ConfigError, MessageError
from dovetail.methods.baselines import LocalRows
from dovetail.methods.local_data import MemberData
from dovetail.methods.outcome import goodness
from dovetail.models import ColumnsSpec, Model, OwnNetwork
from dovetail.models.decisions import Supervised
from dovetail.settings.privacy import QUORUM


@dataclass(frozen=True, eq=False)
class Prepared:
    """A member's rows as its network reads them.

    Attributes:
        x: (N, F) features of its training rows.
        validation: features and labels of its validation rows that have one; None: none.
        test: features of its test rows; None: it has none.
        common, unique: indices of those that all members have, and of its private ones.
        input: how raw columns become features.
    """

    x: Tensor
    validation: tuple[Tensor, Tensor] | None
    test: Tensor | None
    common: tuple[int, ...]
    unique: tuple[int, ...]
    input: TableEncoder

    def features(self, indices: Sequence[int]) -> Tensor:
        """(N, F) these features of its rows; no copy where they stand side by side."""
        if indices and tuple(indices) == tuple(range(indices[0], indices[-1] + 1)):
            return self.x[:, indices[0] : indices[-1] + 1]
        return self.x[:, list(indices)]


@dataclass(frozen=True, eq=False)
class ChflData(MemberData):
    """Data of a member.

    Attributes:
        common: columns that it offers as common; the others are private.
        validation: rows to choose hyper-parameters on.
        max_categories: of its private columns; see ``TableEncoder.fit``.
        secure: take part only where common towers are summed in secret.
        members: whom it sums with; None: whoever is certified.
        quorum: the least share of members whose answers open a sum that outlives lost ones.
        own: the network of its private tower; None: a perceptron.
    """

    common: Sequence[str]
    validation: PartyData | None = None
    max_categories: int = 100
    secure: bool = False
    members: tuple[str, ...] | None = None
    quorum: float = QUORUM
    own: OwnNetwork | None = None

    def __post_init__(self) -> None:
        absent = [name for name in self.common if name not in set(self.table.names)]
        if absent:
            raise ConfigError(f"party {self.name!r} has no column {absent[0]!r} to share")

    @property
    def table(self) -> Table:
        """Training rows of the member."""
        return self.train.tables[BLOCK]

    @property
    def rows(self) -> Tensor:
        """(N,) indices of its training rows that have a label."""
        return self.train.labelled_rows()

    @property
    def labels(self) -> Tensor:
        """(N,) labels of its training rows.

        Raises:
            ConfigError: no row has one.
        """
        if self.train.labels is None or not len(self.rows):
            raise ConfigError("it has no labelled training rows; leave it out")
        return self.train.labels

    def local_rows(self) -> LocalRows:
        """Rows of a party for a model alone: all its columns, training and validation rows."""
        parts = [self.train, *([] if self.validation is None else [self.validation])]
        tables = [part.tables[BLOCK] for part in parts]
        encoder = TableEncoder.fit(
            tables[0],
            tables[0].names,
            categorical=[name for name in self.categorical if name in tables[0].names],
            max_categories=self.max_categories,
            party=self.name,
        )
        x = torch.cat([encoder.transform(table, allow_unseen=True) for table in tables])
        labels = torch.cat([part.labels for part in parts if part.labels is not None])
        return self.alone(
            x, labels, lambda test: encoder.transform(test.tables[BLOCK], allow_unseen=True)
        )

    def summaries(self) -> dict[str, Summary]:
        """Column -> what others must know to encode it alike."""
        return summarise(self.table, self.common, categorical=self.categorical, party=self.name)

    def on_times(self, agreed: str) -> ChflData:
        """With the intervals of times that all agreed on, and its own baseline in them; as it is
        where its labels are no times to an event.

        Raises:
            MessageError: intervals that cannot be.
        """
        times = agreed_times(agreed) if isinstance(self.task, Survival) else ()
        return replace(self, task=survival_of(times, self.labels[self.rows])) if times else self

    def prepare(
        self, common: Sequence[str], agreed: str, device: torch.device | None = None
    ) -> Prepared:
        """Rows of the member, common columns first.

        Raises:
            MessageError: columns that it does not offer, or an encoding that is none of these.
        """
        if not set(common) <= set(self.common):
            raise MessageError(f"it does not offer {list(common)}")
        encoder, num_common = encoder_of(
            self.table,
            common,
            agreed,
            categorical=self.categorical,
            max_categories=self.max_categories,
            party=self.name,
        )

        def encoded(rows: PartyData | None) -> Tensor | None:
            if rows is None:
                return None
            return encoder.transform(rows.tables[BLOCK], allow_unseen=True)

        judged, chosen_on = encoded(self.validation), None
        if judged is not None and self.validation is not None:
            held = self.validation.labelled_rows()
            if self.validation.labels is not None and len(held):
                chosen_on = judged[held].to(device), self.validation.labels[held].to(device)
        return Prepared(
            encoder.transform(self.table, allow_unseen=True),  # a refusal would tell values
            chosen_on,
            encoded(self.test),
            tuple(range(num_common)),
            tuple(range(num_common, encoder.num_features)),
            encoder,
        )

    @torch.no_grad()
    def score(
        self, network: nn.Module, prepared: Prepared, loss: Supervised | None = None
    ) -> tuple[float, int, float]:
        """Accuracy on its validation rows, how many there are, and their mean loss.

        Of numbers 1 / (1 + mean squared error, in squares of their scale): 1 where all are right;
        of times to an event Harrell's C.
        The loss is 0 where none is given, and all three without rows.
        """
        if prepared.validation is None:
            return 0.0, 0, 0.0
        x, labels = prepared.validation
        outputs = torch.cat([network(part) for part in x.split(8192)])
        mean = 0.0 if loss is None else float(loss.of(outputs, labels))
        return goodness(self.task, outputs, labels), len(labels), mean

    def model(
        self, network: nn.Module, spec: ColumnsSpec, prepared: Prepared, about: Mapping[str, Any]
    ) -> Model:
        """Model that predicts alone from all of this party's features."""
        return Model(
            party=self.name,
            task=self.task,
            network=network,
            spec=spec,
            shapes={BLOCK: (prepared.x.shape[1],)},
            inputs={BLOCK: prepared.input},
            about=about,
        )
