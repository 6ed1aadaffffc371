"""Files that a Dovetail job needs at an NVFlare site: two in its ``local`` folder.

dovetail.toml      which party it is (``job.SiteSection``)
resources.json     NVFlare's own; its class_allow_list must have the classes that a job names
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from dovetail.errors import ConfigError

#: The file of a site's ``local`` folder that says who it is to Dovetail.
SITE_FILE = "dovetail.toml"

CONTROLLER = "nvflare.collab.runtime.controller.CollabController"
EXECUTOR = "nvflare.collab.runtime.executor.CollabExecutor"
DRIVER = "dovetail.companions.flare.job.Driver"
PARTY = "dovetail.companions.flare.job.Party"

#: All classes that a job names: two of NVFlare's, two of Dovetail's.
CLASSES = (CONTROLLER, EXECUTOR, DRIVER, PARTY)


def prepare_site(folder: Path, values: Mapping[str, str | None]) -> list[Path]:
    """Write both files of a site; gives them.

    Args:
        folder: its startup kit, with ``startup`` and ``local``.
        values: keys of dovetail.toml; those that are None are left out.

    Raises:
        ConfigError: it is no such folder, or its resources cannot be read.
    """
    local = folder / "local"
    if not local.is_dir() or not (folder / "startup").is_dir():
        raise ConfigError(
            f"{folder} is no folder of an NVFlare site: expected startup/ and local/, as nvflare "
            "provision makes them"
        )
    settings = {key: value for key, value in values.items() if value is not None}
    path = local / SITE_FILE
    path.write_text(tomli_w.dumps(settings), encoding="utf-8")
    settings_file, default = local / "resources.json", local / "resources.json.default"
    try:
        resources = json.loads(
            (settings_file if settings_file.exists() else default).read_text(encoding="utf-8")
        )
        allowed = resources.setdefault("class_allow_list", [])
        missing = [] if "*" in allowed else [each for each in CLASSES if each not in allowed]
        allowed += missing
    except (OSError, ValueError, AttributeError, TypeError, RecursionError) as error:
        raise ConfigError(
            f"{settings_file} cannot be read as NVFlare's resources ({error})"
        ) from None
    return [path, write_resources(folder, resources)]


def loose(folder: Path) -> list[str]:
    """Sentences on what a site lets jobs build beside Dovetail's four classes; [] for nothing.

    A job's config names classes and their arguments, and NVFlare builds those of class_allow_list
    in a process that may read what the party may.
    """
    try:
        resources = json.loads((folder / "local" / "resources.json").read_text(encoding="utf-8"))
        allowed, mode = resources["class_allow_list"], resources.get("class_list_enforcement_mode")
        others = [each for each in allowed if each not in CLASSES]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return ["resources.json does not say which classes jobs may name, so NVFlare's list holds"]
    if "*" in others:
        return ['"*" of class_allow_list lets whoever may submit jobs run any code here; remove it']
    if mode == "warn":
        return ['class_list_enforcement_mode is "warn", so jobs may run any code here; remove it']
    if others:
        number = f"{len(others)} class{'' if len(others) == 1 else 'es'}"
        return [
            f"jobs may also name {number} of others, which run with this party's rights; a site of "
            "its own, with Dovetail's four alone, is safer"
        ]
    return []


def write_resources(folder: Path, resources: Mapping[str, Any]) -> Path:
    """A site's own resources, instead of the default ones."""
    path = folder / "local" / "resources.json"
    path.write_text(json.dumps(resources, indent=2) + "\n", encoding="utf-8")
    return path
