"""What a network is rebuilt from, as JSON: its kind, then the fields of a frozen dataclass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from types import NoneType, UnionType
from typing import Any, ClassVar, Self, Union, get_args, get_origin, get_type_hints

from dovetail.errors import DovetailError, ModelError


class AsJson:
    """A frozen dataclass of numbers, names, tuples of these, and other such dataclasses.

    Attributes:
        kind: its name among those that may stand in its place; "": nothing else may.
        kinds: the same, of one that has several names.
        unsaid: fields that JSON has at other values than their defaults only.
    """

    kind: ClassVar[str] = ""
    kinds: ClassVar[tuple[str, ...]] = ()
    unsaid: ClassVar[tuple[str, ...]] = ()

    def to_json(self) -> dict[str, Any]:
        """What ``from_json`` reads."""
        stored = {"kind": self.kind} if self.kind else {}
        for each in fields(self):  # type: ignore[arg-type]
            value = getattr(self, each.name)
            if each.name not in self.unsaid or value != each.default:
                stored[each.name] = _plain(value)
        return stored

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """What ``to_json`` stored.

        Raises:
            ModelError: fields that are missing or cannot be.
        """
        what = f"the model's network of {cls.kind or cls.__name__}"
        try:
            hints, values = get_type_hints(cls), {}
            for each in fields(cls):  # type: ignore[arg-type]
                if each.name in stored or each.default is MISSING:
                    values[each.name] = _read(hints[each.name], stored[each.name])
            return cls(**values)
        except KeyError as error:
            raise ModelError(f"{what} lacks {error}; copy the whole folder again") from None
        except ModelError:
            raise
        except (AttributeError, TypeError, ValueError, OverflowError, DovetailError) as error:
            raise ModelError(f"{what} cannot be read ({error}); save the model again") from None


def of_kind(choices: Any, stored: Mapping[str, Any]) -> Any:
    """The one of a union, or of a class' subclasses, whose kind is stored.

    Raises:
        ModelError: an unknown kind, or fields that cannot be.
    """
    classes = get_args(choices) or choices.__subclasses__()
    by_kind = {kind: each for each in classes for kind in each.kinds or (each.kind,)}
    kind = stored.get("kind")
    if not isinstance(kind, str) or kind not in by_kind:
        raise ModelError(
            f"expected a kind among {', '.join(by_kind)}, got {kind!r}; copy the whole folder again"
        )
    return by_kind[kind].from_json(stored)


def _plain(value: Any) -> Any:
    if isinstance(value, AsJson):
        return value.to_json()
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    return value


def _read(hint: Any, stored: Any) -> Any:
    """A stored value as the field's annotation has it."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        if NoneType not in inner:
            return of_kind(hint, stored)
        if stored is None:
            return None
        (hint,) = (each for each in inner if each is not NoneType)
        return _read(hint, stored)
    if origin is tuple and inner[-1] is not Ellipsis:
        return tuple(_read(each, one) for each, one in zip(inner, stored, strict=True))
    if origin in (tuple, Sequence):
        return tuple(_read(inner[0], each) for each in stored)
    if isinstance(hint, type) and issubclass(hint, AsJson):
        return (
            hint.from_json(stored)
            if "__dataclass_fields__" in vars(hint)
            else of_kind(hint, stored)
        )
    if isinstance(stored, list):  # of any numbers
        return tuple(_read(Any, each) for each in stored)
    return hint(stored) if hint in (bool, float, int, str) else stored
