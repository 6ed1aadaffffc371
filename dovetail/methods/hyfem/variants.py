"""What Remark 3 and the experiments vary: whose classifiers are matched, and when.

- ``start = "own"`` begins with classifiers of the parties' own, matched in round 1.
- ``classifier``: "own" shares extractors only (FedPer), "frozen" trains extractors only.
- ``match_rounds``: the assignment is kept from then on.
- ``weights = "even"``: p_m = 1/M.
- ``class_weights``: rows of the output layer count by a party's samples of that class.
- ``scale_blocks``: features are multiplied by the number of all blocks over that of a party's.
- ``loss_weights``: each class counts in Eq. (3) as a run's class_weights say.
- ``held_classes``: Eq. (3)'s softmax is over a party's own classes (FedRS, Li and Zhan 2021), so
  that a round unlearns none that it lacks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dovetail.data import Classification
from dovetail.federated import Federation
from dovetail.methods.hyfem.agreement import Begin, Hello, Ready
from dovetail.methods.hyfem.hyfem import Coordinator, Finish, Member, Round, Train
from dovetail.methods.settings.hyfem import Settings
from dovetail.models import matching
from dovetail.models.blocks import BlocksSpec
from dovetail.models.decisions import class_weights, on
from dovetail.models.vectors import classifier_vector, load_classifier


class VariantMember(Member):
    """A party whose classifier may stay its own, or as it is."""

    config: Settings

    def begin(self, ask: Begin) -> Ready:
        ready = super().begin(ask)
        weights_C = class_weights(self.config.loss_weights, self.task, self.labels)
        self.class_weights_C = on(self.device, weights_C)
        self.network.classifier.requires_grad_(self.config.classifier != "frozen")
        if self.config.classifier == "own":  # it is not pulled to what it never was
            self.config = self.config.model_copy(update={"mu_2": 0.0})
        return ready

    def agree(self, begin: Begin) -> BlocksSpec:
        spec = super().agree(begin)
        return replace(spec, of=begin.num_blocks) if self.config.scale_blocks else spec

    def loss(self, call: Callable[..., Tensor], /, *batch: Any, reduction: str = "mean") -> Tensor:
        if not (self.config.held_classes and isinstance(self.task, Classification)):
            return super().loss(call, *batch, reduction=reduction)
        labels = self.labels[self.labelled.to(self.device)]
        absent_C = torch.bincount(labels, minlength=self.task.num_outputs) == 0

        def of_held(x: Any) -> Tensor:
            return call(x).masked_fill(absent_C, -math.inf)

        return super().loss(of_held, *batch, reduction=reduction)

    @torch.no_grad()
    def take(self, sent: Train | Finish, *, load: bool) -> None:
        network = self.network
        keeps = self.config.classifier if self.started else self.config.start
        mine = classifier_vector(network.classifier)
        super().take(sent, load=load)
        if keeps == "own":
            load_classifier(network.classifier, mine)
        if not self.started:  # nor is one that began apart
            self.w_0 = [each.detach().clone() for each in network.classifier.parameters()]

    def weights(self) -> tuple[Tensor, Tensor]:
        extractors, classifier = super().weights()
        return extractors, classifier if self.config.classifier == "matched" else torch.empty(0)


class VariantCoordinator(Coordinator):
    """A server that may match in some rounds only, or never."""

    config: Settings

    def hello(self) -> Hello:
        return Hello(self.config.class_weights)

    def p(self) -> Mapping[str, float]:
        return self.agreed.weights(even=self.config.weights == "even")

    def round(self, number: int, federation: Federation) -> Round:
        played = super().round(number, federation)
        if self.config.width != "free":
            return played
        return replace(played, metrics={**played.metrics, "widths": list(self.server.widths)})

    def sizes(self, sent: Train) -> dict[str, int]:
        sizes = super().sizes(sent)
        return sizes if self.config.classifier == "matched" else {**sizes, "W": 0}

    def match(self, p: Sequence[float]) -> None:
        if self.config.classifier == "matched":
            super().match(p)

    def assign(
        self,
        w: Sequence[matching.Classifier],
        p: Sequence[float],
        start: matching.Assignments | None,
    ) -> matching.Assignments:
        limit = self.config.match_rounds
        if start is not None and limit is not None and self.combined > limit:
            return start
        from_nothing = self.config.start == "own" and self.combined == 1
        return super().assign(w, p, None if from_nothing else start)

    def output_weights(self) -> np.ndarray | None:
        if self.config.class_weights and self.agreed.num_counted:
            return self.agreed.class_counts().astype(np.float64)
        return None
