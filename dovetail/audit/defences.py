"""Grids of defences, method by method: what is set, which labelled rows are held out, and how a
cell is scored on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from dovetail.data import SharedRows
from dovetail.methods import hyfem, vertical
from dovetail.methods.apfed.local_data import PartnerData
from dovetail.methods.apfed.training_data import active_config, label_owner_data, partner_data_of
from dovetail.methods.apfed.unify import weight_of
from dovetail.methods.chfl import layers as chfl
from dovetail.methods.fedoptimus.variant_settings import columns_in, labels_in
from dovetail.methods.hyfem.variant_settings import outputs_of
from dovetail.methods.outcome import Outcome, Scores
from dovetail.methods.released import Once
from dovetail.methods.training import Training, VariantRun
from dovetail.models.metrics import score
from dovetail.models.randomness import generator
from dovetail.privacy import PrivateSteps, Release

#: Of the labelled rows, the share that a cell is scored on and not trained on.
HELD_OUT = 0.2


@dataclass(frozen=True)
class Defence:
    """One cell of the grid: what is set at whom.

    Attributes:
        name: as it is told.
        active: settings of the run: of APFed and of classic vertical learning the label owner's.
        gradients: how gradients leave: of APFed partners', elsewhere label owners'. Its ``clip`` is
            in multiples of a row's median length in the run as it is.
        guarantee: what is guaranteed, in words; "" for nothing.
        once: of APFed-D, how partners' columns leave once; None: gradients are exchanged.
        codes: of classic vertical learning and FedOptimus, how codes leave; clip as of gradients.
    """

    name: str
    active: Mapping[str, Any]
    gradients: Release | None = None
    guarantee: str = ""
    once: Once | None = None
    codes: Release | None = None


#: Median length of a row's codes and gradients in the run as it is: in multiples of it they are
#: clipped.
Lengths = Mapping[str, float]


class Grid(Protocol):
    """How the runs of one method are tried."""

    @property
    def defences(self) -> Sequence[Defence]:
        """The cells."""

    @property
    def alone(self) -> str | None:
        """The variant of a model that asks nobody; None: nobody has columns of its own."""

    def hold_out(self, task: Training, seed: int) -> tuple[Training, Any]:
        """The run without the labels of some rows, and what ``scored`` needs to score on them."""

    def protected(self, task: Training, defence: Defence, lengths: Lengths) -> Training:
        """The run with this defence."""

    def sends(self, task: Training) -> bool:
        """Whether anything crosses."""

    def scored(
        self, task: Training, variant_run: VariantRun | None, outcome: Outcome, held: Any
    ) -> float:
        """On rows held out; more is better. ``variant_run`` is None where nobody is asked."""


def grid_of(task: Training) -> Grid | None:
    """How runs of this method are tried; None: nothing of it can be set."""
    party_data = [*task.party_data.values()]
    match task.method:
        case "apfed" | "apfed-r" | "apfed-c":
            return _Apfed(DEFENCES)
        case "apfed-d":
            return _Apfed(DEFENCES_D)
        case "tvfl":
            return _Vertical(DEFENCES_V)
        case "fedoptimus":
            return _FedOptimus(DEFENCES_F)
        case "chfl" | "chfl-mu0" | "chfl-gate" | "common" | "hyfem" | "fedavg" if all(
            isinstance(each, chfl.ChflData | hyfem.HyfemData) for each in party_data
        ):
            tested = all(each.test is not None for each in party_data)
            return _Weights(DEFENCES_W, "best-alone" if tested else None)
    return None


#: Methods that have a grid, as an error tells them.
TRIED = "apfed, apfed-r, apfed-c, apfed-d, tvfl, fedoptimus, chfl and hyfem"


# --- What is tried -------------------------------------------------------------------------------

_COUNTED = "epsilon is counted; it covers what releases of a sample's own row say"

_NOISE = {z: Release(clip=1.0, noise=z) for z in (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)}

_AS_IT_IS = Defence("as it is", {})


def _label_dp(epsilon: float, num_stages: int = 1) -> Defence:
    name = f"label DP, epsilon {epsilon:g}" + (", learned prior" if num_stages > 1 else "")
    settings: dict[str, Any] = {"label_epsilon": epsilon}
    if num_stages > 1:
        settings["label_stages"] = num_stages
    return Defence(name, settings, None, f"labels: epsilon {epsilon:g} a run")


DEFENCES = (
    _AS_IT_IS,
    Defence("projection to 8", {"projection": 8}),
    Defence("projection to 2", {"projection": 2}),
    Defence("top 10 % of each code and gradient", {"codes": Release(keep=0.1)}, Release(keep=0.1)),
    Defence("signs of codes and gradients", {"codes": Release(sign=True)}, Release(sign=True)),
    Defence("decorrelated codes", {"decorrelate": 1.0}),
    *(Defence(f"codes of a class apart, {w:g}", {"spread": w}) for w in (0.3, 1.0)),
    *(
        Defence(f"noise {z:g} on codes and gradients", {"codes": _NOISE[z]}, _NOISE[z], _COUNTED)
        for z in (0.25, 0.5, 1.0, 2.0)
    ),
    _label_dp(2.0),
    _label_dp(2.0, num_stages=2),
    Defence(
        "noise 1 on codes and gradients, DP-SGD at noise 4",
        {"codes": _NOISE[1.0], "private": PrivateSteps(noise=4.0)},
        _NOISE[1.0],
        _COUNTED + "; the model: epsilon counted with that of codes",
    ),
    Defence(
        "projection to 8, noise 0.5",
        {"projection": 8, "codes": _NOISE[0.5]},
        _NOISE[0.5],
        _COUNTED,
    ),
    Defence(
        "projection to 8, noise 1, label DP 2",
        {"projection": 8, "codes": _NOISE[1.0], "label_epsilon": 2.0},
        _NOISE[1.0],
        _COUNTED + "; labels: epsilon 2 a run",
    ),
    Defence("no messages: lambda = 0", {"trade_off": 0.0}),
)

_LABELS_STAY = "no label leaves"

#: Of APFed-D: labels by randomised response before partners are taught, or columns once.
DEFENCES_D = (
    _AS_IT_IS,
    _label_dp(0.5),
    _label_dp(2.0),
    _label_dp(2.0, num_stages=2),
    *(
        Defence(
            f"columns once, {width} wide, noise {noise:g}",
            {},
            None,
            f"{_LABELS_STAY}; {_COUNTED}" if noise else _LABELS_STAY,
            Once(width=width, noise=noise),
        )
        for width, noise in ((4, 0.0), (1, 0.5), (1, 0.75), (1, 1.0), (2, 0.5), (2, 0.75),
                             (4, 0.25), (4, 0.5), (4, 1.0), (8, 0.5))
    ),
)  # fmt: skip

#: Of classic vertical learning: what partners' codes and the label owner's gradients say.
DEFENCES_V = (
    _AS_IT_IS,
    Defence("codes of a class apart, 0.3", {"spread": 0.3}),
    _label_dp(0.5),
    _label_dp(2.0),
    *(
        Defence(
            f"noise {z:g} on codes and gradients", {}, _NOISE[z], _COUNTED, codes=_NOISE[z]
        )
        for z in (0.5, 1.0, 2.0, 4.0, 8.0)
    ),
    Defence(
        "noise 2 on codes, label DP, epsilon 0.5",
        {"label_epsilon": 0.5},
        None,
        f"{_COUNTED}; labels: epsilon 0.5 a run",
        codes=_NOISE[2.0],
    ),
)  # fmt: skip

#: Of FedOptimus: what data owners' embeddings and label owners' gradients say.
DEFENCES_F = (
    _AS_IT_IS,
    Defence("noise 2 on gradients", {}, _NOISE[2.0], _COUNTED),
    Defence("noise 2 on embeddings", {}, None, _COUNTED, codes=_NOISE[2.0]),
    *(
        Defence(
            f"noise {z:g} on embeddings and gradients", {}, _NOISE[z], _COUNTED, codes=_NOISE[z]
        )
        for z in (0.5, 1.0, 2.0, 4.0, 8.0)
    ),
)  # fmt: skip

#: Of CHFL and HyFEM, whose weights are sent: DP-SGD of these.
DEFENCES_W = (
    _AS_IT_IS,
    *(
        Defence(
            f"DP-SGD at noise {z:g}",
            {"private": PrivateSteps(noise=z)},
            None,
            "epsilon of a row in what is sent is counted",
        )
        for z in (1.0, 2.0, 4.0, 8.0)
    ),
)


# --- How it is tried -----------------------------------------------------------------------------


def first_of(scores: Scores) -> float:
    """The score that cells are compared by: AUC of two classes, else accuracy, or R2."""
    return float(scores.get("auc", scores.get("accuracy", scores.get("r2", 0.0))))


def _drawn(rows: Tensor, seed: int, party: str) -> tuple[Tensor, Tensor]:
    """Rows that are held out, and those that are not."""
    rng = generator(seed, party, "held out of the grid")
    drawn = rows[torch.randperm(len(rows), generator=rng)]
    num = max(1, round(HELD_OUT * len(drawn)))
    return drawn[:num], drawn[num:]


def _at_length(release: Release | None, length: float) -> Release | None:
    if release is None or release.clip is None:
        return release
    return release.model_copy(update={"clip": release.clip * length})


@dataclass(frozen=True)
class _Apfed:
    """APFed-R, -C and -D: a label owner's model is scored alone."""

    defences: Sequence[Defence]
    alone: str | None = "best-alone"

    def hold_out(self, task: Training, seed: int) -> tuple[Training, Any]:
        local_data = label_owner_data(task)
        held, _ = _drawn(local_data.train.labelled_rows(), seed, local_data.name)
        party_data = {**task.party_data, local_data.name: local_data.without_labels_on(held)}
        return replace(task, party_data=party_data), (local_data, held)

    def protected(self, task: Training, defence: Defence, lengths: Lengths) -> Training:
        def of(partner: PartnerData) -> PartnerData:
            release = {"gradients": _at_length(defence.gradients, lengths["gradients"])}
            teaching = partner.distil.model_copy(update={"release": defence.once})
            return replace(
                partner, config=partner.config.model_copy(update=release), distil=teaching
            )

        exchange = "gradients" if defence.once is None else "released"
        teaching = task.settings.distil.model_copy(update={"exchange": exchange})
        settings = task.settings.model_copy(update={**defence.active, "distil": teaching})
        party_data = {
            **task.party_data,
            **{name: of(partner) for name, partner in partner_data_of(task).items()},
        }
        return replace(task, settings=settings, party_data=party_data)

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
        codes = _at_length(defence.codes, lengths["codes"])

        def of(partner: PartnerData) -> PartnerData:
            return replace(partner, config=partner.config.model_copy(update={"codes": codes}))

        gradients = _at_length(defence.gradients, lengths["gradients"])
        settings = task.settings.model_copy(update={**defence.active, "gradients": gradients})
        party_data = {
            **task.party_data,
            **{name: of(partner) for name, partner in partner_data_of(task).items()},
        }
        return replace(task, settings=settings, party_data=party_data)

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


@dataclass(frozen=True)
class _FedOptimus:
    """FedOptimus: each label owner's model, with the data owners' embeddings."""

    defences: Sequence[Defence]
    alone: str | None = None

    def hold_out(self, task: Training, seed: int) -> tuple[Training, Any]:
        held: dict[str, Tensor] = {}
        party_data = dict(task.party_data)
        for name, labels in labels_in(task.party_data).items():
            held[name], rest = _drawn(labels.trained, seed, name)
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
            "embeddings": _at_length(defence.codes, lengths["codes"]),
            "gradients": _at_length(defence.gradients, lengths["gradients"]),
        }
        return replace(task, settings=task.settings.model_copy(update=releases))

    def sends(self, task: Training) -> bool:
        return True

    def scored(
        self, task: Training, variant_run: VariantRun | None, outcome: Outcome, held: Any
    ) -> float:
        assert variant_run is not None
        return _mean(
            [first_of(each) for each in variant_run.variant.validated(variant_run).values()]
        )


@dataclass(frozen=True)
class _Weights:
    """CHFL and HyFEM: each party's own model."""

    defences: Sequence[Defence]
    alone: str | None

    def hold_out(self, task: Training, seed: int) -> tuple[Training, Any]:
        party_data, held = {}, {}
        for name, local_data in task.party_data.items():
            rows, rest = _drawn(local_data.train.labelled_rows(), seed, name)
            held[name] = local_data.train.take(rows)
            party_data[name] = replace(local_data, train=local_data.train.take(rest))
        return replace(task, party_data=party_data), (held, seed)

    def protected(self, task: Training, defence: Defence, lengths: Lengths) -> Training:
        settings = task.settings.model_copy(update=dict(defence.active))
        return replace(task, settings=settings)

    def sends(self, task: Training) -> bool:
        return True

    def scored(
        self, task: Training, variant_run: VariantRun | None, outcome: Outcome, held: Any
    ) -> float:
        rows, seed = held
        if (
            variant_run is None
        ):  # its models are not kept; with these as its test rows it scores them
            assert self.alone is not None
            party_data = {
                name: replace(local_data, test=rows[name])
                for name, local_data in task.party_data.items()
            }
            again = replace(task, party_data=party_data).train(self.alone, seed, lambda *_: None)
            return _mean([first_of(each) for each in again.scores[self.alone].values()])
        scores = []
        for name, part in rows.items():
            outputs = outputs_of(outcome.models[name], part)
            scores.append(first_of(score(task.party_data[name].task, outputs, part.labels)))
        return _mean(scores)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
