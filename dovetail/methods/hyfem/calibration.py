"""Classifier calibration (CCVR, Luo et al. 2021; models/moments.py), gated by rows kept for it.

After the last round the server refits its classifier on draws of all classes' features, and keeps
it if more of the rows that parties kept for judging are right.

What leaves a party besides: each class's number of rows, and the mean and covariance of its
features, none of a class of few rows; and how many of the rows that it kept are right.
"""

from __future__ import annotations

import copy
import logging
from typing import Any, ClassVar

import numpy as np
import torch

from dovetail.data import Classification
from dovetail.errors import ConfigError, MessageError
from dovetail.federated import Federation, handles
from dovetail.methods.hyfem import layers
from dovetail.methods.hyfem.agreement import Begin, Ready
from dovetail.methods.hyfem.hyfem import Classifier, Extractors
from dovetail.models import derive_seed, generator
from dovetail.models.blocks import classifier
from dovetail.models.learners import make_folds
from dovetail.models.moments import Moments as ClassMoments
from dovetail.models.moments import moments_of, refitted, together
from dovetail.models.slices import flattened
from dovetail.models.vectors import layers_of, load_classifier, load_extractors
from dovetail.network import Floats, Integers, Message

_log = logging.getLogger(__name__)

#: A party keeps one in so many of its labelled rows for judging.
JUDGED_ONE_IN = 10

# --- What crosses the boundary -----------------------------------------------------------------


class GiveMoments(Message):
    """Server -> party: what are your features, class by class, at these extractors?"""

    family: ClassVar[str] = "hyfem"

    extractors: Extractors


class Moments(Message):
    """Party -> server: of each class its rows, and the mean and covariance of their features.

    Zeros of a class of which it has few.
    """

    family: ClassVar[str] = "hyfem"

    counts_C: Integers
    means_CD: Floats
    covariances_CDD: Floats

    def check(self, **sizes: int) -> None:
        """Refuse what are no counts."""
        super().check(**sizes)
        if len(self.counts_C) and int(self.counts_C.min()) < 0:
            raise MessageError(f"{self.wire_name()}.counts_C: a count is negative")

    def moments(self) -> ClassMoments:
        """As arrays."""
        parts = self.counts_C, self.means_CD.double(), self.covariances_CDD.double()
        return ClassMoments(*(part.cpu().numpy() for part in parts))


class Judge(Message):
    """Server -> party: how right is this slice on the rows that you kept for judging?"""

    family: ClassVar[str] = "hyfem"

    extractors: Extractors
    classifier: Classifier


class Judged(Message):
    """Party -> server: so many of so many rows."""

    family: ClassVar[str] = "hyfem"

    right: int
    num_rows: int

    def check(self, **sizes: int) -> None:
        """Refuse what is no share of rows."""
        if not 0 <= self.right <= self.num_rows:
            what = f"{self.right} of {self.num_rows} rows cannot be right"
            raise MessageError(f"{self.wire_name()}: {what}")


# --- What a party executes ---------------------------------------------------------------------


class Member(layers.Member):
    """A party's side of a run: it sends its features' moments if its own file allows it.

    Attributes:
        learned: (N,) the rows that train, of which the moments are.
    """

    def begin(self, ask: Begin) -> Ready:
        """Make its network, unless its file forbids what the run asks.

        Raises:
            ConfigError: moments are not allowed, or noised weights would not cover them.
        """
        ready = super().begin(ask)
        if not self.config.calibrate:
            return ready
        if not self.data.moments:
            raise ConfigError(
                "refuses to tell means and covariances of its features: the run says "
                "hyfem.calibrate, and its file does not say hyfem.moments = true"
            )
        if self.local.is_private:
            raise ConfigError("hyfem.calibrate tells of rows without noise; leave private out")
        if not isinstance(self.task, Classification):
            raise ConfigError("hyfem.calibrate is for classes, and the labels are numbers")
        return ready

    def training_rows(self) -> torch.Tensor:
        rows, config = super().training_rows(), self.config
        if config.calibrate and not self.keeps_rows() and len(rows) >= JUDGED_ONE_IN:
            labels = self.labels[rows.to(self.device)].cpu()
            seed = derive_seed(self.local.seed, self.name, "judged rows")
            folds = make_folds(labels, JUDGED_ONE_IN, seed=seed)
            rows, self.judged = rows[folds != 0], rows[folds == 0]
        self.learned = rows
        return rows

    @handles(most=3)  # once; a driver that falls as it finishes asks again
    @torch.no_grad()
    def moments(self, message: GiveMoments) -> Moments:
        """First two moments of its features, class by class."""
        if not self.config.calibrate:
            raise ConfigError("is asked for moments in a run without hyfem.calibrate")
        network = copy.deepcopy(self.network).eval()
        load_extractors(network.extractors, message.extractors)
        features = [network.joined(self.batch(rows)[0]) for rows in self.learned.split(1024)]
        labels = self.labels[self.learned.to(self.device)]
        moments = moments_of(torch.cat(features), labels, self.task.num_outputs)
        return Moments(
            torch.from_numpy(moments.counts_C),
            torch.from_numpy(moments.means_CD).float(),
            torch.from_numpy(moments.covariances_CDD).float(),
        )

    @handles(most=6)  # twice; see ``moments``
    @torch.no_grad()
    def judge(self, message: Judge) -> Judged:
        """How many of the rows that did not train are right with this slice."""
        if not self.config.calibrate:
            raise ConfigError("is asked for a judgement in a run without hyfem.calibrate")
        sent = message.extractors, message.classifier
        outputs, labels = self.outputs_of(*sent, self.judged)
        return Judged(int((outputs.argmax(dim=1) == labels).sum()), len(self.judged))


# --- What the server executes ------------------------------------------------------------------


class Coordinator(layers.Coordinator):
    """The server of a run: it refits its classifier when rounds are over.

    Attributes:
        calibrated: whether it is kept, and how many judged rows were right before and after.
    """

    calibrated: dict[str, Any] | None = None

    def about(self) -> dict[str, Any]:
        calibrated = {} if self.calibrated is None else {"calibrated": self.calibrated}
        return {**super().about(), **calibrated}

    def finish(self, federation: Federation) -> None:
        self.settle()  # a mean over rounds is taken, then calibrated, then sent
        if self.config.calibrate and self.config.classifier == "matched":
            self.calibrate(federation)
        super().finish(federation)

    def calibrate(self, federation: Federation) -> None:
        """Refit the classifier; keep it if it is right on more of the parties' judged rows."""
        layout, num_classes = self.agreed.layout, self.task.num_outputs
        spans = layout.spans()
        indices = {
            party: np.concatenate([np.arange(spans[b].start, spans[b].stop) for b in held.blocks])
            for party, held in self.agreed.holdings.items()
        }
        replies = federation.ask(
            {party: GiveMoments(self.slice(party)[0]) for party in indices},
            Moments,
            timeout_s=self.config.timeout_s,
            of_party={party: {"C": num_classes, "D": len(of)} for party, of in indices.items()},
        )
        for party, failure in replies.failures.items():
            _log.warning("%s's moments are left out: %s", party, failure.cause)
        sent = [(reply.moments(), indices[party]) for party, reply in replies.items()]
        before, as_it_was = self._right(federation), self.server.classifier
        if sent and sum(int(moments.counts_C.sum()) for moments, _ in sent):
            whole = classifier(sum(layout.sizes), self.server.widths, num_classes)
            load_classifier(whole, flattened(as_it_was))
            subsets = [[spans[b] for b in held.blocks] for held in self.agreed.holdings.values()]
            of = len(spans) if self.config.scale_blocks else 0
            refitted(
                whole,
                together(sent, sum(layout.sizes)),
                subsets,
                {len(subset): of / len(subset) for subset in subsets} if of else {},
                rng=generator(self.seed, self.name, "calibration"),
            )
            self.server.classifier = layers_of(whole)
        after = self._right(federation)
        kept = after[0] > before[0] and after[1] == before[1]
        if not kept:
            self.server.classifier = as_it_was
        self.calibrated = {"kept": kept, "rows": before[1], "before": before[0], "after": after[0]}
        _log.info("calibration: %s", self.calibrated)

    def _right(self, federation: Federation) -> tuple[int, int]:
        """How many of all parties' judged rows are right with the classifier as it is."""
        asked = {party: Judge(*self.slice(party)) for party in self.agreed.holdings}
        replies = federation.ask(asked, Judged, timeout_s=self.config.timeout_s)
        judged = [(reply.right, reply.num_rows) for reply in replies.fitting().values()]
        return sum(right for right, _ in judged), sum(rows for _, rows in judged)
