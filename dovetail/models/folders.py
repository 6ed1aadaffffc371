"""The folder of a saved network: ``NAME.json`` says what it is, ``NAME.safetensors`` its weights.

It is written whole or not at all, and nothing in it can be executed.

Beside it, or at a site, are keys that read what partners answer to a joint model (APFed-S).
With a key and what its partner keeps, labels of training can be read: the file is for its owner's
eyes, and does not travel with the model.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from dovetail.errors import ConfigError, DovetailError, ModelError

#: Ties the description to its weights.
_SUM = "weights_sha256"


def write_folder(
    folder: str | Path, name: str, description: Mapping[str, Any], network: nn.Module
) -> Path:
    """Write both files; older ones there are replaced.

    Raises:
        ModelError: the folder exists and holds something else.
    """
    folder = Path(folder)
    if folder.exists() and not (folder / f"{name}.json").exists() and any(folder.iterdir()):
        raise ModelError(f"{folder} holds other files; save the model to a folder of its own")
    weights = safetensors.torch.save(
        {
            # A copy, as two names may be one tensor, which safetensors refuses.
            key: value.detach().cpu().contiguous().clone()
            for key, value in network.state_dict().items()
        }
    )
    described = {**description, _SUM: hashlib.sha256(weights).hexdigest()}
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        (fresh / f"{name}.safetensors").write_bytes(weights)
        # It has statistics of the rows: quantiles, rare categories, scores of single rows.
        handle = os.open(fresh / f"{name}.json", os.O_WRONLY | os.O_CREAT, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(json.dumps(described, indent=2) + "\n")
        fresh.chmod(0o755)
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(fresh, folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return folder


def read_folder(
    folder: Path, name: str, *, format: int, absent: str
) -> tuple[dict[str, Any], bytes]:
    """Contents of both files, if they belong together; the sum is not part of the description.

    Args:
        format: the one that is expected.
        absent: what to say where a file is missing; "{}" stands for its name.

    Raises:
        ModelError: files that are missing, cannot be read or do not belong together.
    """
    try:
        description = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        weights = (folder / f"{name}.safetensors").read_bytes()
    except FileNotFoundError as error:
        raise ModelError(f"{folder} {absent.format(Path(error.filename).name)}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{folder}: {name}.json cannot be read ({error})") from None
    if not isinstance(description, dict) or description.get("format") != format:
        raise ModelError(
            f"{folder}/{name}.json: expected format {format}; use the dovetail that wrote it"
        )
    if hashlib.sha256(weights).hexdigest() != description.pop(_SUM, None):
        raise ModelError(
            f"{folder}: {name}.safetensors is not the file that {name}.json was written for; "
            "copy the whole folder again"
        )
    return description, weights


@contextmanager
def rebuilding(folder: Path, name: str) -> Iterator[None]:
    """Whatever goes wrong is a ``ModelError`` of one sentence that names the folder."""
    try:
        yield
    except DovetailError as error:
        raise ModelError(f"{folder}: {error}") from None
    except KeyError as error:
        raise ModelError(
            f"{folder}: {name}.json lacks {error}; copy the whole folder again"
        ) from None
    except (
        AttributeError,
        IndexError,
        TypeError,
        ValueError,
        OverflowError,  # an infinite number of something
        RuntimeError,
        MemoryError,
        safetensors.SafetensorError,
    ) as error:
        cause = textwrap.shorten(str(error), 300, placeholder=" …")  # torch lists every weight
        raise ModelError(f"{folder}: the {name} cannot be rebuilt ({cause})") from None


def rebuilt(
    build: Callable[[], nn.Module],
    tensors: Mapping[str, Tensor],
    check: Callable[[nn.Module], None] = lambda network: None,
    *,
    small: bool = False,
) -> nn.Module:
    """The network with these weights; nothing is drawn from torch's generators.

    First without memory, so that no description makes a network larger than its weights.

    Args:
        build: makes it.
        tensors: its weights.
        check: is given it, in evaluation, without memory; raises where it will not do.
        small: what passes through it is no larger than its weights, so that it may be checked with
            them; without memory the first layer has torch import its compiler, which takes a
            second.

    Raises:
        RuntimeError: it does not fit the weights.
    """
    with torch.device("meta"):
        outline = build().eval()
        if not small:
            check(outline)
    outline.load_state_dict(tensors, assign=True)
    with torch.random.fork_rng(devices=[]):
        network = build()
    network.load_state_dict(tensors)
    if small:
        check(network.eval())
    return network


#: Of a run whose parties are all in one process, beside its joint model.
NAME = "keys.safetensors"

#: Stands for a run id's slashes in a file's name.
_SLASH = "+"


def key_file(folder: Path, run: str) -> Path:
    """Where a site keeps the keys of a run."""
    return folder / f"{run.replace('/', _SLASH)}.safetensors"


def write_keys(path: Path, keys: Mapping[str, Tensor]) -> None:
    """Write partner -> key; nobody but the file's owner reads it.

    Raises:
        ConfigError: it cannot be written.
    """
    data = safetensors.torch.save({name: each.contiguous() for name, each in keys.items()})
    fresh = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        with os.fdopen(os.open(fresh, flags, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
    except OSError as error:
        raise ConfigError(f"cannot write the keys {path}: {error.strerror}") from None


def read_keys(*files: Path) -> dict[str, Tensor]:
    """Partner -> key, of the first of these files that is there.

    Raises:
        ModelError: none is there, or it cannot be read.
    """
    for path in files:
        if not path.exists():
            continue
        try:
            return safetensors.torch.load(path.read_bytes())
        except (OSError, safetensors.SafetensorError) as error:
            raise ModelError(f"{path}: the keys cannot be read ({error})") from None
    raise ModelError(
        "the keys that read partners' answers are not here: they stay in the label owner's site "
        f"({' or '.join(map(str, files))}); predict there, or with the model that needs nobody"
    )
