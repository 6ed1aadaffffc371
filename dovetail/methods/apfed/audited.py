"""Facet of APFed for audits: scenes, decrypted answers, and the defences to try."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from dovetail.methods import vertical
from dovetail.methods.apfed import sealed
from dovetail.methods.apfed.local_data import PartnerData
from dovetail.methods.apfed.reading import Reading
from dovetail.methods.apfed.steering import steered
from dovetail.methods.apfed.unify import weight_of
from dovetail.methods.apfed.variants import active_config, label_owner_data, partner_data_of
from dovetail.methods.facets.audited import (
    Audited,
    Channel,
    Poisoned,
    Scene,
    Seen,
    Steered,
    candidates,
    holding,
)
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
    label_dp,
)
from dovetail.methods.limits import Limits
from dovetail.methods.outcome import Outcome
from dovetail.methods.training import Training, VariantRun
from dovetail.models.metrics import score
from dovetail.settings.privacy import Once, PrivateSteps, Release


class ApfedAudited(Audited):
    """APFed, its variants, and classic vertical learning."""

    tried = ("apfed-mixed", "apfed-r", "apfed-c", "apfed-d", "tvfl")

    def scene(self, training: Training) -> Scene:
        """The label owner's rows and its partners', in one order of samples."""
        local_data, data = label_owner_data(training), training.loaded.data
        parties = {**data.train.parties, local_data.name: local_data.train}
        candidates_of = candidates({local_data.name: (local_data.train, local_data.test)})
        holdings = {
            name: holding(party_data, data.inputs.get(name)) for name, party_data in parties.items()
        }
        orders = {"": local_data.alignment.rows}
        return Scene(local_data.task, holdings, orders, Reading(), candidates_of)

    def decrypted(self, driver: Any) -> Iterator[Seen]:
        """The numbers of APFed-S."""
        if not isinstance(driver, sealed.Active):
            return
        for party, number_RZ in driver.numbers.items():
            rows = (~number_RZ.isnan().any(dim=1)).nonzero().flatten()
            samples = driver.train.samples[party][rows]
            yield Seen(Channel(driver.name, party, "numbers"), samples, number_RZ[rows])

    def grid(self, training: Training) -> Grid:
        """Codes, gradients, labels, or columns that leave once."""
        match training.method:
            case "apfed-d":
                return _Apfed(DEFENCES_D)
            case "tvfl":
                return _Vertical(DEFENCES_V)
        return _Apfed(DEFENCES)

    def steered(
        self, training: Training, scene: Scene, variant: str, seed: int, limits: Limits
    ) -> Iterator[Steered | Poisoned]:
        """See ``steering.py``."""
        return steered(training, scene, variant, seed, limits)


# --- Defences ------------------------------------------------------------------------------------

DEFENCES = (
    AS_IT_IS,
    Defence("projection to 8", {"projection": 8}),
    Defence("projection to 2", {"projection": 2}),
    Defence("top 10 % of each code and gradient", {"codes": Release(keep=0.1)}, Release(keep=0.1)),
    Defence("signs of codes and gradients", {"codes": Release(sign=True)}, Release(sign=True)),
    Defence("decorrelated codes", {"decorrelate": 1.0}),
    *(Defence(f"codes of a class apart, {w:g}", {"spread": w}) for w in (0.3, 1.0)),
    *(
        Defence(f"noise {z:g} on codes and gradients", {"codes": NOISE[z]}, NOISE[z], COUNTED)
        for z in (0.25, 0.5, 1.0, 2.0)
    ),
    label_dp(2.0),
    label_dp(2.0, num_stages=2),
    Defence(
        "noise 1 on codes and gradients, DP-SGD at noise 4",
        {"codes": NOISE[1.0], "private": PrivateSteps(noise=4.0)},
        NOISE[1.0],
        COUNTED + "; the model: epsilon counted with that of codes",
    ),
    Defence(
        "projection to 8, noise 0.5",
        {"projection": 8, "codes": NOISE[0.5]},
        NOISE[0.5],
        COUNTED,
    ),
    Defence(
        "projection to 8, noise 1, label DP 2",
        {"projection": 8, "codes": NOISE[1.0], "label_epsilon": 2.0},
        NOISE[1.0],
        COUNTED + "; labels: epsilon 2 a run",
    ),
    Defence("no messages: lambda = 0", {"trade_off": 0.0}),
)

_LABELS_STAY = "no label leaves"

#: Of APFed-D: labels by randomised response before partners are taught, or columns once.
DEFENCES_D = (
    AS_IT_IS,
    label_dp(0.5),
    label_dp(2.0),
    label_dp(2.0, num_stages=2),
    *(
        Defence(
            f"columns once, {width} wide, noise {noise:g}",
            {},
            None,
            f"{_LABELS_STAY}; {COUNTED}" if noise else _LABELS_STAY,
            Once(width=width, noise=noise),
        )
        for width, noise in ((4, 0.0), (1, 0.5), (1, 0.75), (1, 1.0), (2, 0.5), (2, 0.75),
                             (4, 0.25), (4, 0.5), (4, 1.0), (8, 0.5))
    ),
)  # fmt: skip

#: Of classic vertical learning: what partners' codes and the label owner's gradients say.
DEFENCES_V = (
    AS_IT_IS,
    Defence("codes of a class apart, 0.3", {"spread": 0.3}),
    label_dp(0.5),
    label_dp(2.0),
    *(
        Defence(
            f"noise {z:g} on codes and gradients", {}, NOISE[z], COUNTED, codes=NOISE[z]
        )
        for z in (0.5, 1.0, 2.0, 4.0, 8.0)
    ),
    Defence(
        "noise 2 on codes, label DP, epsilon 0.5",
        {"label_epsilon": 0.5},
        None,
        f"{COUNTED}; labels: epsilon 0.5 a run",
        codes=NOISE[2.0],
    ),
)  # fmt: skip


def _defended(
    task: Training, active: Mapping[str, Any], of: Callable[[PartnerData], PartnerData]
) -> Training:
    """The run with these settings of the label owner, and of each partner what ``of`` makes."""
    party_data = {name: of(partner) for name, partner in partner_data_of(task).items()}
    settings = task.settings.model_copy(update=active)
    return replace(task, settings=settings, party_data={**task.party_data, **party_data})


@dataclass(frozen=True)
class _Apfed:
    """APFed-R, -C and -D: a label owner's model is scored alone."""

    defences: Sequence[Defence]
    alone: str | None = "best-alone"

    def hold_out(self, task: Training, seed: int) -> tuple[Training, Any]:
        local_data = label_owner_data(task)
        held, _ = drawn(local_data.train.labelled_rows(), seed, local_data.name)
        party_data = {**task.party_data, local_data.name: local_data.without_labels_on(held)}
        return replace(task, party_data=party_data), (local_data, held)

    def protected(self, task: Training, defence: Defence, lengths: Lengths) -> Training:
        def of(partner: PartnerData) -> PartnerData:
            teaching = partner.config.distil.model_copy(update={"release": defence.once})
            gradients = at_length(defence.gradients, lengths["gradients"])
            defended = {"gradients": gradients, "distil": teaching}
            return replace(partner, config=partner.config.model_copy(update=defended))

        exchange = "gradients" if defence.once is None else "released"
        teaching = task.settings.distil.model_copy(update={"exchange": exchange})
        return _defended(task, {**defence.active, "distil": teaching}, of)

    def sends(self, task: Training) -> bool:
        weights = [weight_of(active_config(task).trade_off, name) for name in partner_data_of(task)]
        return task.method == "apfed-d" or any(weights)

    def scored(
        self, task: Training, variant_run: VariantRun | None, outcome: Outcome, held: Any
    ) -> float:
        local_data, rows = held
        model = outcome.models[local_data.name]
        judged = local_data.train.take(rows)
        return first_of(score(local_data.task, model.outputs(judged.joined()), judged.labels))


@dataclass(frozen=True)
class _Vertical(_Apfed):
    """Classic vertical learning: scored with all partners present, as it predicts."""

    def protected(self, task: Training, defence: Defence, lengths: Lengths) -> Training:
        codes = at_length(defence.codes, lengths["codes"])

        def of(partner: PartnerData) -> PartnerData:
            return replace(partner, config=partner.config.model_copy(update={"codes": codes}))

        gradients = at_length(defence.gradients, lengths["gradients"])
        return _defended(task, {**defence.active, "gradients": gradients}, of)

    def sends(self, task: Training) -> bool:
        return True

    def scored(
        self, task: Training, variant_run: VariantRun | None, outcome: Outcome, held: Any
    ) -> float:
        if variant_run is None:
            return super().scored(task, variant_run, outcome, held)
        local_data, rows = held
        owner = variant_run.driver
        assert isinstance(owner, vertical.Owner)
        for party in variant_run.parties.values():
            party.test = replace(party.shared)  # of another table, whose account is its own
        samples = local_data.alignment.shared(*local_data.alignment.rows)
        rows_S = local_data.alignment.rows[local_data.name][samples]
        samples = samples[torch.isin(rows_S, rows)]
        judged = local_data.train.take(local_data.alignment.rows[local_data.name][samples])
        outputs = vertical.predict(owner, variant_run.network, judged.joined(), samples)
        return first_of(score(local_data.task, outputs, judged.labels))
