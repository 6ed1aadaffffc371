"""What sections of run files and party files share: strict keys, party names, networks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    SerializerFunctionWrapHandler,
    ValidatorFunctionWrapHandler,
    WrapSerializer,
    WrapValidator,
)
from torch import nn

from dovetail.errors import ConfigError, ModelError
from dovetail.models import TABLE_3, TABLE_4, Convolutional, EncoderSpec, OwnNetwork, Perceptron
from dovetail.settings.section import ADDRESS


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


S = TypeVar("S", bound=BaseModel)


def narrowed(settings: BaseModel, kind: type[S]) -> S:
    """Of these settings what another kind has, such as the paper's of a section that has more."""
    return kind(**settings.model_dump(include=set(kind.model_fields)))


class ConvolutionalSection(Section):
    """A convolutional encoder of one's own."""

    channels: tuple[int, ...]  # of each layer
    kernels: tuple[int, ...]  # width of each layer's
    strides: tuple[int, ...]  # of each layer
    padding: int = 1  # of every layer


EncoderName = Literal["table-3", "table-4"]
AnyEncoder = EncoderName | tuple[int, ...] | ConvolutionalSection

_ENCODERS: Mapping[EncoderName, EncoderSpec] = {"table-3": TABLE_3, "table-4": TABLE_4}


def encoder_spec(field: AnyEncoder | OwnNetwork) -> EncoderSpec:
    """The encoder that a file names: widths, a table of the paper, or layers."""
    if isinstance(field, OwnNetwork):
        return field
    if isinstance(field, str):
        return _ENCODERS[field]
    if isinstance(field, tuple):
        return Perceptron(field)
    return Convolutional(field.channels, field.kernels, field.strides, field.padding)


def _can_be_built(field: AnyEncoder) -> AnyEncoder:
    try:
        encoder_spec(field)
    except ConfigError as error:
        raise ValueError(str(error)) from None
    return field


def own_network(field: Any, rest: ValidatorFunctionWrapHandler) -> Any:
    """A network that is given from Python, or that was in this process; else what a file says."""
    if isinstance(field, OwnNetwork):
        return field
    if isinstance(field, nn.Module) or callable(field):
        return OwnNetwork.given(field)
    if isinstance(field, Mapping) and set(field) == {"own"}:
        try:
            return OwnNetwork.again(str(field["own"]))
        except ModelError as error:
            raise ValueError(str(error)) from None
    return rest(field)


def own_installed(field: Any, rest: ValidatorFunctionWrapHandler) -> Any:
    """The same, or an import path of an installed package."""
    if isinstance(field, str) and ":" in field:
        try:
            return OwnNetwork.installed(field)
        except ConfigError as error:
            raise ValueError(str(error)) from None
    return own_network(field, rest)


def own_written(field: Any, rest: SerializerFunctionWrapHandler) -> Any:
    """Its name, by which this process knows it again."""
    if not isinstance(field, OwnNetwork):
        return rest(field)
    return {"own": field.name}


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


def _party_name(name: str) -> str:
    if not re.fullmatch(r"\w[\w .-]{0,99}", name):
        raise ValueError(
            "a party's name begins with a letter or digit and has letters, digits, blanks, dots "
            f"and dashes only, got {name!r}"
        )
    return name


#: Also the name of a folder, in a run's models/.
PartyName = Annotated[str, AfterValidator(_party_name)]


def _address(text: str) -> str:
    if not ADDRESS.fullmatch(text):
        raise ValueError(f"expected HOST:PORT, for example 0.0.0.0:7443, got {text!r}")
    return text


Address = Annotated[str, AfterValidator(_address)]


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
