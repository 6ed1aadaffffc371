"""All attacks on what was kept of one variant of a run."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from dovetail.audit.attacks import columns, factors, labels, membership, rows
from dovetail.audit.attacks.exact import exact
from dovetail.audit.attacks.exact import threat as exact_threat
from dovetail.audit.attacks.labels import Label, each_label
from dovetail.audit.tape import ChannelSummary, Followed, Tape
from dovetail.audit.verdict import Finding, Measured, finding
from dovetail.data import Classification, PartyData
from dovetail.methods.base import Points
from dovetail.methods.facets.audited import KNOWN, MAX_ROWS, Channel, Scene, Threat, Weights
from dovetail.models import Model
from dovetail.models.blocks import BlocksNetwork
from dovetail.models.columns import Columns
from dovetail.models.vectors import classifier_vector, load_classifier, vector_of, write_vector

#: Where there are more channels of one kind (label owners x data owners), so many are attacked.
MAX_ALIKE = 6


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How an audit attacks.

    Attributes:
        known: rows of the other side that an inverting attacker knows.
        network: whether inversion is also tried by a network and a forest.
        others_known: whether factorisation is also tried from other numbers of known rows, where
            ``network`` is set.
    """

    known: int = KNOWN
    network: bool = True
    others_known: bool = True


def attack(
    variant: str,
    scene: Scene,
    tape: Tape,
    models: Mapping[str, Model],
    settings: Settings,
    points: Points = lambda done, total: None,
) -> list[Finding]:
    """Findings, channel by channel, then of weights and of models.

    Args:
        points: told how many attacks of how many are made.
    """
    attacks = _Attacks(variant, scene, settings)
    made: list[Callable[[], Iterator[Finding]]] = []
    alike: dict[tuple[str, bool], int] = {}
    for channel in tape.tables:
        if channel.owner not in scene.parties:  # a mean over owners whose rows are in other places
            continue
        has_labels = scene.parties[channel.owner].labels_N is not None
        kind = channel.what, has_labels
        alike[kind] = alike.get(kind, 0) + 1
        if alike[kind] <= MAX_ALIKE:
            made.append(partial(attacks.of_table, channel, tape.tables[channel]))
    for channel, followed in list(tape.logits.items())[:MAX_ALIKE]:
        made.append(partial(attacks.of_logits, channel, followed))
    for (observer, owner), kept in list(tape.weights.items())[:MAX_ALIKE]:
        if owner in models:
            made.append(partial(attacks.of_weights, observer, owner, kept, models[owner]))
    for party, model in models.items():
        if party in scene.candidates:
            made.append(partial(attacks.of_model, party, model))
    findings: list[Finding] = []
    for done, each in enumerate(made, start=1):
        findings += each()
        points(done, len(made))
    return findings


@dataclass(frozen=True, eq=False)
class _Attacks:
    """Attacks on one variant of a run; each gives what it found."""

    variant: str
    scene: Scene
    settings: Settings

    def of_table(self, channel: Channel, table: ChannelSummary) -> Iterator[Finding]:
        """Labels and columns from what was seen row by row."""
        scene, settings = self.scene, self.settings
        samples, tensors = table.views()
        views = {name: each.numpy() for name, each in tensors.items()}
        beside = _numpy(scene.columns_of(channel.observer, channel.order, samples))
        found = partial(self._found, channel.observer, channel.owner, channel.what)
        truth = scene.labels_of(channel.owner, channel.order, samples)
        for label in [] if truth is None else each_label(scene.task, truth):
            for measured, threat in _label(label, channel, views, beside, settings):
                yield from found("labels", measured, label.named(threat))
        if channel.what == "codes" and truth is None:
            yield from self._completed(channel, samples, views)
        target = scene.columns_of(channel.owner, channel.order, samples)
        if target is not None and channel.what != "output gradients":
            names = scene.parties[channel.owner].columns
            for measured, threat in _inverted(beside, views, target.numpy(), names, settings):
                yield from found("columns", measured, threat)
            for measured, threat in _exact(beside, views, target.numpy(), settings):
                yield from found("columns", measured, threat)

    def of_logits(self, channel: Channel, followed: Followed) -> Iterator[Finding]:
        """Columns from the owner's logits of all steps."""
        scene, settings, samples = self.scene, self.settings, followed.samples
        target = scene.columns_of(channel.owner, channel.order, samples)
        if target is None:
            return
        beside = _numpy(scene.columns_of(channel.observer, channel.order, samples))
        names = scene.parties[channel.owner].columns
        others = factors.KNOWN if settings.network and settings.others_known else {}
        for known, draws in {settings.known: 1, **others}.items():
            measured = factors.rebuilt(
                beside, factors.Measurements(*followed.steps()), target.numpy(), names,
                known=known, draws=draws,
            )  # fmt: skip
            yield from self._found(
                channel.observer, channel.owner, channel.what, "columns", measured,
                factors.threat(known),
            )  # fmt: skip

    def _completed(
        self, channel: Channel, samples: Tensor, views: Mapping[str, np.ndarray]
    ) -> Iterator[Finding]:
        """Labels from the codes that a partner computes itself, by a network of labels."""
        truth = self.scene.labels_of(channel.observer, channel.order, samples)
        columns = self.scene.columns_of(channel.owner, channel.order, samples)
        if truth is None or columns is None:
            return
        for label in each_label(self.scene.task, truth):
            if (scored := _scored(label)) is None:
                continue
            indices, y = scored
            last = {"last": views["last"][indices]}
            for known in labels.DRAWS:
                yield from self._found(
                    channel.owner, channel.observer, "its own encoder", "labels",
                    labels.completion(columns.numpy()[indices], last, y, known),
                    label.named(labels.completion_threat(known)),
                )  # fmt: skip

    def of_weights(
        self, observer: str, owner: str, kept: list[Weights], model: Model
    ) -> Iterator[Finding]:
        """Rows from the first round's change, membership from the last round's weights."""
        x, first = self.scene.parties[owner].x_NF, kept[0]
        layer = _first_layer(model.network)
        if layer is not None and x is not None:
            (linear, indices) = layer
            name = "common" if "common" in first.after else "extractors"
            delta = first.after[name] - first.before[name]
            size = linear.weight.numel()
            x = x if indices is None else x[:, indices]
            has_bias = linear.bias is not None and len(delta) >= size + linear.out_features
            if has_bias and x.shape[1] == linear.in_features:
                change = delta[:size].view_as(linear.weight).numpy()
                bias = delta[size : size + linear.out_features].numpy()
                measured = rows.rows(change, bias, x.numpy())
                yield from self._found(observer, owner, "weights", "rows", measured, rows.THREAT)
        if owner in self.scene.candidates and isinstance(self.scene.task, Classification):
            shown = network_of(model, kept[-1])
            if shown is not None:
                of = "the weights it sent last"
                yield from self._membership(observer, owner, "weights", shown, of)

    def of_model(self, party: str, model: Model) -> Iterator[Finding]:
        """Membership from the model that a party uses alone, and others' columns."""
        yield from self._others(party, model)
        is_classes = isinstance(self.scene.task, Classification)
        if is_classes and self.scene.candidates[party][0].blocks:
            observer, of = "who has the model", "the solo model"
            yield from self._membership(observer, party, "model", model.network, of)

    def _others(self, party: str, model: Model) -> Iterator[Finding]:
        """Findings on partners' columns from a model that was trained with them, on new rows."""
        scene, order = self.scene, ""
        for owner, held in scene.parties.items():
            rows = scene.orders.get(order, {})
            if owner == party or held.x_NF is None or not {party, owner} <= rows.keys():
                continue
            samples = ((rows[party] >= 0) & (rows[owner] >= 0)).nonzero().flatten()[:MAX_ROWS]
            x = scene.columns_of(party, order, samples)
            target = scene.columns_of(owner, order, samples)
            if x is None or target is None or not len(samples):
                continue
            shown = outputs_of(scene, party, model.network)(x).clamp(1e-6, 1 - 1e-6)
            beside, names = x.numpy(), held.columns
            truth = scene.labels_of(party, order, samples)
            if truth is not None and not truth.is_floating_point():
                one_hot = torch.nn.functional.one_hot(truth.clamp(min=-1).long() + 1)
                beside = np.hstack([beside, one_hot.numpy()])
            views = {"outputs": (shown / (1 - shown)).log().numpy()}
            for measured, threat in _inverted(beside, views, target.numpy(), names, self.settings):
                of = replace(threat, attack=f"{threat.attack}, of the solo model")
                yield from self._found(party, owner, "model", "columns", measured, of)

    def _membership(
        self, observer: str, owner: str, channel: str, network: nn.Module, of: str
    ) -> Iterator[Finding]:
        inside, outside = self.scene.candidates[owner]
        assert inside.labels is not None
        assert outside.labels is not None
        result = membership.membership(
            outputs_of(self.scene, owner, network),
            (joined(inside), inside.labels),
            (joined(outside), outside.labels),
        )
        if result is not None:
            measured, epsilon = result
            note = f"a run that is epsilon-DP has an epsilon of {epsilon:.2f} or more (95 %)"
            threat, note = membership.threat(of), note if epsilon else ""
            yield from self._found(
                observer, owner, channel, "membership", measured, threat, note=note
            )

    def _found(
        self,
        observer: str,
        owner: str,
        channel: str,
        target: str,
        measured: Measured | None,
        threat: Threat,
        *,
        note: str = "",
    ) -> Iterator[Finding]:
        """Findings of an attack, if it could be made."""
        if measured is not None:
            yield finding(
                measured, threat, variant=self.variant, observer=observer, owner=owner,
                channel=channel, target=target, note=note,
            )  # fmt: skip


def _inverted(
    beside: np.ndarray | None,
    views: Mapping[str, np.ndarray],
    target_NF: np.ndarray,
    names: Sequence[str],
    settings: Settings,
) -> Iterator[tuple[Measured | None, Threat]]:
    """Numbers from what was seen row by row, by ridge regression and by all learners."""
    known = settings.known
    for network in (False, True) if settings.network else (False,):
        measured = columns.inversion(beside, views, target_NF, names, known=known, network=network)
        yield measured, columns.threat(network, known)


def _exact(
    beside: np.ndarray | None,
    views: Mapping[str, np.ndarray],
    target_NF: np.ndarray,
    settings: Settings,
) -> Iterator[tuple[Measured, Threat]]:
    """Rows and cells that are read exactly."""
    known = settings.known
    found = exact(beside, views, target_NF, known=known, trees=settings.network)
    for what, measured in found.items():
        yield measured, exact_threat(what, known)


def _scored(label: Label) -> tuple[np.ndarray, np.ndarray] | None:
    """Which samples an attack on a class is scored on, and theirs; None: no class, or too few."""
    if label.classes_N is None:
        return None
    indices = np.flatnonzero(label.seen_N)[: labels.MAX_SCORED]
    y = label.classes_N[indices]
    return None if len(y) < 50 or len(np.unique(y)) < 2 else (indices, y)


def _label(
    label: Label,
    channel: Channel,
    views: Mapping[str, np.ndarray],
    observer_columns: np.ndarray | None,
    settings: Settings,
) -> Iterator[tuple[Measured | None, Threat]]:
    """Attack results for one label, from what was seen row by row."""

    def seen_of(rows: np.ndarray) -> tuple[np.ndarray | None, dict[str, np.ndarray]]:
        beside = None if observer_columns is None else observer_columns[rows]
        return beside, {name: each[rows] for name, each in views.items()}

    if label.numbers_NF is not None:
        yield from _inverted(*seen_of(label.seen_N), label.numbers_NF, label.numbers, settings)
    if (scored := _scored(label)) is None:
        return
    indices, y = scored
    beside, at = seen_of(indices)
    if channel.what == "output gradients":
        shown = label.output_of(at["first"] if "first" in at else at["last"])
        yield labels.output_sign(shown, y), labels.OUTPUT_SIGN
        return
    yield labels.clusters(beside, at, y), labels.CLUSTERS
    for known in labels.DRAWS:
        yield labels.completion(beside, at, y, known), labels.completion_threat(known)
    if channel.what == "gradients" and len(np.unique(y)) == 2:
        yield labels.norm(at, y), labels.NORM


def _first_layer(network: nn.Module) -> tuple[nn.Linear, list[int] | None] | None:
    """The layer that reads rows, and which of their columns; None where it is no linear one."""
    if isinstance(network, Columns):
        first = network.common.layers[0]
        assert isinstance(first, nn.Linear)
        return first, network.common_indices
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            return None
        if isinstance(module, nn.Linear):
            # Of several blocks the first extractor reads the first.
            indices = list(range(module.in_features))
            return module, indices if isinstance(network, BlocksNetwork) else None
    return None


def network_of(model: Model, sent: Weights) -> nn.Module | None:
    """The network as the receiver of these weights has it."""
    network = copy.deepcopy(model.network)
    if isinstance(network, Columns):
        write_vector(sent.after["common"], network.common)
        network.unique = None  # the receiver has the common column alone
        return network
    if not isinstance(network, BlocksNetwork):
        return None
    extractors, classifier = sent.after["extractors"], sent.after["classifier"]
    sizes = len(vector_of(network.extractors)), len(classifier_vector(network.classifier))
    if sizes != (len(extractors), len(classifier)):
        return None  # a classifier of its own never left it
    write_vector(extractors, network.extractors)
    load_classifier(network.classifier, classifier)
    return network


def outputs_of(scene: Scene, party: str, network: nn.Module) -> Callable[[Tensor], Tensor]:
    """Function that gives (N, C) class probabilities of a party's rows, all blocks side by side."""
    inside, _ = scene.candidates[party]
    widths = {name: tuple(block.shape[1:]) for name, block in inside.blocks.items()}
    names = list(inside.blocks)

    def probability(x: Tensor) -> Tensor:
        network.eval()
        with torch.no_grad():
            if len(names) == 1:
                outputs = network(x.reshape(len(x), *widths[names[0]]).float())
            else:
                sizes = [int(np.prod(widths[name])) for name in names]
                parts = x.split(sizes, dim=1)
                given = {
                    name: part.reshape(len(x), *widths[name])
                    for name, part in zip(names, parts, strict=True)
                }
                outputs = network(given)
        if outputs.shape[1] == 1:
            return torch.cat([1 - outputs.sigmoid(), outputs.sigmoid()], dim=1)
        return torch.as_tensor(outputs.softmax(dim=1))

    return probability


def joined(data: PartyData) -> Tensor:
    """Rows as one matrix, images in 0..1."""
    return torch.cat(
        [
            block.flatten(1).float() / (255 if block.dtype == torch.uint8 else 1)
            for block in data.blocks.values()
        ],
        dim=1,
    )


def _numpy(x: Tensor | None) -> np.ndarray | None:
    return None if x is None else x.numpy()
