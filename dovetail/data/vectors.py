"""Columns of which a value becomes several numbers: texts, pictures, categories with many values.

    Words        hashed words, TF-IDF, truncated SVD                    fitted
    Frequency    log(1 + training rows that have the value)             fitted
    Hashed       one of S features and a sign, by the value's hash      fixed
    Frozen       what an encoder gives that the site has: ``frozen.py`` fixed

None looks at the label. What is fixed is the same at every party; what is fitted travels with the
model, as JSON.

Letters: N rows, S numbers a value, W hash buckets that a word of the training rows fell into.
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import ConfigDict, Field

from dovetail.cluster import LOCAL, current
from dovetail.data.fitted import NumbersSeen
from dovetail.data.frozen import Frozen
from dovetail.data.kinds import Column, texts_of
from dovetail.data.tables import distinct
from dovetail.errors import DataError

_Size = Annotated[int, Field(ge=1, le=4096)]
_Finite = Annotated[float, Field(allow_inf_nan=False)]

#: Buckets that words are hashed into; those without a training word are not stored.
_BUCKETS = 1 << 14

#: Texts of which words are hashed at a time: about 60 ms.
_AT_ONCE = 1 << 13


@dataclass(frozen=True)
class Words:
    """Latent semantic analysis of hashed words (Deerwester et al. 1990; Weinberger et al. 2009).

    Attributes:
        buckets: (W,) int32, rising, in base64.
        table: (W, 1 + S) float16 in base64: of each bucket the inverse document frequency, and its
            part in each dimension, divided by the dimensions' mean spread over the training rows.
        means: (S,) over the training rows; subtracted.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    buckets: str
    table: str
    means: Annotated[tuple[_Finite, ...], Field(min_length=1, max_length=4096)]
    by: Literal["words"] = "words"

    @property
    def size(self) -> int:
        return len(self.means)

    @classmethod
    def fit(cls, texts: np.ndarray, size: int) -> Words:
        """Of (N,) texts, in ``size`` dimensions or as many as they have.

        Raises:
            DataError: no text has a word.
        """
        from scipy.sparse import vstack
        from sklearn.decomposition import TruncatedSVD

        counts = vstack([*_in_parts(_hashed, texts)], format="csr")
        rows_W = np.bincount(counts.indices, minlength=_BUCKETS)
        buckets = np.flatnonzero(rows_W)
        if not len(buckets):
            raise DataError(
                "no text has a word, which is two or more letters or digits; read it by "
                'kind = "category" or "hash", or leave it out'
            )
        idf_W = np.log((1 + len(texts)) / (1 + rows_W[buckets])) + 1
        rows_NW = _weighted(counts[:, buckets], idf_W)
        directions_WS = np.zeros((len(buckets), 1))
        most = min(size, min(rows_NW.shape) - 1)
        if most > 0:  # more than one text, and more than one word
            svd = TruncatedSVD(most, random_state=0)
            spread_S = svd.fit_transform(rows_NW).std(axis=0)
            if (differs_S := spread_S > 1e-4 * spread_S.max()).any():
                # One scale for all: what hardly varies in training is not blown up.
                scale = np.sqrt((spread_S[differs_S] ** 2).mean())
                directions_WS = svd.components_[differs_S].T / scale
        packed = _packed(buckets, "<i4"), _packed(np.column_stack([idf_W, directions_WS]), "<f2")
        none = (0.0,) * directions_WS.shape[1]
        means = cls(*packed, none).vectors(texts).mean(axis=0, dtype=float)
        return cls(*packed, tuple(means.tolist()))

    def __post_init__(self) -> None:
        _ = self._tables  # a damaged model is refused when it is read

    @cached_property
    def _tables(self) -> tuple[np.ndarray, np.ndarray]:
        buckets, table = _unpacked(self.buckets, "<i4"), _unpacked(self.table, "<f2")
        if table.size != len(buckets) * (1 + self.size):
            raise ValueError("its words need a row of the table for each bucket")
        if not np.isfinite(table).all() or not set(buckets.tolist()) <= set(range(_BUCKETS)):
            raise ValueError("its words have buckets or numbers that cannot be")
        return buckets, table.astype(np.float32).reshape(len(buckets), 1 + self.size)

    def vectors(self, texts: np.ndarray) -> np.ndarray:
        """(N, S) float32 of (N,) texts."""
        return np.concatenate([*_in_parts(self._vectors, texts)])

    def _vectors(self, texts: np.ndarray) -> np.ndarray:
        buckets, table = self._tables
        rows_NW = _weighted(_hashed(texts)[:, buckets], table[:, 0])
        codes_NS = rows_NW @ table[:, 1:] - np.array(self.means)
        return np.asarray(codes_NS, dtype=np.float32)


@dataclass(frozen=True)
class Frequency:
    """How often the training rows have a value: log(1 + rows), standardised; unseen: log(1).

    Attributes:
        rows: a value's hash -> rows that have it; no value is in the model.
        mean, scale: of the logarithm over the training rows.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    rows: Mapping[str, Annotated[int, Field(ge=1)]]
    mean: _Finite
    scale: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    by: Literal["frequency"] = "frequency"
    size: Literal[1] = 1

    @classmethod
    def fit(cls, values: np.ndarray) -> Frequency:
        """Of (N,) values as text."""
        counted = Counter(values.tolist())
        logs = np.repeat(np.log1p([*counted.values()]), [*counted.values()])
        rows = {_digest(value).hex(): count for value, count in counted.items()}
        return cls(rows, float(logs.mean()), float(logs.std()) or 1.0)

    def vectors(self, values: np.ndarray) -> np.ndarray:
        """(N, 1) float32 of (N,) values as text."""
        known, inverse = distinct(values)
        logs = np.log1p([self.rows.get(_digest(value).hex(), 0) for value in known])
        codes = ((logs - self.mean) / self.scale)[inverse][:, None]
        return np.asarray(codes, dtype=np.float32)


@dataclass(frozen=True)
class Hashed:
    """Encoding in which one of ``size`` features is 1 or -1, by the value's hash (Weinberger et al.
    2009)."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    size: _Size = 32
    by: Literal["hash"] = "hash"

    def vectors(self, values: np.ndarray) -> np.ndarray:
        """(N, size) float32 of (N,) values as text."""
        known, inverse = distinct(values)
        codes = np.zeros((len(known), self.size), dtype=np.float32)
        for row, value in enumerate(known):
            number = int.from_bytes(_digest(value), "little")
            codes[row, (number >> 1) % self.size] = 1 - 2 * (number & 1)
        return np.asarray(codes[inverse])

    def shared(self) -> Hashed:
        """As other parties may know it."""
        return self


Fixed = Annotated[Hashed | Frozen, Field(discriminator="by")]
How = Annotated[Words | Frequency | Hashed | Frozen, Field(discriminator="by")]


@dataclass(frozen=True)
class VectorColumn:
    """How a column becomes several features, none of which looks at the label.

    Attributes:
        name: the column's.
        how: what makes them of a text.
        flag: whether there is a feature "is missing".
        seen: how long the training rows' texts were, for those who watch later ones.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    how: How
    flag: bool
    kind: Literal["vector"] = "vector"
    seen: NumbersSeen | None = None

    is_text = True

    @property
    def feature_names(self) -> list[str]:
        numbered = [f"{self.name} {number}" for number in range(1, self.how.size + 1)]
        return [*numbered, *[f"{self.name} is missing"] * self.flag]

    def vectors(self, texts: np.ndarray) -> np.ndarray:
        """(N, S + 1) float32 of (N,) texts: what they become, and 1 where one is "", all else 0."""
        missing = texts == ""
        made = np.zeros((len(texts), self.how.size + 1), dtype=np.float32)
        made[missing, -1] = 1
        if not missing.all():
            made[~missing, :-1] = self.how.vectors(texts[~missing])
        return made

    def features(self, texts: np.ndarray) -> np.ndarray:
        """(N, features) float32 of (N,) texts."""
        made = self.vectors(texts)
        return made if self.flag else made[:, :-1]

    def refuses(self, text: str) -> str | None:
        """Why a value cannot be read; None where it can."""
        return self.how.refuses(text) if text and isinstance(self.how, Frozen) else None

    def encode(
        self, out: np.ndarray, column: Column, where: str, *, allow_unseen: bool = False
    ) -> None:
        """Fill ``out`` (N, features); there is no unseen value."""
        out[:] = self.features(texts_of(column))

    def raw(self, column: Column, where: str) -> np.ndarray:
        """(N,) texts, "" where a value is missing."""
        return texts_of(column)

    def watching(self, column: Column) -> VectorColumn:
        """With what the training rows had."""
        lengths = self.watched(texts_of(column))
        seen = NumbersSeen.of(lengths[~np.isnan(lengths)], int(np.isnan(lengths).sum()))
        return self if seen is None else replace(self, seen=seen)

    def watched(self, texts: np.ndarray) -> np.ndarray:
        """(N,) float64 of what is watched of (N,) texts: their length; NaN where one is ""."""
        return np.array([float(len(text)) or np.nan for text in texts])


def _in_parts(work: Callable[[np.ndarray], Any], texts: np.ndarray) -> Iterator[Any]:
    """``work`` of parts of (N,) texts; of many on the party's own cluster, where it has one."""
    parts = [texts[at : at + _AT_ONCE] for at in range(0, max(1, len(texts)), _AT_ONCE)]
    return (current() if len(parts) > 1 else LOCAL).map(work, parts)


def _hashed(texts: np.ndarray) -> Any:
    """(N, buckets) sparse: how often each text has a word of each bucket."""
    from sklearn.feature_extraction.text import HashingVectorizer

    plain = {"alternate_sign": False, "norm": None, "strip_accents": "unicode"}
    return HashingVectorizer(n_features=_BUCKETS, **plain).transform(texts)


def _weighted(counts: Any, idf_W: np.ndarray) -> Any:
    """(N, W) sparse rows of length 1: TF-IDF, of a word's count the logarithm."""
    from sklearn.preprocessing import normalize

    counts.data = (1 + np.log(counts.data)) * idf_W[counts.indices]
    return normalize(counts)


def _digest(value: str) -> bytes:
    return hashlib.blake2b(value.encode(), digest_size=8).digest()


def _packed(values: np.ndarray, kind: str) -> str:
    return base64.b64encode(values.astype(kind).tobytes()).decode()


def _unpacked(text: str, kind: str) -> np.ndarray:
    values: np.ndarray = np.frombuffer(base64.b64decode(text, validate=True), dtype=kind)
    return values
