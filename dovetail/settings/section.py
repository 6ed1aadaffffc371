"""Base of all sections: strict keys, names of parties, addresses."""

from __future__ import annotations

import re
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


S = TypeVar("S", bound=BaseModel)


def narrowed(settings: BaseModel, kind: type[S]) -> S:
    """Of these settings what another kind has, such as the paper's of a section that has more."""
    return kind(**settings.model_dump(include=set(kind.model_fields)))


def _party_name(name: str) -> str:
    if not re.fullmatch(r"\w[\w .-]{0,99}", name):
        raise ValueError(
            "a party's name begins with a letter or digit and has letters, digits, blanks, dots "
            f"and dashes only, got {name!r}"
        )
    return name


#: Also the name of a folder, in a run's models/.
PartyName = Annotated[str, AfterValidator(_party_name)]

#: Where somebody listens, or is dialled.
ADDRESS = re.compile(
    r"(?:\[[0-9A-Fa-f:.]+\]|[\w.-]+):"
    r"(?:[0-5]?\d{1,4}|6[0-4]\d{3}|65[0-4]\d\d|655[0-2]\d|6553[0-5])"
)


def _address(text: str) -> str:
    if not ADDRESS.fullmatch(text):
        raise ValueError(f"expected HOST:PORT, for example 0.0.0.0:7443, got {text!r}")
    return text


Address = Annotated[str, AfterValidator(_address)]

#: How float32 tensors travel; all others travel as they are.
Precision = Literal["float32", "float16", "bfloat16", "int8"]
