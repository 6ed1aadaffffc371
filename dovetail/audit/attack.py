"""All attacks on what was kept of one variant of a run."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from dovetail.audit.attacks import columns, factors, labels, membership, rows
from dovetail.audit.attacks.each_label import Label, each_label
from dovetail.audit.tape import Followed, Tape
from dovetail.audit.verdict import Finding, Measured, finding
from dovetail.data import Classification, PartyData
from dovetail.methods.facets.scene import Scene
from dovetail.methods.facets.seen import Channel, Weights
from dovetail.methods.facets.steering import KNOWN, Threat
from dovetail.models import Model
from dovetail.models.blocks import BlocksNetwork
from dovetail.models.columns import Columns
from dovetail.models.vectors import classifier_vector, load_classifier, vector_of, write_vector

#: Where there are more channels of one kind (label owners x data owners), so many are attacked.
MAX_ALIKE = 6

#: What is looked for of times to an event.


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


def _nobody(_: str) -> None:
    """Is told how far it is."""


def attack(
    variant: str,
    scene: Scene,
    tape: Tape,
    models: Mapping[str, Model],
    settings: Settings,
    print_line: Callable[[str], None] = _nobody,
) -> list[Finding]:
    """What was found, channel by channel, then of weights and of models."""
    findings: list[Finding] = []
    alike: dict[tuple[str, bool], int] = {}
    for channel in tape.tables:
        if channel.owner not in scene.parties:  # a mean over owners whose rows are in other places
            continue
        has_labels = scene.parties[channel.owner].labels_N is not None
        kind = channel.what, has_labels
        alike[kind] = alike.get(kind, 0) + 1
        if alike[kind] <= MAX_ALIKE:
            print_line(f"{variant}: {channel.observer} attacks {channel.what} of {channel.owner}")
            findings += _channel(variant, scene, tape, channel, settings)
    for channel, followed in list(tape.logits.items())[:MAX_ALIKE]:
        findings += _factorised(variant, scene, channel, followed, settings, print_line)
    for (observer, owner), kept in list(tape.weights.items())[:MAX_ALIKE]:
        findings += _weights(variant, scene, observer, owner, kept, models.get(owner), print_line)
    for party, model in models.items():
        if party in scene.candidates:
            findings += _model(variant, scene, party, model, print_line)
    return findings


def _channel(
    variant: str, scene: Scene, tape: Tape, channel: Channel, settings: Settings
) -> Iterator[Finding]:
    """Labels and columns from what was seen row by row."""
    samples, tensors = tape.tables[channel].views()
    views = {name: each.numpy() for name, each in tensors.items()}
    observer_columns = _numpy(scene.columns_of(channel.observer, channel.order, samples))

    def findings_of(
        measured: Measured | None, threat: Threat, target: str, note: str = ""
    ) -> Iterator[Finding]:
        if measured is not None:
            yield finding(
                measured, threat, variant=variant, observer=channel.observer, owner=channel.owner,
                channel=channel.what, target=target, note=note,
            )  # fmt: skip

    truth = scene.labels_of(channel.owner, channel.order, samples)
    for label in [] if truth is None else each_label(scene.task, truth):
        for measured, threat in _label(label, channel, views, observer_columns, settings):
            yield from findings_of(measured, label.named(threat), "labels")
    if channel.what == "codes" and truth is None:
        yield from _completed(variant, scene, channel, samples, views)
    target = scene.columns_of(channel.owner, channel.order, samples)
    if target is not None and channel.what != "output gradients":
        names = scene.parties[channel.owner].columns
        for network in (False, True) if settings.network else (False,):
            measured_ = columns.inversion(
                observer_columns,
                views,
                target.numpy(),
                names,
                known=settings.known,
                network=network,
            )
            yield from findings_of(measured_, columns.threat(network, settings.known), "columns")


def _label(
    label: Label,
    channel: Channel,
    views: Mapping[str, np.ndarray],
    observer_columns: np.ndarray | None,
    settings: Settings,
) -> Iterator[tuple[Measured | None, Threat]]:
    """One label from what was seen row by row."""
    if label.numbers_NF is not None:
        at = {name: each[label.seen_N] for name, each in views.items()}
        beside = None if observer_columns is None else observer_columns[label.seen_N]
        for network in (False, True) if settings.network else (False,):
            found = columns.inversion(
                beside, at, label.numbers_NF, label.numbers, known=settings.known, network=network
            )
            yield found, columns.threat(network, settings.known)
        return
    assert label.classes_N is not None
    indices = np.flatnonzero(label.seen_N)[: labels.MAX_SCORED]
    y = label.classes_N[indices]
    at = {name: each[indices] for name, each in views.items()}
    beside = None if observer_columns is None else observer_columns[indices]
    if len(y) < 50 or len(np.unique(y)) < 2:
        return
    if channel.what == "output gradients":
        shown = label.output_of(at["first"] if "first" in at else at["last"])
        yield labels.output_sign(shown, y), labels.OUTPUT_SIGN
        return
    yield labels.clusters(beside, at, y), labels.CLUSTERS
    for known in labels.DRAWS:
        yield labels.completion(beside, at, y, known), labels.completion_threat(known)
    if channel.what == "gradients" and len(np.unique(y)) == 2:
        yield labels.norm(at, y), labels.NORM


def _factorised(
    variant: str,
    scene: Scene,
    channel: Channel,
    followed: Followed,
    settings: Settings,
    print_line: Callable[[str], None],
) -> Iterator[Finding]:
    """Columns from the owner's logits of all steps."""
    samples = followed.samples
    target = scene.columns_of(channel.owner, channel.order, samples)
    if target is None:
        return
    columns = _numpy(scene.columns_of(channel.observer, channel.order, samples))
    names = scene.parties[channel.owner].columns
    others = factors.KNOWN if settings.network and settings.others_known else {}
    for known, draws in {settings.known: 1, **others}.items():
        measured = factors.rebuilt(
            columns, factors.Measurements(*followed.steps()), target.numpy(), names,
            known=known, draws=draws, print_line=lambda text: print_line(f"{variant}: {text}"),
        )  # fmt: skip
        if measured is not None:
            yield finding(
                measured, factors.threat(known), variant=variant, observer=channel.observer,
                owner=channel.owner, channel=channel.what, target="columns",
            )  # fmt: skip


def _completed(
    variant: str, scene: Scene, channel: Channel, samples: Tensor, views: Mapping[str, np.ndarray]
) -> Iterator[Finding]:
    """Labels from the codes that a partner computes itself, by a network that labels trained."""
    truth = scene.labels_of(channel.observer, channel.order, samples)
    columns = scene.columns_of(channel.owner, channel.order, samples)
    if truth is None or columns is None:
        return
    for label in each_label(scene.task, truth):
        if label.classes_N is None:
            continue
        indices = np.flatnonzero(label.seen_N)[: labels.MAX_SCORED]
        y, last = label.classes_N[indices], {"last": views["last"][indices]}
        if len(y) < 50 or len(np.unique(y)) < 2:
            continue
        for known in labels.DRAWS:
            measured = labels.completion(columns.numpy()[indices], last, y, known)
            if measured is not None:
                yield finding(
                    measured, label.named(labels.completion_threat(known)), variant=variant,
                    observer=channel.owner, owner=channel.observer, channel="its own encoder",
                    target="labels",
                )  # fmt: skip


def _weights(
    variant: str,
    scene: Scene,
    observer: str,
    owner: str,
    kept: list[Weights],
    model: Model | None,
    print_line: Callable[[str], None],
) -> Iterator[Finding]:
    """Rows from the first round's change, membership from the last round's weights."""
    held = scene.parties[owner]
    first, last = kept[0], kept[-1]
    if model is None:
        return
    about = {"variant": variant, "observer": observer, "owner": owner, "channel": "weights"}
    network = copy.deepcopy(model.network)
    layer = _first_layer(network)
    if layer is not None and held.x_NF is not None:
        (linear, indices) = layer
        name = "common" if "common" in first.after else "extractors"
        delta = first.after[name] - first.before[name]
        size = linear.weight.numel()
        if len(delta) >= size + linear.out_features and linear.bias is not None:
            x = held.x_NF if indices is None else held.x_NF[:, indices]
            change = delta[:size].view_as(linear.weight).numpy()
            bias = delta[size : size + linear.out_features].numpy()
            if x.shape[1] == linear.in_features:
                measured = rows.rows(change, bias, x.numpy())
                if measured is not None:
                    yield finding(measured, rows.THREAT, target="rows", **about)
    if owner in scene.candidates and isinstance(scene.task, Classification):
        shown = network_of(model, last)
        if shown is not None:
            of = "the weights it sent last"
            yield from _membership(scene, owner, shown, of, about, print_line)


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


def _model(
    variant: str, scene: Scene, party: str, model: Model, print_line: Callable[[str], None]
) -> Iterator[Finding]:
    """Membership from the model that a party uses alone."""
    if not isinstance(scene.task, Classification) or not scene.candidates[party][0].blocks:
        return
    about = {
        "variant": variant,
        "observer": "who has the model",
        "owner": party,
        "channel": "model",
    }
    yield from _membership(scene, party, model.network, "the solo model", about, print_line)


def outputs_of(scene: Scene, party: str, network: nn.Module) -> Callable[[Tensor], Tensor]:
    """What tells (N, C) class probabilities of a party's rows, all blocks side by side."""
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


def _membership(
    scene: Scene,
    party: str,
    network: nn.Module,
    of: str,
    about: Mapping[str, str],
    print_line: Callable[[str], None],
) -> Iterator[Finding]:
    inside, outside = scene.candidates[party]
    assert inside.labels is not None
    assert outside.labels is not None
    result = membership.membership(
        outputs_of(scene, party, network),
        (joined(inside), inside.labels),
        (joined(outside), outside.labels),
        print_line=lambda text: print_line(f"{about['variant']}: {text}, for who was trained on"),
    )
    if result is None:
        return
    measured, epsilon = result
    note = f"a run that is epsilon-DP has an epsilon of {epsilon:.2f} or more (95 %)"
    yield finding(
        measured, membership.threat(of), target="membership",
        note=note if epsilon else "", **about,
    )  # fmt: skip


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
