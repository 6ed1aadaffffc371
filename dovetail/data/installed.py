"""Code of a user's own: an import path of an *installed* package, and whether it is trusted.

A saved model names code and holds none. What it names is imported only where this process was told
to: by a party's own file or arguments, or by ``DOVETAIL_ENCODERS``, a list of files, folders and
import paths with commas between.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module, metadata
from typing import Any

from dovetail.errors import ConfigError

#: Files, folders and import paths that saved models may name.
TRUSTED = "DOVETAIL_ENCODERS"

_trusted: set[str] = set()


def trust(path: str) -> None:
    """Let saved models name this import path, in this process."""
    _trusted.add(path)


def is_trusted(path: str) -> bool:
    """Whether a saved model may name this import path."""
    return path in _trusted or path in entries()


def imported(path: str) -> Any:
    """Object that an import path names, of a package that is installed here.

    Raises:
        ConfigError: none, or one that is not installed.
    """
    version_of(path)
    module, _, name = path.partition(":")
    try:
        found = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as error:  # whatever a package's code raises
        raise ConfigError(f"{path} cannot be imported ({type(error).__name__}: {error})") from None
    return found


def version_of(path: str) -> str:
    """The version of an import path's installed package.

    Raises:
        ConfigError: no import path, or a module that no installed package has.
    """
    package = path.partition(":")[0].partition(".")[0]
    if not package.isidentifier() or not path.partition(":")[2]:
        raise ConfigError(
            f"expected the path of an .onnx file, or package.module:Name, got {path!r}"
        )
    for name in _called(package):
        with suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    raise ConfigError(
        f"{path}: no installed package has the module {package!r}; pip install it. Code beside a "
        "file is not run"
    )


def _called(package: str) -> Iterator[str]:
    """Names that the distribution of a package may have, its own name first."""
    yield package
    yield from metadata.packages_distributions().get(package, ())


def tensor_of(output: Any) -> Any:
    """The numbers of what a network gives: a tensor, the first of several, or a Hugging Face
    output's logits, pooled output or mean of the last hidden states."""
    for name in ("logits", "pooler_output"):
        if getattr(output, name, None) is not None:
            return getattr(output, name)
    if getattr(output, "last_hidden_state", None) is not None:
        return output.last_hidden_state.mean(dim=1)
    return output[0] if isinstance(output, tuple) else output


def entries() -> list[str]:
    """Entries that the environment trusts: files, folders and import paths."""
    return [each.strip() for each in os.environ.get(TRUSTED, "").split(",") if each.strip()]
