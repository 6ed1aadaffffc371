"""The methods that a run file can name.

Each is a folder of this room whose ``plugin.py`` has a ``Method``; what files say of it is in
``settings/``, and its settings are a section of run files and party files that has its name. An
installed package can bring more (``table.py``). The names below are imported when first used.
"""

from dovetail.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
