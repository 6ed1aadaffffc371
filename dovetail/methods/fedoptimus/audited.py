"""Facet of FedOptimus for audits: scenes, and the defences to try."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dovetail.data import SharedRows
from dovetail.methods.facets.audited import Audited, Holding, Scene, flat, names_of
from dovetail.methods.facets.defences import (
    AS_IT_IS,
    COUNTED,
    NOISE,
    Defence,
    Grid,
    Lengths,
    at_length,
    drawn,
    first_of,
    mean_of,
)
from dovetail.methods.fedoptimus.local_data import columns_in, labels_in
from dovetail.methods.fedoptimus.reading import TOGETHER, Reading
from dovetail.methods.outcome import Outcome
from dovetail.methods.training import Training, VariantRun


class OwnersAudited(Audited):
    """Data owners and label owners."""

    tried = ("fedoptimus",)

    def scene(self, training: Training) -> Scene:
        """An order of samples for each label owner."""
        parties: dict[str, Holding] = {}
        columns, labels = columns_in(training.party_data), labels_in(training.party_data)
        orders: dict[str, dict[str, Tensor]] = {name: {} for name in labels}
        for name, columns_data in columns.items():
            first = next(iter(columns_data.shared.values()))
            parties[name] = Holding(flat(first.x), names_of(columns_data.input, first.x))
            for owner, shared in columns_data.shared.items():
                orders[owner][name] = shared.rows_S
        for owner, labelled in labels.items():
            parties[owner] = Holding(None, (), labelled.labels_S)
            orders[owner][owner] = torch.arange(len(labelled.labels_S))
        task = next(iter(labels.values())).task
        return _together(Scene(task, parties, orders, Reading()), list(columns))

    def grid(self, training: Training) -> Grid:
        """Embeddings and gradients."""
        return _FedOptimus(DEFENCES)


def _together(scene: Scene, names: list[str]) -> Scene:
    """With all data owners as one, whose mean embedding a label owner sees.

    Of parties with files of their own, rows of one sample stand at different places; then the
    mean is not attacked.
    """
    held = [scene.parties[name] for name in names]
    for rows in scene.orders.values():
        if any(not torch.equal(rows[name], rows[names[0]]) for name in names):
            return scene
    x = torch.cat([each.x_NF for each in held if each.x_NF is not None], dim=1)
    columns = tuple(
        f"{name}: {column}"
        for name, each in zip(names, held, strict=True)
        for column in each.columns
    )
    orders = {owner: {**rows, TOGETHER: rows[names[0]]} for owner, rows in scene.orders.items()}
    return replace(scene, parties={**scene.parties, TOGETHER: Holding(x, columns)}, orders=orders)


# --- Defences ------------------------------------------------------------------------------------

#: Of FedOptimus: what data owners' embeddings and label owners' gradients say.
DEFENCES = (
    AS_IT_IS,
    Defence("noise 2 on gradients", {}, NOISE[2.0], COUNTED),
    Defence("noise 2 on embeddings", {}, None, COUNTED, codes=NOISE[2.0]),
    *(
        Defence(
            f"noise {z:g} on embeddings and gradients", {}, NOISE[z], COUNTED, codes=NOISE[z]
        )
        for z in (0.5, 1.0, 2.0, 4.0, 8.0)
    ),
)  # fmt: skip


@dataclass(frozen=True)
class _FedOptimus:
    """FedOptimus: each label owner's model, with the data owners' embeddings."""

    defences: Sequence[Defence]
    alone: str | None = None

    def hold_out(self, task: Training, seed: int) -> tuple[Training, Any]:
        held: dict[str, Tensor] = {}
        party_data = dict(task.party_data)
        for name, labels in labels_in(task.party_data).items():
            held[name], rest = drawn(labels.trained, seed, name)
            scored = {**labels.scored, "validation": labels.labels_S[held[name]]}
            party_data[name] = replace(labels, samples=rest, scored=scored)
        for name, columns in columns_in(task.party_data).items():
            rows = {
                owner: SharedRows(name, shared.x, shared.rows_S[held[owner]])
                for owner, shared in columns.shared.items()
            }
            party_data[name] = replace(columns, scored={**columns.scored, "validation": rows})
        return replace(task, party_data=party_data), None

    def protected(self, task: Training, defence: Defence, lengths: Lengths) -> Training:
        releases = {
            "embeddings": at_length(defence.codes, lengths["codes"]),
            "gradients": at_length(defence.gradients, lengths["gradients"]),
        }
        return replace(task, settings=task.settings.model_copy(update=releases))

    def sends(self, task: Training) -> bool:
        return True

    def scored(
        self, task: Training, variant_run: VariantRun | None, outcome: Outcome, held: Any
    ) -> float:
        assert variant_run is not None
        return mean_of(
            [first_of(each) for each in variant_run.variant.validated(variant_run).values()]
        )
