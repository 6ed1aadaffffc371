"""Frozen encoders of texts and pictures that a site has: run once a content, never trained.

An ``.onnx`` file, or what an *installed* package calls by an import path: ``package.module:Name``.
What is called is a torch module, a function or an object with ``encode``; a class or a function
that is given arguments is called with these first. Texts come as a list, pictures as (B, 3, P, P)
float32 of 0..1. Each vector is brought to length sqrt(S), so that its numbers are about 1.

A saved model names its encoder and holds no code. A file is taken where its SHA-256 is the same, an
import path only where it is trusted: ``installed.py``.

Letters: B rows of a batch, N rows, S numbers a row, P pixels.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from pydantic import ConfigDict, Field

from dovetail.cluster import current
from dovetail.data import installed
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

    try:
        with Image.open(io.BytesIO(content)) as image:
            shown = image.convert("RGB").resize((pixels, pixels), Image.Resampling.BILINEAR)
    except (UnidentifiedImageError, OSError, Image.DecompressionBombError) as error:
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
