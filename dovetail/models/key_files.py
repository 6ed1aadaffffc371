"""Keys that read what partners answer to a joint model (APFed-S), beside it or at a site.

With a key and what its partner keeps, labels of training can be read: the file is for its owner's
eyes, and does not travel with the model.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import safetensors
import safetensors.torch
from torch import Tensor

from dovetail.errors import ConfigError, ModelError

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
