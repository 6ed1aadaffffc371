"""Models that predict alone: a party's from its blocks, the server's from those a table has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dovetail.errors import TrainingError
from dovetail.methods.hyfem.hyfem import Coordinator, Member
from dovetail.methods.settings.hyfem import Settings
from dovetail.models import Model
from dovetail.models.blocks import BlocksSpec
from dovetail.models.slices import flattened
from dovetail.models.vectors import load_weights


class ServedMember(Member):
    """A party whose network becomes a model."""

    def model(self) -> Model:
        """The model as it is now: predicts alone.

        Raises:
            TrainingError: training has not begun.
        """
        if self._begun is None:
            raise TrainingError(f"party {self.name!r} has no model before training began")
        return Model(
            party=self.name,
            task=self.task,
            network=self.network,
            spec=self.spec,
            shapes=dict(zip(self.spec.blocks, self.spec.shapes, strict=True)),
            inputs=dict(self.inputs),
            about={"method": "hyfem", "seed": self.local.seed},
        )


class ServedCoordinator(Coordinator):
    """A server whose weights become models."""

    config: Settings

    def model(self) -> Model:
        """The server's model: predicts from all blocks, or from those a table has.

        Raises:
            TrainingError: the parties keep their classifiers, so that the server has none.
        """
        self._check_has_classifier()
        server, blocks = self.server, self.agreed.blocks
        theta = torch.cat([server.extractors[block] for block in blocks])
        spec = self.agreed.spec(blocks, server.widths)
        return self._model(self.name, spec, theta, flattened(server.classifier))

    def model_of(self, party: str) -> Model:
        """A party's slice of the server's model, as ``Finish`` would send it.

        Raises:
            TrainingError: the parties keep their classifiers.
        """
        self._check_has_classifier()
        holding = self.agreed.holdings[party]
        spec = self.agreed.spec(holding.blocks, holding.widths)
        return self._model(party, spec, *self.slice(party))

    def about(self) -> dict[str, Any]:
        """What a model keeps of how it came about."""
        return {"method": "hyfem", "seed": self.seed}

    def _check_has_classifier(self) -> None:
        if self.config.classifier == "own":
            raise TrainingError(
                'the server has no classifier with classifier = "own"; each party has its model'
            )

    def _model(self, party: str, spec: BlocksSpec, theta: Tensor, w: Tensor) -> Model:
        if self.config.scale_blocks:
            spec = replace(spec, of=len(self.agreed.blocks))
        with torch.random.fork_rng(devices=[]):
            network = spec.build()
        with torch.no_grad():
            load_weights(network, theta, w)
        encodings = self.agreed.encodings
        return Model(
            party=party,
            task=self.task,
            network=network.eval(),
            spec=spec,
            shapes=dict(zip(spec.blocks, spec.shapes, strict=True)),
            inputs={block: encodings[block] for block in spec.blocks if block in encodings},
            about=self.about(),
        )
