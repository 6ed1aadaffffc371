"""Columns of which a value becomes several numbers: texts, pictures, categories with many values.

    Words        hashed words, TF-IDF, truncated SVD                    fitted
    Frequency    log(1 + training rows that have the value)             fitted
    Hashed       one of S features and a sign, by the value's hash      fixed
    Frozen       what an encoder gives that the site has            fixed

None looks at the label. What is fixed is the same at every party; what is fitted travels with the
model, as JSON.

Frozen encoders of texts and pictures are run once a content, never trained. One is an ``.onnx``
file, or what an *installed* package calls by an import path: ``package.module:Name``. What is
called is a torch module, a function or an object with ``encode``; a class or a function that is
given arguments is called with these first. Texts come as a list, pictures as (B, 3, P, P)
float32 of 0..1. Each vector is brought to length sqrt(S), so that its numbers are about 1.

A saved model names its encoder and holds no code. A file is taken where its SHA-256 is the same, an
import path only where it is trusted: ``installed.py``.

Letters: B rows of a batch, N rows, S numbers a value, P pixels, W hash buckets that a word of the
training rows fell into.
"""

from __future__ import annotations

import base64
import hashlib
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import ConfigDict, Field

from dovetail.cluster import LOCAL, current
from dovetail.data import installed
from dovetail.data.fitted import NumbersSeen
from dovetail.data.kinds import Column, texts_of
from dovetail.data.tables import distinct
from dovetail.errors import ConfigError, DataError, ModelError
from dovetail.lazy import needed
from dovetail.settings.encode import is_file

_BATCH = 64
#: So many vectors are remembered without a site's folder.
_MOST = 100_000
_memory: dict[bytes, np.ndarray] = {}


@dataclass(frozen=True)
class Frozen:
    """A fixed encoder, and what it reads.

    Attributes:
        model: the absolute path of an ONNX file, or an import path.
        identity: the file's SHA-256; of an import path the package's version.
        size: S.
        reads: "text", or "picture": the names of files in ``folder``.
        arguments: what a class or function is called with.
        folder: of pictures; no other file is opened.
        pixels: P.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    model: str
    identity: str
    size: Annotated[int, Field(ge=1, le=1 << 16)]
    reads: Literal["text", "picture"]
    arguments: Mapping[str, str | int | float | bool]
    folder: str = ""
    pixels: Annotated[int, Field(ge=1, le=4096)] = 224
    by: Literal["frozen"] = "frozen"

    _store: ClassVar[Path | None] = None  # of an encoder that a site opened; saved in no model

    @classmethod
    def trusting(
        cls,
        model: str,
        reads: Literal["text", "picture"],
        texts: np.ndarray,
        *,
        arguments: Mapping[str, str | int | float | bool],
        folder: str,
        pixels: int,
        store: Path | None,
    ) -> Frozen:
        """The encoder that a party itself names.

        Args:
            texts: (N,) of the training rows; the first says how wide a vector is.
            store: the file of vectors that the site keeps; None: they are kept in memory.

        Raises:
            ConfigError: no such encoder, or one that gives no numbers.
        """
        identity = installed.version_of(model) if not is_file(model) else _sum(Path(model))
        installed.trust(model)
        look = cls(model, identity, 1, reads, dict(arguments), folder, pixels)
        made = replace(look, size=look._run([look._content(str(texts[0]))]).shape[1])
        object.__setattr__(made, "_store", store)
        return made

    def shared(self) -> Frozen:
        """As other parties may know it: without this machine's folders."""
        return replace(self, model=Path(self.model).name, folder="")

    def vectors(self, texts: np.ndarray) -> np.ndarray:
        """(N, S) float32 of (N,) texts, or names of pictures.

        Raises:
            ModelError: the encoder is not here, or not the one that the model was trained with.
            DataError: a picture that cannot be read.
        """
        keys = {text: self._key(self._content(text)) for text in dict.fromkeys(texts.tolist())}
        store = self._store
        known = {key: _memory[key] for key in keys.values() if key in _memory}
        if store is not None:
            known |= _read(store, [key for key in keys.values() if key not in known])
        new = [text for text, key in keys.items() if key not in known]
        batches = [new[start : start + _BATCH] for start in range(0, len(new), _BATCH)]
        if batches:
            self._open()  # what is not trusted here is not asked for on the party's cluster
        contents = ([self._content(text) for text in batch] for batch in batches)
        for batch, made in zip(batches, current().map(self._run_trusted, contents), strict=True):
            if made.shape[1] != self.size:
                raise ModelError(
                    f"the encoder {self.model} gives {made.shape[1]} numbers, in training "
                    f"{self.size}; use the version that the model was trained with"
                )
            fresh = dict(zip((keys[text] for text in batch), made, strict=True))
            known |= fresh
            if store is not None:
                _write(store, fresh)
        if len(_memory) + len(known) > _MOST:
            _memory.clear()
        _memory.update(known)
        return np.stack([known[keys[text]] for text in texts.tolist()])

    def refuses(self, text: str) -> str | None:
        """Why a value cannot be read; None where it can. A stranger learns of no folder."""
        if self.reads == "text":
            return None
        try:
            content = self._content(text)
        except DataError:
            return f"there is no picture {text[:60]!r}"
        try:
            _pixels(content, 1)
        except DataError as error:
            return str(error)
        return None

    def _key(self, content: bytes) -> bytes:
        how = repr((self.model, self.identity, sorted(self.arguments.items()), self.pixels))
        return hashlib.blake2b(content, digest_size=24, key=_short(how)).digest()

    def _content(self, text: str) -> bytes:
        """A text's bytes, or those of the picture that it names."""
        if self.reads == "text":
            return text.encode()
        folder = Path(self.folder).resolve()
        path = (folder / text).resolve()
        if not path.is_relative_to(folder) or not path.is_file():
            raise DataError(f"there is no picture {text!r} in {folder}; add it, or leave it empty")
        return path.read_bytes()

    def _open(self) -> Any:
        return _opened(self.model, self.identity, tuple(sorted(self.arguments.items())))

    def _run_trusted(self, contents: Sequence[bytes]) -> np.ndarray:
        """``_run`` on any machine of the party's, which has opened the encoder itself."""
        installed.trust(self.model)
        return self._run(contents)

    def _run(self, contents: Sequence[bytes]) -> np.ndarray:
        """(B, S) float32, each row of length sqrt(S)."""
        given: Any
        if self.reads == "text":
            given = [content.decode() for content in contents]
        else:
            given = np.stack([_pixels(content, self.pixels) for content in contents])
        run = self._open()
        try:
            made = np.asarray(run(given), dtype=np.float32).reshape(len(contents), -1)
        except Exception as error:  # of a stranger's code, of any kind
            raise ConfigError(
                f"the encoder {self.model} cannot read {self.reads}s ({type(error).__name__}: "
                f"{str(error)[:200]})"
            ) from None
        if not np.isfinite(made).all():
            raise ConfigError(f"the encoder {self.model} gives numbers that are not finite")
        length_B1 = np.linalg.norm(made, axis=1, keepdims=True)
        scaled: np.ndarray = made * (np.sqrt(made.shape[1]) / np.maximum(length_B1, 1e-12))
        return scaled.astype(np.float32)


# --- Encoders ------------------------------------------------------------------------------------


@lru_cache(maxsize=8)
def _opened(model: str, identity: str, arguments: tuple[tuple[str, Any], ...]) -> Any:
    """Object that is called with a batch."""
    if not is_file(model):
        if not installed.is_trusted(model):
            raise ModelError(
                f"the model reads a column by {model}, code of a package; if you trust it, name it "
                f"in the environment: {installed.TRUSTED}={model}"
            )
        if installed.version_of(model) != identity:
            raise ModelError(
                f"the model was trained with {model} of version {identity}, here is "
                f"{installed.version_of(model)}; install that version"
            )
        return _called(installed.imported(model), dict(arguments))
    places = [Path(model), *(Path(each) for each in installed.entries())]
    places += [each / Path(model).name for each in places[1:] if each.is_dir()]
    for path in places:
        if path.is_file() and _sum(path) == identity:
            return _onnx(path)
    raise ModelError(
        f"the model reads a column by {model} (SHA-256 {identity[:12]}...), which is not there; "
        f"name the file, or its folder, in the environment: {installed.TRUSTED}=PATH"
    )


def _called(found: Any, arguments: dict[str, Any]) -> Any:
    made = found(**arguments) if arguments or isinstance(found, type) else found
    if isinstance(made, torch.nn.Module):
        made.eval()
    call = getattr(made, "encode", made)

    def run(batch: Any) -> Any:
        given = torch.from_numpy(batch) if isinstance(batch, np.ndarray) else batch
        with torch.no_grad():
            return installed.tensor_of(call(given))

    return run


def _onnx(path: Path) -> Any:
    with needed(str(path), "'dovetail-fl[export]'"):
        import onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(
            path.read_bytes(), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # onnxruntime's own, of several kinds
        raise ConfigError(f"{path} is no ONNX file that onnxruntime runs ({error})") from None
    first = session.get_inputs()[0]

    def run(batch: Any) -> Any:
        given = batch if isinstance(batch, np.ndarray) else np.array(batch, dtype=object)
        if given.ndim == 1 and len(first.shape) == 2:
            given = given[:, None]
        return session.run(None, {first.name: given})[0]

    return run


def _pixels(content: bytes, pixels: int) -> np.ndarray:
    """(3, P, P) float32 of 0..1."""
    import io

    from PIL import Image  # two MB, for pictures alone

    try:
        with Image.open(io.BytesIO(content)) as image:
            shown = image.convert("RGB").resize((pixels, pixels), Image.Resampling.BILINEAR)
    except (OSError, Image.DecompressionBombError) as error:
        raise DataError(f"a picture cannot be read ({error})") from None
    return np.asarray(shown, dtype=np.float32).transpose(2, 0, 1) / 255


@lru_cache(maxsize=32)
def _sum_of(path: Path, stamp: tuple[int, int]) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sum(path: Path) -> str:
    try:
        told = path.stat()
        return _sum_of(path, (told.st_mtime_ns, told.st_size))
    except OSError as error:
        raise ConfigError(f"the encoder {path} cannot be read ({error.strerror})") from None


def _short(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=32).digest()


# --- What a site keeps ---------------------------------------------------------------------------


def _read(store: Path, keys: Sequence[bytes]) -> dict[bytes, np.ndarray]:
    """Those of these vectors that the site has."""
    if not store.exists():
        return {}
    found = {}
    with suppress(sqlite3.Error), closing(sqlite3.connect(store, timeout=60)) as base:
        for key in keys:
            row = base.execute("SELECT vector FROM vectors WHERE key = ?", (key,)).fetchone()
            if row is not None:
                found[key] = np.frombuffer(row[0], dtype="<f4")
    return found


def _write(store: Path, vectors: Mapping[bytes, np.ndarray]) -> None:
    if not store.parent.exists():
        return
    with suppress(sqlite3.Error), closing(sqlite3.connect(store, timeout=60)) as base, base:
        base.execute("CREATE TABLE IF NOT EXISTS vectors (key BLOB PRIMARY KEY, vector BLOB)")
        rows = [(key, vector.astype("<f4").tobytes()) for key, vector in vectors.items()]
        base.executemany("INSERT OR IGNORE INTO vectors VALUES (?, ?)", rows)


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
