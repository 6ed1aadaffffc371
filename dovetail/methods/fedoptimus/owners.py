"""Data owners and label owners with files of their own: their rows, and their side of a run.

At the site of each, for each driver:

    aligned/DRIVER/LABELOWNER.PART.safetensors   its row of each of that label owner's samples

A label owner's labelled rows are split into two parts by its own file, before anything is
aligned: "train" and "test". The files of one alignment have its name; a run that trains on it has
an id that begins with that name.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field, WrapSerializer, WrapValidator
from torch import Tensor

from dovetail import data as dd
from dovetail.alignment import Keys, Workers, align_by_keys, psi, relay, with_rows_of
from dovetail.alignment.stored import StoredRows, alignment_of, digest, load_rows, save_rows
from dovetail.errors import (
    AlignmentError,
    ConfigError,
    MessageError,
    PartyError,
)
from dovetail.methods import fedoptimus
from dovetail.methods.base import SILENT, Asked, CarryingDriver, Maker, Progress, SavesModel
from dovetail.methods.baselines import LocalRows
from dovetail.methods.fedoptimus import predicting
from dovetail.methods.fedoptimus.masked import SummingSettings
from dovetail.methods.fedoptimus.variant_settings import (
    Columns,
    Labels,
    OwnerData,
    Part,
    chooser_of,
    described_top,
    side_of,
)
from dovetail.methods.inference import kept_at
from dovetail.methods.labels import MORE_KINDS, LabelScale, draw_share, local_task
from dovetail.methods.local_data import Holdings
from dovetail.methods.outcome import about_decision
from dovetail.methods.party import Site
from dovetail.methods.section import Section, own_installed, own_network, own_written
from dovetail.models import OwnNetwork
from dovetail.models.owners import (
    Bottom,
    BottomSpec,
    ColumnsMlp,
    EncodedMlp,
    OwnBottom,
    OwnerResNet,
    StripCnn,
)
from dovetail.network import InProcess
from dovetail.network.certificates import certificate_name, make_folder
from dovetail.network.checkpoint import StatefulParty
from dovetail.network.retry import write_text
from dovetail.privacy import Release
from dovetail.privacy.dropout import QUORUM

_log = logging.getLogger(__name__)

#: A label owner's rows.
TRAIN = "train"
TEST: Part = "test"


class StripCnnSection(Section):
    """One convolution and two fully connected layers."""

    kind: Literal["strip-cnn"]  # which network
    channels: int = 16  # of the convolution
    kernel: int = 3  # its width
    stride: tuple[int, int] = (1, 1)  # of the convolution
    hidden: int = 64  # width of the first fully connected layer


class ResNet18Section(Section):
    """A ResNet-18 of one's own."""

    kind: Literal["resnet-18"]  # which network
    width: int = 64  # channels of the first stage


BottomField = (
    Literal["strip-cnn", "resnet-18"] | tuple[int, ...] | StripCnnSection | ResNet18Section
)


#: What a selection of data owners asks, in an error's words.
SELECTED = "what [fedoptimus.selection] asks for"


#: Also a network that Python gives.
AnyBottom = Annotated[BottomField, WrapValidator(own_network), WrapSerializer(own_written)]
#: Also one of an installed package, in a party's own file.
PartyBottom = Annotated[BottomField, WrapValidator(own_installed), WrapSerializer(own_written)]


def bottom(field: BottomField | OwnNetwork | None, shape: tuple[int, ...]) -> BottomSpec:
    """The network that a file names: a kind, its settings, or hidden widths; None: by the rows.

    Raises:
        ConfigError: settings that cannot be.
    """
    match field:
        case None:
            return StripCnn() if len(shape) == 3 else EncodedMlp()
        case OwnNetwork():
            return OwnBottom(field)
        case "strip-cnn":
            return StripCnn()
        case "resnet-18":
            return OwnerResNet()
        case StripCnnSection():
            return StripCnn(field.channels, field.kernel, field.stride, field.hidden)
        case ResNet18Section():
            return OwnerResNet(field.width)
    assert isinstance(field, tuple)
    return ColumnsMlp(field)


class OwnerSection(Section):
    """[fedoptimus] of a party file.

    A party whose file names a label is a label owner, any other a data owner.
    """

    # of a data owner: its network, also an import path; None: by what its rows are
    bottom: PartyBottom | None = None
    classes: tuple[str | int, ...] = ()  # of a label owner: of all, where it has not all of them
    label_scale: LabelScale | None = (
        None  # of a label owner's numbers: mean and scale of all's, of several by name
    )
    test_share: float = Field(default=0.2, ge=0, lt=1)  # of a label owner: of its labelled rows
    embeddings: Release | None = None  # how a data owner's leave; None: as the run says
    gradients: Release | None = None  # how a label owner's leave; None: as the run says
    secure: bool = False  # of a data owner: take part only where embeddings are summed in secret
    members: tuple[str, ...] | None = None  # whom it sums with; None: anybody who is certified
    quorum: float = Field(default=QUORUM, ge=0.5, lt=1)  # sums open if more data owners answer


@dataclass(frozen=True, eq=False)
class OwnerHoldings(Holdings[OwnerData]):
    """Party files of one process, or the names of those that are elsewhere.

    Attributes:
        elsewhere: names of data owners and of label owners that are not here.
    """

    elsewhere: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())


def is_label_owner(site: Site) -> bool:
    """A party whose file names a label."""
    return site.table.labels is not None


def dealt(site: Site) -> dict[str, np.ndarray]:
    """Part -> a label owner's rows that train, and those that test, if any.

    Raises:
        ConfigError: no labelled row.
        DataError: rows that cannot be split.
    """
    labelled = site.table.labelled_rows()
    if not len(labelled):
        raise ConfigError(f"party {site.name!r} has no labelled row; leave it out")
    train, test = draw_share(
        site, labelled, site.settings("fedoptimus", OwnerSection).test_share, "test_share"
    )
    return {TRAIN: train, TEST: test} if len(test) else {TRAIN: train}


def labels_of(site: Site, task: dd.Task, rows: Mapping[str, Tensor]) -> Labels:
    """A label owner's labels in the orders that it shares with the data owners.

    It trains on samples in the order of its own rows: so what is drawn does not depend on how an
    alignment numbered them.

    Args:
        rows: part -> its row of each sample.

    Raises:
        DataError: a class that is not among those of all.
    """
    table = site.table
    labels = table.encoded_labels(task)
    scored = {TEST: labels[rows[TEST]]} if TEST in rows else {}
    alone = None
    if TEST in rows and table.blocks:
        parts = {part: table.take(rows[part].numpy()) for part in (TRAIN, TEST)}
        encoder = site.fit_input(parts[TRAIN])
        x = {part: each.encoded(encoder).joined() for part, each in parts.items()}
        alone = LocalRows(task, x[TRAIN], labels[rows[TRAIN]], (x[TEST], scored[TEST]))
    samples, labels_here = rows[TRAIN].argsort(), labels[rows[TRAIN]]
    release = site.settings("fedoptimus", OwnerSection).gradients
    return Labels(
        site.name,
        task,
        str(table.label),
        labels_here,
        samples,
        scored,
        alone,
        release,
        budget=site.policy.section.privacy,
        max_scored=site.policy.section.max_uses,
    )


def columns_of(site: Site, rows: Mapping[str, Mapping[str, Tensor]]) -> Columns:
    """A data owner's rows, encoded by all of them.

    Args:
        rows: label owner -> part -> its row of each sample.
    """
    fitted = site.fit_input()
    x = site.table.encoded(fitted).joined()

    def of(part: str) -> dict[str, dd.SharedRows]:
        return {
            owner: dd.SharedRows(site.name, x, parts[part])
            for owner, parts in rows.items()
            if part in parts
        }

    tested = of(TEST)
    section = site.settings("fedoptimus", OwnerSection)
    spec = bottom(section.bottom, tuple(x.shape[1:]))
    scored = {TEST: tested} if tested else {}
    budget = site.policy.section.privacy
    summing = SummingSettings(section.secure, section.members, section.quorum)
    return Columns(site.name, of(TRAIN), spec, scored, fitted, section.embeddings, budget, summing)


def check_counted(local_data: OwnerData, what: str) -> None:
    """Refuse what a party's budget of epsilon does not count.

    Raises:
        ConfigError: its policy sets one.
    """
    if local_data.budget is not None:
        raise ConfigError(
            f"party {local_data.name!r}: its policy.privacy sets a budget of epsilon = "
            f"{local_data.budget.epsilon:g}, and {what} leaves without noise; leave that out"
        )


# --- In one process ------------------------------------------------------------------------------


def align_owners(
    labellers: Mapping[str, Site], holders: Mapping[str, Site], *, talk: Progress = SILENT
) -> dict[str, dict[str, dict[str, Tensor]]]:
    """Label owner -> part -> party -> its row of each sample that all data owners have.

    By private set intersection of each label owner with each data owner.

    Raises:
        AlignmentError: a data owner that has none of a label owner's samples.
    """
    rows_of: dict[str, dict[str, dict[str, Tensor]]] = {}
    with Workers(1) as workers:
        responders = {name: site.responder(workers) for name, site in holders.items()}
        for name, site in labellers.items():
            rows_of[name] = {}
            parts = dealt(site)
            for part, ids in site.compared(parts).items():
                rows = parts[part]
                with talk.points(f"aligning {name}, {part}") as bar:
                    engine = InProcess(responders, driver=name)
                    if isinstance(ids, Keys):
                        aligned = align_by_keys(engine, ids, workers=workers, progress=bar.points)
                    else:
                        aligned = psi.align(
                            engine,
                            ids,
                            lower=site.party.lowercase_ids,
                            workers=workers,
                            progress=bar.points,
                        )
                whole = with_rows_of(aligned, responders.values())
                common_K = whole.shared(*holders)
                check_overlap(name, part, len(common_K), aligned.overlap, len(rows))
                rows_of[name][part] = {
                    holder: whole.rows[holder][common_K] for holder in holders
                } | {name: torch.from_numpy(rows)[whole.rows[name][common_K]]}
    return rows_of


def check_overlap(
    owner: str, part: str, num_common: int, shared: Mapping[str, int], num_rows: int
) -> None:
    """Refuse a label owner without a training sample that all data owners have.

    Raises:
        AlignmentError: naming a data owner without any of them, if there is one.
    """
    if num_common or part != TRAIN:
        return
    for holder, num_shared in shared.items():
        if not num_shared:
            raise AlignmentError(
                f"data owner {holder!r} has none of the {num_rows} training samples of label "
                f"owner {owner!r}; check that both use the same id column, or leave one out"
            )
    raise AlignmentError(
        f"no training sample of label owner {owner!r} is at all data owners (they have "
        f"{', '.join(f'{name}: {num:,}' for name, num in shared.items())} of its {num_rows}); "
        "leave out who has the fewest"
    )


# --- At its site ----------------------------------------------------------------------------------


def members_of(site: Site, allowed: Collection[str]) -> dict[str, Maker]:
    """Algorithm -> what makes an owner's side of its runs; mistakes in its table are told now."""
    live = _Live(site)
    makers: dict[str, Maker] = {"fedoptimus": _trains(site, live), "selection": _selects(live)}
    if not is_label_owner(site):
        makers["predicting"] = _predicts(site)
    if "relay" in allowed:
        makers["relay"] = _aligns(site)
    return makers


class _Kept:
    """The rows that a party keeps of alignments with one driver."""

    def __init__(self, site: Site, asked: Asked) -> None:
        self._site = site
        self._folder = asked.aligned
        self._alignment = alignment_of(asked.run)

    def keep(self, owner: str, part: str, rows_K: Tensor) -> None:
        """Keep the rows of a finished alignment."""
        make_folder(self._folder)
        ids = digest(self._site.table.ids)
        stored = StoredRows(self._site.name, self._alignment, rows_K, ids, owner)
        if part not in (TRAIN, TEST):
            raise MessageError(f"expected the part {TRAIN!r} or {TEST!r}, got {part[:100]!r}")
        save_rows(self._folder / f"{certificate_name(owner)}.{part}.safetensors", stored)

    def of(self, alignment: str) -> dict[str, dict[str, Tensor]]:
        """Label owner -> part -> rows, of this alignment and the table as it is now."""
        by_driver: dict[str, dict[str, Tensor]] = {}
        for path in sorted(self._folder.glob("*.safetensors")):
            with suppress(AlignmentError):
                stored = load_rows(path, self._site.name, self._site.table.ids)
                if stored.run == alignment:
                    part = path.name.split(".")[-2]
                    by_driver.setdefault(stored.driver, {})[part] = stored.rows_S
        return by_driver

    def rows(self) -> dict[str, dict[str, Tensor]]:
        """The rows that the run is to use.

        Raises:
            AlignmentError: there are none.
        """
        rows = self.of(self._alignment)
        if not rows:
            raise AlignmentError(
                f"it keeps no rows of alignment {self._alignment!r}, or its table has changed "
                "since; start anew with --overwrite, which aligns again"
            )
        return rows


def _aligns(site: Site) -> Maker:
    """Makes its side of an alignment that a coordinator carries."""
    parts = dealt(site) if is_label_owner(site) else {}
    responder = None if parts else site.responder()  # once: it takes long
    ids = site.compared(parts)

    def of_run(asked: Asked) -> Callable[[], StatefulParty]:
        kept = _Kept(site, asked)

        def aligned(name: str) -> tuple[str, ...]:
            return tuple(kept.of(name))

        def keep(part: str, rows_K: Tensor) -> None:
            kept.keep(site.name, part, torch.from_numpy(parts[part])[rows_K])

        def make() -> StatefulParty:
            if responder is not None:
                return relay.Responder(responder.guarded(asked.guard), kept.keep, aligned)
            lower = site.party.lowercase_ids
            return relay.Initiator(site.name, ids, keep, aligned, lower=lower, guard=asked.guard)

        return make

    return of_run


class _Live:
    """The owners of runs that are open here: for what trains, and for what selects."""

    #: Runs that are remembered; a host keeps no more in memory either.
    MOST = 8

    def __init__(self, site: Site) -> None:
        self.site = site
        # By driver and run: another driver may call a run of its own the same.
        self._held: dict[tuple[str, str], OwnerData] = {}
        self._trained: dict[tuple[str, str], fedoptimus.DataOwner] = {}

    def held(self, asked: Asked) -> OwnerData:
        """What the party brings to this run.

        Raises:
            AlignmentError: it keeps no rows of the run's alignment.
        """
        key = asked.driver, asked.run
        if key not in self._held:
            site, rows = self.site, _Kept(self.site, asked).rows()
            if is_label_owner(site):
                task = local_task(site, site.settings("fedoptimus", OwnerSection), *MORE_KINDS)
                self._held[key] = labels_of(site, task, rows[site.name])
            else:
                self._held[key] = columns_of(site, rows)
            self._drop()
        return self._held[key]

    def trains(self, asked: Asked, owner: fedoptimus.DataOwner) -> None:
        """Remember who trains in this run."""
        self._trained[asked.driver, asked.run] = owner
        self._drop()

    def embed(self, asked: Asked, owner: str, samples_B: Tensor) -> Tensor:
        """Embeddings by the network as it is now.

        Raises:
            PartyError: nothing was trained in this run since the party was started.
        """
        key = asked.driver, asked.run
        if key not in self._trained:
            raise PartyError(self.site.name, "has no network of this run; training comes first")
        return self._trained[key].features(owner, samples_B)

    def _drop(self) -> None:
        for kept in (self._held, self._trained):
            while len(kept) > self.MOST:
                del kept[next(iter(kept))]


def _trains(site: Site, live: _Live) -> Maker:
    """Makes its side of training."""

    def of_run(asked: Asked) -> Callable[[], StatefulParty]:
        held = live.held(asked)

        def make() -> StatefulParty:
            side = side_of(held, asked.local())
            if isinstance(side, fedoptimus.DataOwner):
                live.trains(asked, side)

            def keep() -> None:
                if isinstance(side, fedoptimus.DataOwner):
                    bottom = side.bottom_model()
                    about = {**bottom.about, "label_owners": list(side.label_owners)}
                    asked.keep(replace(bottom, about=about), {})
                else:
                    label = site.table.label or ""
                    model = described_top(side.model(), method="fedoptimus", label=label)
                    about = {**model.about, **about_decision(side.fitted_threshold)}
                    asked.keep(replace(model, about=about), {})

            return side if side.finish_with is None else SavesModel(side, side.finish_with, keep)

        return make

    return of_run


def _selects(live: _Live) -> Maker:
    """Makes its side of a selection."""

    def of_run(asked: Asked) -> Callable[[], StatefulParty]:
        held = live.held(asked)
        check_counted(held, SELECTED)
        return lambda: chooser_of(held, partial(live.embed, asked))

    return of_run


def _predicts(site: Site) -> Maker:
    """Makes a data owner's side of a prediction, for the label owner who asks."""

    def of_run(asked: Asked) -> Callable[[], StatefulParty]:
        if site.policy.section.privacy is not None:
            raise ConfigError(
                "its policy.privacy sets a budget of epsilon, and embeddings of a prediction after "
                "training are not counted; it takes part in none"
            )

        def fits(bottom: Bottom) -> bool:
            """What was learned for some label owners' labels tells no other driver about them."""
            return asked.driver in bottom.about.get("label_owners", (asked.driver,))

        rows_S, kept = asked.rows_S(), kept_at(site, asked, fits)
        return lambda: predicting.Inference(rows_S, kept, asked.local())

    return of_run


# --- At the coordinator --------------------------------------------------------------------------


def relay_alignment(
    driver: CarryingDriver, *, where: str, print_line: Callable[[str], None]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of data owners and of label owners, once all of them are aligned.

    What an earlier run aligned is used again, as long as every party keeps its rows of it.

    Raises:
        ConfigError: no owner of a kind.
        AlignmentError: a label owner without a training sample that all data owners have.
        PartyError: a party does not align.
    """
    driver.wait()
    path = driver.site_folder / "alignment.json"
    name = ""
    with suppress(OSError, ValueError, KeyError):
        name = str(json.loads(path.read_text(encoding="utf-8"))["alignment"])
    engine = driver.carry(name or secrets.token_hex(8))
    replies = engine.ask(
        dict.fromkeys(engine.parties, relay.Describe(name)), relay.Description
    ).or_raise()
    described = {party: replies[party] for party in engine.parties}  # means are taken in this order
    labellers = {party: each.parts for party, each in described.items() if each.parts}
    holders = tuple(party for party in described if party not in labellers)
    for kind, names in (("names a label", labellers), ("names none", holders)):
        if not names:
            raise ConfigError(
                f"{where}: of {', '.join(described)} no party's file {kind}; FedOptimus needs "
                "label owners, whose files name a label, and data owners, whose files do not"
            )
    owned = {party: {party} if party in labellers else {*labellers} for party in described}
    if not name or any({*described[party].aligned} != owned[party] for party in described):
        name = secrets.token_hex(8)
        print_line(f"aligning {', '.join(labellers)} with {', '.join(holders)}")
        overlaps = relay.align(driver.carry(name), labellers, holders)
        for (owner, part), overlap in overlaps.items():
            check_overlap(owner, part, overlap.num_common, overlap.shared, overlap.num_ids)
            print_line(
                f"{overlap.num_common:,} of the {overlap.num_ids:,} {part} samples of {owner} are "
                "at all data owners"
            )
        write_text(path, json.dumps({"alignment": name}) + "\n")
    driver.alignment = name
    return holders, tuple(labellers)
