"""What ``import dovetail`` offers, and what it does not load."""

import subprocess
import sys

import pytest

import dovetail

PUBLIC_NAMES = [
    "APFed",
    "Blocks",
    "ByColumn",
    "CHFL",
    "Columns",
    "CommonUnique",
    "DovetailError",
    "FedOptimus",
    "HyFEM",
    "Inspection",
    "Matched",
    "Method",
    "Owners",
    "Partition",
    "Partners",
    "Party",
    "Run",
    "Scores",
    "Simulation",
    "Strips",
    "__version__",
    "align",
    "alignment",
    "apfed",
    "chfl",
    "cox",
    "data",
    "errors",
    "fedoptimus",
    "fit",
    "hyfem",
    "inspect",
    "invite",
    "join",
    "kaplan_meier",
    "listen",
    "load",
    "models",
    "network",
    "runs",
    "selection",
    "simulate",
    "vertical",
]


def test_public_names_are_these():
    assert sorted(dovetail.__all__) == PUBLIC_NAMES
    assert dir(dovetail) == PUBLIC_NAMES


@pytest.mark.parametrize("name", PUBLIC_NAMES)
def test_every_public_name_resolves(name):
    assert getattr(dovetail, name) is not None


def test_short_names_are_the_modules_they_stand_for():
    from dovetail.methods import apfed, vertical
    from dovetail.models.exported import load

    assert dovetail.apfed is apfed
    assert dovetail.vertical is vertical
    assert dovetail.load is load


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'dovetail' has no attribute 'fedavg'"):
        dovetail.fedavg  # noqa: B018


def test_import_alone_loads_nothing_heavy():
    script = (
        "import sys; before = {*sys.modules}; import dovetail; new = {*sys.modules} - before;"
        "ours = {name for name in new if name.partition('.')[0] == 'dovetail'};"
        "others = {name.partition('.')[0] for name in new - ours} - sys.stdlib_module_names;"
        "print(sorted(ours), sorted(others))"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "['dovetail', 'dovetail.errors', 'dovetail.lazy'] []"
