"""What a model is saved with: dataclasses as JSON, checked by pydantic where they are read."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from dovetail.errors import ModelError

T = TypeVar("T")

#: A number that a file says, neither a bool nor NaN; and one above 0.
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Positive = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]


class Saved:
    """A dataclass that is saved as its fields, and as which ``kind`` of its like it is."""

    kind: str

    def to_json(self) -> dict[str, Any]:
        """``kind`` and the fields that are set, JSON-ready."""
        every = {each.name: getattr(self, each.name) for each in fields(self)}  # type: ignore[arg-type]
        stored = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in every.items()
            if value is not None
        }
        return {"kind": self.kind, **stored}


def read_saved(adapter: TypeAdapter[T], stored: Any, what: str) -> T:
    """What was saved.

    Args:
        adapter: of its type.
        stored: as read from JSON.
        what: of the model, in errors.

    Raises:
        ModelError: fields that are missing or cannot be.
    """
    try:
        return adapter.validate_python(stored)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        got = repr(first["input"])[:200]
        cause = f"{where}: {first['msg'].removeprefix('Value error, ')}, got {got}".lstrip(": ")
        raise ModelError(
            f"the model's {what} cannot be read ({cause}); save the model again"
        ) from None
