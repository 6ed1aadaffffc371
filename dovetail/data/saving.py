"""Parts of a saved model: frozen dataclasses as JSON, checked by pydantic when they are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, Self, TypeVar, get_args, get_type_hints

from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import core_schema

from dovetail.errors import DovetailError, ModelError

T = TypeVar("T")

#: A number that a file says, neither a bool nor NaN; and one above 0.
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Positive = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]


class Saved:
    """A frozen dataclass of numbers, names, tuples of these, and other such dataclasses.

    Attributes:
        kind: its name among those that may be in its place; "": nothing else may.
        kinds: all of them, of one that has several names.
        unsaid: fields that JSON has at other values than their defaults only.
    """

    kind: ClassVar[str] = ""
    kinds: ClassVar[tuple[str, ...]] = ()
    unsaid: ClassVar[tuple[str, ...]] = ()

    def to_json(self) -> dict[str, Any]:
        """JSON that ``from_json`` reads."""
        stored = {"kind": self.kind} if self.kind else {}
        for each in fields(self):  # type: ignore[arg-type]
            value = getattr(self, each.name)
            if each.name not in self.unsaid or value != each.default:
                stored[each.name] = _plain(value)
        return stored

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """Object that ``to_json`` stored.

        Raises:
            ModelError: fields that are missing or cannot be.
        """
        what = f"the model's {cls.kind or cls.__name__}"
        try:
            adapters = _adapters(cls)  # type: ignore[arg-type]
            return cls(
                **{
                    each.name: read_saved(
                        adapters[each.name], stored[each.name], f"{each.name} of {what}"
                    )
                    for each in fields(cls)  # type: ignore[arg-type]
                    if each.name in stored or each.default is MISSING
                }
            )
        except KeyError as error:
            raise ModelError(f"{what} lacks {error}; copy the whole folder again") from None
        except ModelError:
            raise
        except (TypeError, ValueError, DovetailError) as error:
            raise ModelError(f"{what} cannot be read ({error}); save the model again") from None

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> core_schema.CoreSchema:
        """Of another's field: the dataclass itself, or the one of its kind."""
        return core_schema.no_info_plain_validator_function(lambda stored: _inside(cls, stored))


def of_kind(choices: Any, stored: Mapping[str, Any]) -> Any:
    """The one of a union, or of a class' subclasses, whose kind is stored.

    Raises:
        ModelError: an unknown kind, or fields that cannot be.
    """
    classes = get_args(choices) or choices.__subclasses__()
    by_kind = {kind: each for each in classes for kind in each.kinds or [each.kind]}
    kind = stored.get("kind") if isinstance(stored, Mapping) else stored
    if not isinstance(kind, str) or kind not in by_kind:
        raise ModelError(
            f"expected a kind among {', '.join(by_kind)}, got {kind!r}; copy the whole folder again"
        )
    return by_kind[kind].from_json(stored)


def read_saved(adapter: TypeAdapter[T], stored: Any, what: str) -> T:
    """Object that was saved.

    Args:
        adapter: of its type.
        stored: as read from JSON.
        what: it is, in errors.

    Raises:
        ModelError: values that cannot be.
    """
    try:
        return adapter.validate_python(stored)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        got = repr(first["input"])[:200]
        cause = f"{where}: {first['msg'].removeprefix('Value error, ')}, got {got}".lstrip(": ")
        raise ModelError(f"{what} cannot be read ({cause}); save the model again") from None


@cache
def _adapters(cls: type) -> dict[str, TypeAdapter[Any]]:
    """Field -> what reads it."""
    hints = get_type_hints(cls, include_extras=True)
    return {each.name: TypeAdapter(hints[each.name]) for each in fields(cls)}


def _inside(cls: type[Saved], stored: Any) -> Any:
    if not is_dataclass(cls):
        return of_kind(cls, stored)
    names = cls.kinds or (cls.kind,)
    if not isinstance(stored, Mapping) or stored.get("kind", names[0]) not in names:
        raise ValueError(f"expected {cls.kind or cls.__name__}")
    return cls.from_json(stored)


def _plain(value: Any) -> Any:
    if isinstance(value, Saved):
        return value.to_json()
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    return value
