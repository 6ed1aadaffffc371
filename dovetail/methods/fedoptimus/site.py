"""An owner's side at its site: it aligns, trains, selects and predicts for a driver elsewhere.

At the site of each, for each driver:

    aligned/DRIVER/LABELOWNER.PART.safetensors   its row of each of that label owner's samples

A label owner's labelled rows are split into two parts by its own file, before anything is
aligned: "train" and "test". The files of one alignment have its name; a run that trains on it has
an id that starts with that name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from dovetail.alignment import relay
from dovetail.alignment.stored import StoredRows, alignment_of, digest, load_rows, save_rows
from dovetail.errors import AlignmentError, ConfigError, MessageError, PartyError
from dovetail.methods import fedoptimus
from dovetail.methods.base import Asked, Maker, Site
from dovetail.methods.fedoptimus import predicting
from dovetail.methods.fedoptimus.local_data import (
    SELECTED,
    TEST,
    TRAIN,
    OwnerData,
    check_counted,
    columns_of,
    dealt,
    is_label_owner,
    labels_of,
)
from dovetail.methods.fedoptimus.variants import chooser_of, side_of
from dovetail.methods.inference import recalling
from dovetail.methods.labels import (
    local_task,
)
from dovetail.methods.outcome import about_decision, described
from dovetail.methods.settings.fedoptimus import OwnerSection
from dovetail.models.owners import Bottom
from dovetail.network.certificates import certificate_name, make_folder
from dovetail.network.checkpoint import StatefulParty


def members_of(site: Site, allowed: Collection[str]) -> dict[str, Maker]:
    """Algorithm -> what makes an owner's side of its runs; mistakes in its table are reported
    now."""
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
            id_as = site.party.id_as
            return relay.Initiator(site.name, ids, keep, aligned, id_as=id_as, guard=asked.guard)

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
        """Data that the party brings to this run.

        Raises:
            AlignmentError: it keeps no rows of the run's alignment.
        """
        key = asked.driver, asked.run
        if key not in self._held:
            site, rows = self.site, _Kept(self.site, asked).rows()
            if is_label_owner(site):
                task = local_task(site, site.settings("fedoptimus", OwnerSection))
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

            def keep(whole: fedoptimus.DataOwner | fedoptimus.LabelOwner) -> None:
                if isinstance(whole, fedoptimus.DataOwner):
                    bottom = whole.bottom_model()
                    about = {**bottom.about, "label_owners": list(whole.label_owners)}
                    asked.keep(replace(bottom, about=about), {})
                else:
                    model = described(whole.model(), method="fedoptimus", label=whole.data.label)
                    about = {**model.about, **about_decision(whole.fitted_threshold)}
                    asked.keep(replace(model, about=about), {})

            side.finished = keep
            return side

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

    def fits(bottom: Bottom, asked: Asked) -> bool:
        """Whether a bottom was learned for this driver's labels, as it reveals other owners' to no
        other driver."""
        return asked.driver in bottom.about.get("label_owners", (asked.driver,))

    def make(asked: Asked) -> Callable[..., predicting.Inference]:
        if site.policy.section.privacy is not None:
            raise ConfigError(
                "its policy.privacy sets a budget of epsilon, and embeddings of a prediction after "
                "training are not counted; it takes part in none"
            )
        return lambda rows_S, kept: predicting.Inference(rows_S, kept, asked.local())

    return recalling(site, fits, make)
