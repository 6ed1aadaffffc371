"""Every file of the package stays in its room: imports follow the arrows of the table below.

Read by parsing, so that an import inside a function or under ``TYPE_CHECKING`` counts as well.
"""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "dovetail"

#: Room -> the other rooms it may import from. Every room may import ``dovetail.errors``.
ROOMS = {
    "data": set(),
    "network": set(),
    # models -> data is the one exception to the table: a saved model holds the input and the task
    # that its raw columns are read with.
    "models": {"data"},
    "privacy": {"network"},
    "alignment": {"data", "network"},
    "algorithms": {"data", "network", "models", "privacy", "alignment"},
    "evaluation": {"data", "network", "models", "privacy", "alignment", "algorithms"},
    "cli": {"data", "network", "models", "privacy", "alignment", "algorithms", "evaluation"},
}

#: What stands beside the rooms.
BESIDE = {"__init__.py", "__main__.py", "errors.py"}

#: Public name of ``dovetail`` -> the module it stands for.
SHORT_NAMES = {
    "apfed": "dovetail.algorithms.apfed",
    "chfl": "dovetail.algorithms.chfl",
    "hyfem": "dovetail.algorithms.hyfem",
    "selection": "dovetail.algorithms.selection",
    "vertical": "dovetail.algorithms.vertical",
    "load": "dovetail.models.saved",
    "DovetailError": "dovetail.errors",
}

PICKLERS = {"cloudpickle", "dill", "marshal", "pickle", "shelve"}


def module_name(path: Path) -> str:
    """``dovetail.room.file`` of a file below the package."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(tree: ast.AST, module: str, *, is_package: bool) -> set[str]:
    """Full dotted names of all that is imported; ``from a import b`` gives ``a.b``."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                above = parts[: len(parts) - node.level + is_package]
                base = ".".join([*above, base] if base else above)
            names |= {f"{base}.{alias.name}" for alias in node.names}
    return names


def wrong_imports(tree: ast.AST, module: str, *, is_package: bool = False) -> list[str]:
    """What this module imports of ours against the table."""
    _, room, *_ = module.split(".")
    wrong = []
    for name in sorted(imported(tree, module, is_package=is_package)):
        top, *rest = name.split(".")
        if top != "dovetail":
            continue
        if not rest:
            wrong.append(name)  # hides what is used: import the room's module
            continue
        if rest[0] in SHORT_NAMES:
            name = ".".join([SHORT_NAMES[rest[0]], *rest[1:]])
            rest = name.split(".")[1:]
        if rest[0] == "errors":
            allowed = True
        elif rest[0] == "__version__":
            allowed = room in ROOMS
        elif rest[0] == room:
            allowed = room != "algorithms" or name.split(".")[2] == module.split(".")[2]
        else:
            allowed = rest[0] in ROOMS.get(room, set())
        if not allowed:
            wrong.append(name)
    return wrong


def dangerous(tree: ast.AST) -> list[str]:
    """Ways in for code that comes as data: pickles, ``eval``, ``exec``."""
    found = []
    for name in sorted(imported(tree, "", is_package=False)):
        if name.split(".")[0] in PICKLERS or name in {"torch.load", "torch.save"}:
            found.append(f"import of {name}")
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name("torch"), attr="load" | "save" as attribute):
                found.append(f"line {node.lineno}: torch.{attribute}")
            case ast.Call(func=ast.Name("eval" | "exec" | "__import__" as function)):
                found.append(f"line {node.lineno}: {function}()")
            case ast.keyword(arg="allow_pickle", value=value):
                if not (isinstance(value, ast.Constant) and value.value is False):
                    found.append(f"line {value.lineno}: allow_pickle")
    return found


def files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def in_rooms() -> list[Path]:
    return [path for path in files() if path.parent != PACKAGE]


def identify(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def test_every_file_stands_in_a_room_or_beside_them():
    strangers = {
        identify(path)
        for path in files()
        if path.relative_to(PACKAGE).parts[0] not in ROOMS.keys() | BESIDE
    }
    assert strangers == set()


@pytest.mark.parametrize("path", in_rooms(), ids=identify)
def test_imports_follow_the_arrows(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    is_package = path.name == "__init__.py"
    assert wrong_imports(tree, module_name(path), is_package=is_package) == []


def test_errors_import_nothing_of_ours():
    tree = ast.parse((PACKAGE / "errors.py").read_text(encoding="utf-8"))
    names = imported(tree, "dovetail.errors", is_package=False)
    assert [name for name in names if name.split(".")[0] == "dovetail"] == []


@pytest.mark.parametrize("path", files(), ids=identify)
def test_nothing_runs_code_that_came_as_data(path):
    assert dangerous(ast.parse(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    ("module", "line", "wrong"),
    [
        ("dovetail.data.party", "import dovetail.network.engine", ["dovetail.network.engine"]),
        ("dovetail.data.party", "from dovetail import network", ["dovetail.network"]),
        ("dovetail.data.party", "from ..models import saved", ["dovetail.models.saved"]),
        ("dovetail.data.party", "from dovetail import load", ["dovetail.models.saved"]),
        ("dovetail.data.party", "def f():\n    import dovetail", ["dovetail"]),
        ("dovetail.data.party", "from .task import Task", []),
        ("dovetail.data.party", "from dovetail.errors import DataError", []),
        ("dovetail.models.saved", "from dovetail.data import task", []),
        (
            "dovetail.models.saved",
            "from dovetail.network import ledger",
            ["dovetail.network.ledger"],
        ),
        ("dovetail.algorithms.apfed", "from dovetail.models import networks", []),
        (
            "dovetail.algorithms.apfed",
            "from dovetail.algorithms.vertical import train",
            ["dovetail.algorithms.vertical.train"],
        ),
        ("dovetail.algorithms.apfed", "from . import vertical", ["dovetail.algorithms.vertical"]),
        ("dovetail.algorithms.paper.end", "import dovetail.algorithms.paper", []),
        (
            "dovetail.algorithms.paper.end",
            "import dovetail.algorithms.other.end",
            ["dovetail.algorithms.other.end"],
        ),
        ("dovetail.evaluation.rulers", "from dovetail import apfed, vertical", []),
        ("dovetail.evaluation.rulers", "import dovetail.cli.main", ["dovetail.cli.main"]),
        ("dovetail.cli.main", "from dovetail import __version__, evaluation", []),
    ],
)
def test_an_import_against_the_table_is_found(module, line, wrong):
    assert wrong_imports(ast.parse(line), module) == wrong


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from marshal import loads",
        "from torch import load",
        "torch.save(model, path)",
        "numpy.load(path, allow_pickle=True)",
        "numpy.load(path, allow_pickle=trusted)",
        "eval(text)",
        "exec(text)",
    ],
)
def test_a_way_in_for_foreign_code_is_found(line):
    assert len(dangerous(ast.parse(line))) == 1


@pytest.mark.parametrize(
    "line",
    ["model.eval()", "numpy.load(path, allow_pickle=False)", "import safetensors.torch"],
)
def test_harmless_look_alikes_pass(line):
    assert dangerous(ast.parse(line)) == []
