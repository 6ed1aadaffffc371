"""Lazy imports: names of a package, and packages that not all have.

A package's names stand once, in its ``__init__.pyi``, where type checkers and editors read them.
"""

import ast
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from dovetail.errors import ConfigError


def lazy(
    package: str, init: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """``__getattr__``, ``__dir__`` and ``__all__`` of a package.

    Args:
        package: its ``__name__``.
        init: its ``__file__``; what the stub beside it imports are its names.
    """
    stub = ast.parse(Path(init).with_suffix(".pyi").read_text(encoding="utf-8"))
    origins = {
        alias.asname or alias.name: (node.module or package, alias.name)
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    for node in stub.body:  # another name of a module, which a stub's import cannot give
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
            origins[ast.unparse(node.targets[0])] = origins.pop(node.value.id)
    names = sorted(origins)

    def get(name: str) -> Any:
        if name not in origins:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, inside = origins[name]
        home = import_module(module)
        value = vars(home)[inside] if inside in vars(home) else import_module(f"{module}.{inside}")
        vars(import_module(package))[name] = value  # the next use finds it without coming here
        return value

    return get, lambda: names, names


@contextmanager
def needed(what: str, install: str) -> Iterator[None]:
    """Reports what cannot be imported while it is open.

    Args:
        what: needs it.
        install: what ``pip install`` takes.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        yield
    except ImportError:
        raise ConfigError(
            f"{what} needs packages that are not installed here; pip install {install}"
        ) from None
