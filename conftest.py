"""Docstrings of modules whose extra is not installed are no tests; a broken import elsewhere is an
error."""

from __future__ import annotations

from importlib.util import find_spec

#: Module with a library of an extra -> the library.
_EXTRAS = {"dovetail/experiment/flarejob.py": "nvflare", "dovetail/site/flarehere.py": "psutil"}

collect_ignore = [path for path, library in _EXTRAS.items() if find_spec(library) is None]
