"""The locks name what constraints.txt pins, each file by its hash."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
LINE = re.compile(r"([a-z0-9-]+)==(\S+) --hash=sha256:[0-9a-f]{64}")


def locked(name):
    lines = (ROOT / name).read_text().splitlines()
    assert lines[0].startswith("# Written by make lock")
    matches = [LINE.fullmatch(line) for line in lines[1:]]
    assert all(matches), "a line without a hash"
    return {each[1]: each[2] for each in matches}


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def pins():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(
        (normal(name), version)
        for name, _, version in (line.partition("==") for line in lines if "==" in line)
    )


def test_a_lock_has_the_versions_of_the_constraints():
    plain, dev = locked("requirements.lock"), locked("requirements-dev.lock")
    assert plain.items() <= dev.items()
    pinned = pins()
    changed = {
        name: (dev[name], pinned[name]) for name in dev.keys() & pinned if dev[name] != pinned[name]
    }
    assert not changed, f"run make lock: {changed}"


def test_a_lock_has_all_that_pyproject_asks_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]

    def asked(texts):
        for text in texts:
            name = re.match(r"[A-Za-z0-9._-]+", text)[0]
            if normal(name) == normal(project["name"]):
                for extra in re.search(r"\[(.*)\]", text)[1].split(","):
                    yield from asked(extras[extra])
            else:
                yield normal(name)

    builds = {"hatchling", "editables"}
    assert {*asked(project["dependencies"]), *builds} <= locked("requirements.lock").keys()
    dev = {*asked(project["dependencies"]), *asked(extras["dev"])}
    missing = dev - locked("requirements-dev.lock").keys()
    assert not missing, f"run make lock: {sorted(missing)}"
