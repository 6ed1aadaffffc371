"""The networks of both sides, from specs or modules of one's own, within their size."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from dovetail.data import Input, PartyData, Task
from dovetail.errors import ConfigError, MessageError
from dovetail.federated import Local
from dovetail.models import (
    EncoderHead,
    EncoderHeadNetwork,
    EncoderSpec,
    Head,
    Model,
    output_shape,
)
from dovetail.network import State

#: The widest code a passive party accepts: 64 MiB a row.
MAX_CODE_WIDTH = 2**24

#: Makes a passive party's network from the shapes of a code and of its own rows.
NetworkFactory = Callable[[tuple[int, ...], tuple[int, ...]], nn.Module]

#: What a passive party's network is made from.
PartnerSpec = EncoderSpec | nn.Module | NetworkFactory


# --- A passive party's -------------------------------------------------------------------------


def partner_network(
    made: PartnerSpec,
    code_shape: tuple[int, ...],
    projected_width: int,
    row_shape: tuple[int, ...],
    local: Local,
    contrasts: bool,
) -> nn.Module:
    """A passive party's encoder or decoder, on its device.

    Args:
        made: a spec, a module of one's own, or a function of both shapes.
        code_shape, projected_width: what codes look like, as ``apfed.Begin`` says it.
        row_shape: of its own rows.
        local: its context, whose limit a decoder's and a projection's size is held against. A
            function that makes the network is the party's own code, and sees the shapes itself.
        contrasts: it encodes its own rows; else it decodes codes.

    Raises:
        MessageError: no codes look like that, or they ask for too large a network.
        ConfigError: an encoder whose codes have another width than those that come.
    """
    code_width = math.prod(code_shape)
    if (
        not code_shape
        or min(*code_shape, 1 + projected_width) < 1
        or max(code_width, projected_width) > MAX_CODE_WIDTH
    ):
        raise MessageError(
            f"apfed.Begin: no codes have shape {code_shape} and projected width {projected_width}"
        )
    if not contrasts:
        return _decoder(made, code_shape, row_shape, local).to(local.device)
    if isinstance(made, EncoderSpec):
        network: nn.Module = made.encoder(row_shape)
    else:
        network = made if isinstance(made, nn.Module) else made(code_shape, row_shape)
    width = math.prod(output_shape(network, row_shape, torch.device("cpu")))
    if projected_width:
        local.take(4 * (width + 1) * projected_width)
        projection = nn.Linear(width, projected_width)
        return nn.Sequential(network, nn.Flatten(), projection).to(local.device)
    if width != code_width:
        raise ConfigError(
            f"the contrast compares codes of one width: the active party's is {code_width}, "
            "that of this party's encoder is another; change the encoder's last width, or set "
            "projection at the active party"
        )
    return network.to(local.device)


def _decoder(
    made: PartnerSpec,
    code_shape: tuple[int, ...],
    row_shape: tuple[int, ...],
    local: Local,
) -> nn.Module:
    if isinstance(made, nn.Module):
        return made
    if not isinstance(made, EncoderSpec):
        return made(code_shape, row_shape)
    with torch.device("meta"):  # takes no memory, and draws no random number
        sizes = made.decoder(code_shape, row_shape).parameters()
    local.take(sum(each.nbytes for each in sizes))
    return made.decoder(code_shape, row_shape)


# --- The label owner's -------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class SoloNetwork:
    """The label owner's encoder and head, and what a model of them is saved with.

    Attributes:
        networks: "encoder" and "head", and "projection" if codes are projected.
        code_shape: of one row.
        party, task, spec, shapes, inputs, about: of the model.
    """

    networks: nn.ModuleDict
    code_shape: tuple[int, ...]
    party: str
    task: Task
    spec: EncoderHead | None
    shapes: dict[str, tuple[int, ...]]
    inputs: dict[str, Input]
    about: dict[str, Any]

    @classmethod
    def make(
        cls,
        data: PartyData,
        task: Task,
        encoder: EncoderSpec | nn.Module,
        head: Head | nn.Module,
        local: Local,
        projected: int | None,
    ) -> SoloNetwork:
        """With random weights, on the device.

        Args:
            data: the label owner's rows.
            task: what the head predicts.
            encoder, head: specs, or modules of one's own.
            local: the party's context.
            projected: width of codes for who contrasts; None: no projection.
        """
        shape = tuple(data.joined().shape[1:])
        spec: EncoderHead | None = None
        if not isinstance(encoder, nn.Module) and not isinstance(head, nn.Module):
            spec = EncoderHead(encoder, head, shape, task.num_outputs)
        with local.stream("networks"):
            if not isinstance(encoder, nn.Module):
                encoder = encoder.encoder(shape)
            code_shape = output_shape(encoder.to(local.device), shape, local.device)
            width = math.prod(code_shape)
            if not isinstance(head, nn.Module):
                head = head.build(width, task.num_outputs)
        networks = nn.ModuleDict({"encoder": encoder, "head": head})
        if projected:
            with local.stream("projection"):
                networks["projection"] = nn.Linear(width, projected)
        # Several blocks are joined, and nothing says how raw columns become what is joined.
        alone = len(data.blocks) == 1
        block = next(iter(data.blocks)) if alone else "joined"
        about = {"method": "apfed", "seed": local.seed}
        return cls(
            networks.to(local.device),
            code_shape,
            data.name,
            task,
            spec,
            {block: shape},
            dict(data.inputs) if alone else {},
            about | ({} if data.label is None else {"label": data.label}),
        )

    @property
    def encoder(self) -> nn.Module:
        """f_A."""
        return self.networks["encoder"]

    @property
    def head(self) -> nn.Module:
        """g_T."""
        return self.networks["head"]

    @property
    def projection(self) -> nn.Module | None:
        """Linear layer before the contrast; None: there is none."""
        return dict(self.networks).get("projection")

    def bottom(self) -> list[nn.Parameter]:
        """Theta_A: all but the head's."""
        return [*self.encoder.parameters(), *(self.projection or nn.Identity()).parameters()]

    def model(self, networks: nn.ModuleDict) -> Model:
        """A model of these weights: predicts alone, Eq. (11)."""
        network = EncoderHeadNetwork(networks["encoder"], networks["head"])
        return Model(
            self.party, self.task, network, self.spec, self.shapes, self.inputs, self.about
        )

    def state(self) -> State:
        return dict(self.networks.state_dict())

    def restore(self, state: State) -> None:
        """Go on with these weights."""
        self.networks.load_state_dict(state)
