"""Networks in sections of run files and party files, and ids of runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    SerializerFunctionWrapHandler,
    ValidatorFunctionWrapHandler,
    WrapSerializer,
    WrapValidator,
)

from dovetail.errors import ConfigError, ModelError
from dovetail.settings.models import check_convolutions, check_widths
from dovetail.settings.section import Section

if TYPE_CHECKING:
    from dovetail.models import EncoderSpec, OwnNetwork


class ConvolutionalSection(Section):
    """A convolutional encoder of one's own."""

    channels: tuple[int, ...]  # of each layer
    kernels: tuple[int, ...]  # width of each layer's
    strides: tuple[int, ...]  # of each layer
    padding: int = 1  # of every layer


EncoderName = Literal["table-3", "table-4"]
AnyEncoder = EncoderName | tuple[int, ...] | ConvolutionalSection


def encoder_spec(field: AnyEncoder | OwnNetwork) -> EncoderSpec:
    """The encoder that a file names: widths, a table of the paper, or layers."""
    from dovetail.models import TABLE_3, TABLE_4, Convolutional, Perceptron

    match field:
        case "table-3":
            return TABLE_3
        case "table-4":
            return TABLE_4
        case tuple():
            return Perceptron(field)
        case ConvolutionalSection():
            return Convolutional(field.channels, field.kernels, field.strides, field.padding)
    assert not isinstance(field, str)
    return field


def _can_be_built(field: AnyEncoder) -> AnyEncoder:
    try:
        if isinstance(field, tuple):
            check_widths(field)
        elif isinstance(field, ConvolutionalSection):
            check_convolutions(field.channels, field.kernels, field.strides, field.padding)
    except ConfigError as error:
        raise ValueError(str(error)) from None
    return field


def own_network(field: Any, rest: ValidatorFunctionWrapHandler) -> Any:
    """A network that is given from Python, or that was in this process; else what a file says."""
    again = isinstance(field, Mapping) and set(field) == {"own"}
    if not (again or callable(field) or _is_own(field)):
        return rest(field)
    from dovetail.models import OwnNetwork

    if not again:
        return field if _is_own(field) else OwnNetwork.given(field)
    try:
        return OwnNetwork.again(str(field["own"]))
    except ModelError as error:
        raise ValueError(str(error)) from None


def own_installed(field: Any, rest: ValidatorFunctionWrapHandler) -> Any:
    """Network of ``own``, or an import path of an installed package."""
    if not isinstance(field, str) or ":" not in field:
        return own_network(field, rest)
    from dovetail.models import OwnNetwork

    try:
        return OwnNetwork.installed(field)
    except ConfigError as error:
        raise ValueError(str(error)) from None


def own_written(field: Any, rest: SerializerFunctionWrapHandler) -> Any:
    """Name of the network, by which this process knows it again."""
    return {"own": field.name} if _is_own(field) else rest(field)


def _is_own(field: Any) -> bool:
    """Whether it is an ``OwnNetwork``, which only who has read torch can have made."""
    return getattr(field, "kind", None) == "own"


EncoderField = Annotated[
    AnyEncoder,
    AfterValidator(_can_be_built),
    WrapValidator(own_network),
    WrapSerializer(own_written),
]
#: Of a party's own file: also an import path.
PartyEncoderField = Annotated[
    AnyEncoder,
    AfterValidator(_can_be_built),
    WrapValidator(own_installed),
    WrapSerializer(own_written),
]


def _no_network(field: Any) -> Any:
    raise ValueError(
        "a network of one's own is given from Python, or, in a party's own file, by the import "
        f'path of an installed package, such as "my_package:Encoder"; got {field!r}'
    )


_Refused = Annotated[str, AfterValidator(_no_network)]
#: A network that Python gives, where there is no other.
GivenNetwork = Annotated[_Refused, WrapValidator(own_network), WrapSerializer(own_written)]
#: Of a party's own file: also an import path.
InstalledNetwork = Annotated[_Refused, WrapValidator(own_installed), WrapSerializer(own_written)]


#: A run's id is part of file names.
_RUN = re.compile(r"(?=.{1,200}$)\w[\w.-]*(?:/\w[\w.-]*)*")


def check_run_id(run: str) -> None:
    """Refuse what cannot be part of a file's name.

    Raises:
        ConfigError: what an id is.
    """
    if not _RUN.fullmatch(run):
        raise ConfigError(
            f"refuses the run {run[:200]!r}: an id has at most 200 letters, digits, dots and "
            "dashes, with slashes between its parts"
        )
