"""A label owner's top and data owners' bottoms, brought to one place, as one model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dovetail.errors import ConfigError, ModelError
from dovetail.models.owners import Bottom, OwnersNetwork, OwnersSpec, TopSpec, load_bottom
from dovetail.models.saved import Model, load


def open_model(folder: Path) -> Model:
    """The model in a folder; a label owner's joined with the data owners' beside it.

    Raises:
        ModelError: no model, or a label owner's without any data owner's.
    """
    model = load(folder)
    if not isinstance(model.spec, TopSpec):
        return model
    bottoms = [load_bottom(path.parent) for path in sorted(folder.parent.glob("*/bottom.json"))]
    if not bottoms:
        raise ModelError(
            f"{folder} is the model of label owner {model.party!r}, which predicts from data "
            "owners' embeddings; put their folders (with bottom.json) beside it"
        )
    try:
        return join(model, bottoms)
    except ConfigError as error:
        raise ModelError(f"{folder.parent}: {error}") from None


def join(top: Model, bottoms: Sequence[Bottom]) -> Model:
    """A label owner's top and data owners' bottoms as one model.

    Raises:
        ConfigError: embeddings of another width than the top reads, or a top of something else.
    """
    if not isinstance(top.spec, TopSpec):
        raise ConfigError(f"the model of party {top.party!r} is no label owner's top")
    for bottom in bottoms:
        if bottom.embedding != top.spec.embedding:
            raise ConfigError(
                f"data owner {bottom.party!r} gives embeddings of width {bottom.embedding}, the "
                f"top of {top.party!r} reads {top.spec.embedding}; they are not of one run"
            )
    spec = OwnersSpec(
        tuple(bottom.party for bottom in bottoms),
        tuple(tuple(bottom.shape) for bottom in bottoms),
        tuple(bottom.spec for bottom in bottoms),
        top.spec,
    )
    network = OwnersNetwork(spec.owners, [bottom.network for bottom in bottoms], top.network)
    return Model(
        party=top.party,
        task=top.task,
        network=network,
        spec=spec,
        shapes=dict(zip(spec.owners, spec.shapes, strict=True)),
        inputs={bottom.party: bottom.input for bottom in bottoms if bottom.input is not None},
        about=dict(top.about),
    )
