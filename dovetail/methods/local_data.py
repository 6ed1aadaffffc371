"""Data of methods whose parties all have labels, and whose coordinator has no data.

``LocalData`` is what a party has, encoded already, for a method that says no more of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from dovetail import data as dd
from dovetail.errors import ConfigError, DataError
from dovetail.federated import Local
from dovetail.files import did_you_mean
from dovetail.methods.base import Run, Site
from dovetail.methods.baselines import LocalRows
from dovetail.methods.labels import check_labels, draw_share
from dovetail.methods.limits import names_samples
from dovetail.methods.released import released_columns
from dovetail.models import Model, NetworkSpec
from dovetail.network import Message
from dovetail.settings.privacy import Once, PrivateSteps

H = TypeVar("H")

#: Who drives, in ledgers and policies.
DRIVER = "coordinator"


@dataclass(frozen=True, eq=False)
class Holdings(dd.Partitioned, Generic[H]):
    """Party files of one process: each encodes its own rows when training starts.

    Attributes:
        holdings: party -> its rows; none of those that are elsewhere.
    """

    holdings: Mapping[str, H]

    @classmethod
    def nobody(cls, task: dd.Task = dd.Classification(())) -> Holdings[H]:  # noqa: B008 - a value
        """Holdings of a coordinator whose parties are elsewhere: no row."""
        return cls(dd.Federation([]), None, task, {}, "", {})


# --- What a party has ----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class LocalData:
    """Data of a party: labelled rows, as a network reads them.

    Attributes:
        name: the party's.
        x_NF: its features.
        labels_N: class indices, or values.
        features: (F,) their names.
        common: how many of them, the first, all parties have; of a party file all.
        task: what the labels say.
        label: the label's name.
        input: how raw columns become features.
        block: what the input is called in a model.
        test: features and labels of rows that only test; None: it has none.
        settings: the party's section of its file; None in simulation.
    """

    name: str
    x_NF: Tensor
    labels_N: Tensor
    features: tuple[str, ...]
    common: int
    task: dd.Task
    label: str
    input: dd.Input
    block: str
    test: tuple[Tensor, Tensor] | None = None
    settings: Any = None

    def model(self, network: nn.Module, spec: NetworkSpec) -> Model:
        """A network of (B, F) features as the party uses it alone, from raw columns.

        Args:
            network: gives (B, outputs).
            spec: what such a network is built from.
        """
        shape = tuple(self.x_NF.shape[1:])
        about = {"label": self.label}
        inputs = {self.block: self.input}
        return Model(self.name, self.task, network, spec, {self.block: shape}, inputs, about)

    def tested(self, model: Model) -> tuple[Tensor, Tensor] | None:
        """Outputs of a model for the rows that only test, and their labels; None without any."""
        if self.test is None or not len(self.test[1]):
            return None
        x_NF, labels_N = self.test
        return model.outputs(x_NF), labels_N

    def tested_rows(self) -> dict[str, Tensor]:
        """Block -> features of the rows that only test."""
        return {} if self.test is None else {self.block: self.test[0]}

    def local_rows(self) -> LocalRows:
        """Rows for a model alone."""
        return LocalRows(self.task, self.x_NF, self.labels_N, self.test)


@dataclass(frozen=True, eq=False)
class MemberData:
    """Data of a party whose raw rows are encoded as all agree when training starts.

    Attributes:
        train: training rows; those without a label are left out.
        task: what the labels say; the same at all parties.
        test: rows to score on.
        categorical: names of number columns whose values are names, such as postcodes.
        private: how what leaves it is trained, whatever the run says; None: as that says.
    """

    train: dd.PartyData
    task: dd.Task
    test: dd.PartyData | None = field(default=None, kw_only=True)
    categorical: Sequence[str] = field(default=(), kw_only=True)
    private: PrivateSteps | None = field(default=None, kw_only=True)

    @property
    def name(self) -> str:
        return self.train.name

    @property
    def is_tested(self) -> bool:
        """Whether it has test rows with labels."""
        return self.test is not None and self.test.labels is not None and self.test.num_rows > 0

    def alone(
        self, x: Tensor, labels: Tensor, encoded: Callable[[dd.PartyData], Tensor]
    ) -> LocalRows:
        """Rows for a model alone: these, and its test rows, encoded so."""
        if self.test is None or self.test.labels is None or not self.test.num_rows:
            return LocalRows(self.task, x, labels)
        return LocalRows(self.task, x, labels, (encoded(self.test), self.test.labels))

    @property
    def label(self) -> str:
        """Name of the label, if it is known."""
        return self.train.label or ""


def data_of_partition(data: dd.Partitioned) -> dict[str, LocalData]:
    """Party -> what a partition deals to it.

    Raises:
        ConfigError: a party without labels, or with several blocks.
    """
    encoded = data.encoded() if isinstance(data, dd.CommonUnique) else data
    return {name: _data_of_partition(encoded, name) for name in encoded.train.parties}


def _data_of_partition(data: dd.Partitioned, name: str) -> LocalData:
    party = data.train[name]
    if party.labels is None or len(party.blocks) != 1:
        raise ConfigError(
            f"party {name!r} has {'no labels' if party.labels is None else 'several blocks'}; a "
            "method of one's own is given one block and labels at every party"
        )
    ((block, x),) = party.blocks.items()
    rows = party.labelled_rows()
    encoder = data.inputs[name]
    assert isinstance(encoder, dd.TableEncoder)
    test = None if data.test is None else data.test[name]
    common = len(data.common_features) if isinstance(data, dd.CommonUnique) else x.shape[1]
    return LocalData(
        name,
        x[rows],
        party.labels[rows],
        tuple(encoder.feature_names),
        common,
        data.task,
        data.label,
        encoder,
        block,
        None if test is None or test.labels is None else (test.joined(), test.labels),
    )


def as_released(local_data: Any, local: Local, accepts: Collection[type[Message]]) -> Any:
    """Data of a party as its answers may know them.

    A driver that names samples may ask what it likes. So at a site a method that answers about
    samples has what the columns released once, unless ``exact`` in the method's section of the
    party file says otherwise. Data of a method's own type are given as they are.
    """
    if not isinstance(local_data, LocalData) or local.lasting is None:
        return local_data
    if getattr(local_data.settings, "exact", False) or not any(map(names_samples, accepts)):
        return local_data
    x_NF, release = released_columns(local_data.x_NF, Once(), local_data.name, local.lasting)
    local.released_once("columns", "the driver", release.report())
    return replace(local_data, x_NF=x_NF)


def data_of_site(site: Site, settings: Any) -> LocalData:
    """Data from a party file's table: its own encoding, and a share of its rows that test.

    Raises:
        ConfigError: no labels, or no table.
        DataError: no labelled row.
    """
    check_labels(site, "the method")
    table = site.table
    if not isinstance(table.x, dd.Table):
        raise ConfigError(f"party {site.name!r} holds images; this method learns from tables")
    if (kind := site.party.task) not in ("classification", "regression"):
        raise ConfigError(
            f"party {site.name!r}: a label of {kind} is for the methods that Dovetail has; give a "
            'class or a number (task = "regression") as label'
        )
    task = table.fit_task(kind=kind)
    labels, rows = table.encoded_labels(task), table.labelled_rows()
    if not len(rows):
        raise DataError(f"party {site.name!r} has no labelled row; leave it out")
    share = getattr(settings, "test_share", 0.0)
    chosen, tested = draw_share(site, rows, share, "test_share")
    encoder = site.fit_input(table.take(chosen))
    assert isinstance(encoder, dd.TableEncoder)

    def part(at: np.ndarray) -> tuple[Tensor, Tensor]:
        assert isinstance(table.x, dd.Table)
        x = encoder.transform(table.x.take(at), allow_unseen=True)
        return x, labels[torch.from_numpy(at)]

    x_NF, labels_N = part(chosen)
    names = tuple(encoder.feature_names)
    test = part(tested) if len(tested) else None
    return LocalData(
        site.name,
        x_NF,
        labels_N,
        names,
        len(names),
        task,
        str(table.label),
        encoder,
        "columns",
        test,
        settings,
    )


def pooled(party_data: Mapping[str, LocalData]) -> dict[str, LocalData]:
    """Data of one party with everybody's rows and the features that all have; for a baseline."""
    first = next(iter(party_data.values()))
    x_NF = torch.cat(
        [local_data.x_NF[:, : local_data.common] for local_data in party_data.values()]
    )
    labels_N = torch.cat([local_data.labels_N for local_data in party_data.values()])
    test = None if first.test is None else (first.test[0][:, : first.common], first.test[1])
    return {
        "pooled": replace(
            first,
            name="pooled",
            x_NF=x_NF,
            labels_N=labels_N,
            features=first.features[: first.common],
            test=test,
            settings=None,
        )
    }


# --- What is refused -----------------------------------------------------------------------------


def check_variants(
    run: Run,
    section: str,
    settings: Mapping[str, Mapping[str, Any]],
    variants: Collection[str],
    make: Callable[[str, Mapping[str, Any]], object],
    *,
    where: str,
) -> None:
    """Refuse a variant's own settings for a variant that is none, or that cannot be.

    Args:
        section: the method's section of the run file.
        settings: variant -> its settings, as the file has them.
        variants: all there are.
        make: the settings of a variant, from its own ones; raises pydantic's error.

    Raises:
        ConfigError: naming the file and the section.
    """
    for variant in settings:
        if variant not in variants:
            raise ConfigError(
                f"{where}: [{section}.variants.{variant}] is no variant; there are "
                f"{', '.join(variants)}"
                f"{did_you_mean(variant, variants)}"
            )
    for variant in dict.fromkeys((run.method, *run.baselines, *settings)):
        if variant not in variants:
            continue  # a model alone, which has no settings of the method
        check_settings(
            make,
            variant,
            settings.get(variant, {}),
            where=f"{where}, [{section}.variants.{variant}]",
        )


def check_settings(
    make: Callable[[str, Mapping[str, Any]], object],
    variant: str,
    settings: Mapping[str, Any],
    *,
    where: str,
) -> None:
    """Refuse settings of a variant that cannot be.

    Raises:
        ConfigError: the first of them, in one sentence.
    """
    try:
        make(variant, settings)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"]) or "settings"
        raise ConfigError(
            f"{where}: {name}: {first['msg'].removeprefix('Value error, ')}, "
            f"got {first.get('input')!r}"
        ) from None


def check_nobody_is_active(run: Run, section: str, *, where: str) -> None:
    """Refuse keys of the run file that only an active party gives sense to.

    Raises:
        ConfigError: naming the file.
    """
    if run.active is not None or run.test is not None:
        raise ConfigError(
            f"{where}: active and test are not for {run.method!r}: nobody is the active party, and "
            f"test_share stands below [{section}] in each party's own file"
        )
