"""Models of blocks that predict alone: a party's, the server's, a new party's part of that.

Remark 2: a new party takes its part of a model that others have trained. While the server trains,
``layers.Coordinator.invite`` adds it for the rounds to come. Of a saved model ``part_of`` cuts it
out (``dovetail invite``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dovetail.data import Input, TableEncoder, Task
from dovetail.errors import ConfigError
from dovetail.files import did_you_mean
from dovetail.models import Model
from dovetail.models.blocks import BlocksNetwork, BlocksSpec
from dovetail.models.slices import Layout
from dovetail.models.vectors import extractors_vector, layers_of, load_weights

#: What a part's model keeps of how the server's came about.
_KEPT = ("method", "seed", "label", "learning_rate")


def part_of(model: Model, party: str, blocks: Mapping[str, Sequence[str]]) -> Model:
    """A new party's part of a server's saved model: P_m Theta_0 and, of these blocks, all of w_0.

    Args:
        model: the server's.
        party: whose part it is.
        blocks: block -> its columns, in their order; none where they are not known.

    Raises:
        ConfigError: no server's model, or blocks or columns that it does not have.
    """
    spec, network = model.spec, model.network
    if not (isinstance(spec, BlocksSpec) and isinstance(network, BlocksNetwork)):
        raise ConfigError("this is no server's model of HyFEM, of which a party could take a part")
    if not blocks:
        raise ConfigError(f"party {party!r} has no block; the model's are {list(spec.blocks)}")
    for block, columns in blocks.items():
        if block not in spec.blocks:
            raise ConfigError(
                f"party {party!r} has a block {block!r}, which the server's model does not have; "
                f"its blocks are {list(spec.blocks)}{did_you_mean(block, spec.blocks)}"
            )
        encoder = model.inputs.get(block)
        if columns and isinstance(encoder, TableEncoder) and tuple(columns) != encoder.columns:
            raise ConfigError(
                f"party {party!r}: its block {block!r} has the columns {list(columns)}, the "
                f"server's has {list(encoder.columns)}; a block must be the same at all parties"
            )
    chosen = [spec.blocks.index(block) for block in blocks]
    part = replace(
        spec,
        blocks=tuple(blocks),
        shapes=tuple(spec.shapes[i] for i in chosen),
        extractors=tuple(spec.extractors[i] for i in chosen),
    )
    layout = Layout(dict(zip(spec.blocks, spec.features(), strict=True)), spec.num_outputs)
    everybody = tuple(np.arange(width) for width in spec.widths)
    theta = torch.cat([extractors_vector(network.extractors[i]) for i in chosen])
    w = layout.slice_of(layers_of(network.classifier), part.blocks, everybody)
    about = {key: model.about[key] for key in _KEPT if key in model.about}
    return model_of(party, model.task, loaded(part, theta, w), part, model.inputs, about)


def loaded(spec: BlocksSpec, theta: Tensor, w: Tensor) -> BlocksNetwork:
    """A network with these extractors and this classifier."""
    with torch.random.fork_rng(devices=[]):
        network = spec.build()
    with torch.no_grad():
        load_weights(network, theta, w)
    return network.eval()


def model_of(
    party: str,
    task: Task,
    network: BlocksNetwork,
    spec: BlocksSpec,
    inputs: Mapping[str, Input],
    about: Mapping[str, Any],
) -> Model:
    """A network of blocks as a party uses it alone; ``inputs`` of those blocks that have one."""
    return Model(
        party=party,
        task=task,
        network=network,
        spec=spec,
        shapes=dict(zip(spec.blocks, spec.shapes, strict=True)),
        inputs={block: inputs[block] for block in spec.blocks if block in inputs},
        about=about,
    )
