"""Section of a party's columns: ``[party.encode]`` of its file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from dovetail.settings.section import Section


class Encode(Section):
    """How one column is read."""

    # text: words, or a model's; picture: files by name; hash, frequency: of many values; number: of
    # a date its days alone; date: ISO 8601 or format; category: one feature a value; none: by rules
    kind: Literal["text", "picture", "hash", "frequency", "number", "date", "category"] | None = (
        None
    )
    format: str | None = Field(default=None, max_length=100)  # of dates, such as "%m/%d/%Y"
    decimal: Literal[".", ","] | None = None  # what stands before a number's fraction
    missing: tuple[str, ...] = ()  # texts that stand for no value, besides "" and "?"
    without: tuple[str, ...] = ()  # taken out of a number's text: marks of thousands, units
    lowercase: bool = False  # of categories: those that differ in capitals alone are one
    # of a label with two classes the one that thresholds, precision and recall are of; none: the
    # one that says yes ("ja"), else the second in order
    positive: str | int | None = Field(default=None, exclude_if=lambda value: value is None)
    # a frozen encoder: an .onnx file, or package.module:Name of an installed package
    model: str | None = None
    # what the class or function that is named is called with
    arguments: dict[str, str | int | float | bool] = Field(default_factory=dict)
    size: int = Field(default=32, ge=1, le=4096)  # features of text without a model, and of hash
    folder: str = "."  # of pictures
    pixels: int = Field(default=224, ge=1, le=4096)  # width and height that a model is given

    @model_validator(mode="after")
    def _fits(self) -> Encode:
        if self.model is None and self.kind == "picture":
            raise ValueError(
                "pictures need model = an .onnx file, or package.module:Name of an installed "
                "package"
            )
        if self.model is not None and self.kind not in ("text", "picture"):
            raise ValueError(f"a model reads text or pictures, not kind = {self.kind!r}")
        if self.format is not None and (self.kind != "date" or "%" not in self.format):
            raise ValueError(
                'format is for kind = "date" and says how it is written, such as "%m/%d/%Y"; got '
                f"{self.format!r} for kind = {self.kind!r}"
            )
        if self.without and (self.kind != "number" or "" in self.without):
            raise ValueError(
                'without is for kind = "number" and says what is taken out of its text, such as '
                f'["%"]; got {list(self.without)} for kind = {self.kind!r}'
            )
        return self

    @property
    def is_fixed(self) -> bool:
        """Whether it is the same at each party, whatever its rows are."""
        return self.model is not None or self.kind == "hash"

    @property
    def is_fitted(self) -> bool:
        """Whether it needs the values of one party's training rows."""
        return self.kind in ("text", "frequency") and not self.is_fixed

    def within(self, folder: Path) -> Encode:
        """With absolute paths, of paths from this folder."""
        model = self.model
        if model is not None and is_file(model):
            model = str((folder / model).resolve())
        return self.model_copy(
            update={"model": model, "folder": str((folder / self.folder).resolve())}
        )


@dataclass(frozen=True)
class Asked:
    """Requests of a party for its columns.

    Attributes:
        columns: column -> how it is read.
        store: the file of frozen encoders' vectors that the site keeps; None: in memory.
        events: how events became one row a sample; None: rows were samples.
    """

    columns: Mapping[str, Encode]
    store: Path | None = None
    events: Any = None


def is_file(model: str) -> bool:
    """Whether a frozen encoder is a file, not an import path."""
    return model.lower().endswith(".onnx")
