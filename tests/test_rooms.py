"""Every file of the package stays in its room: imports follow the arrows of the table below.

Read by parsing, so that an import inside a function or under ``TYPE_CHECKING`` counts as well.
"""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "dovetail"

#: Rooms from the ground up: each may import those before it.
FLOORS = (
    "settings",
    "data",
    "network",
    "models",
    "privacy",
    "alignment",
    "federated",
    "methods",
    "node",
    "runs",
    "audit",
    "report",
    "api",
    "cli",
    "companions",
)

#: Room -> the other rooms it may import from. Every room may import ``settings``, ``errors``,
#: ``files``, ``lazy``, ``entries`` and ``cluster``.
ROOMS = {room: set(FLOORS[:floor]) for floor, room in enumerate(FLOORS)}
ROOMS["network"] = set()
# models -> data: a saved model holds the input and the task that its raw columns are read with.
ROOMS["models"] = {"data"}
ROOMS["privacy"] = {"network", "models"}
ROOMS["alignment"] = {"data", "network"}

#: Companion -> the other companions it may import from; each may import the whole core.
COMPANIONS: dict[str, set[str]] = {
    "flare": set(),
    "mailbox": {"service"},
    "room": {"service"},
    "service": set(),
    "survival": set(),
}

#: The methods' folders, and a file that is one: none knows another's.
METHODS = ("apfed", "chfl", "fedoptimus", "hyfem", "vertical")

#: What is wired beside a method: classic vertical learning is APFed's baseline.
BESIDE_METHOD = {"apfed": {"vertical"}}

#: What stands beside the rooms.
BESIDE = {
    *("__init__.py", "__main__.py", "cluster.py", "entries.py", "errors.py", "files.py"),
    *("lazy.py", "sklearn.py"),
}

#: Public name of ``dovetail`` -> the module it stands for.
SHORT_NAMES = {
    "apfed": "dovetail.methods.apfed",
    "chfl": "dovetail.methods.chfl.layers",
    "hyfem": "dovetail.methods.hyfem",
    "selection": "dovetail.methods.selection",
    "vertical": "dovetail.methods.vertical",
    "load": "dovetail.models.exported",
    "DovetailError": "dovetail.errors",
}

#: All that settings may import, so that they are read at once.
OF_SETTINGS = {
    *("__future__", "collections", "csv", "dataclasses", "math", "pathlib", "re", "typing"),
    *("pydantic", "dovetail.errors", "dovetail.settings"),
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
        if rest[0] in ("cluster", "entries", "errors", "files", "lazy", "settings"):
            allowed = True
        elif rest[0] == "__version__":
            allowed = room in ROOMS
        elif rest[0] == room == "companions":
            companion = module.split(".")[2]
            allowed = rest[1] in COMPANIONS[companion] | {companion}
        elif rest[0] == room:
            allowed = not knows_another(module, name)
        else:
            allowed = rest[0] in ROOMS.get(room, set())
        if not allowed:
            wrong.append(name)
    return wrong


def method_in(name: str) -> str:
    """The method whose module this is, in its folder or among the settings; "" of none."""
    _, room, *rest = (*name.split("."), "", "")
    return rest[rest[0] == "settings"] if room == "methods" else ""


def knows_another(module: str, name: str) -> bool:
    """Whether a file of one method imports something of another's."""
    room, other = method_in(module), method_in(name)
    if room not in METHODS or other not in METHODS:
        return False
    return room != other and other not in BESIDE_METHOD.get(room, set())


def methods_named(tree: ast.AST, module: str, *, is_package: bool) -> set[str]:
    """Methods whose modules a file imports."""
    return {method_in(name) for name in imported(tree, module, is_package=is_package)} & {*METHODS}


def test_no_other_room_names_a_method() -> None:
    naming = set()  # what others ask of a method stands beside it, named by its record
    for path in in_rooms():
        if path.is_relative_to(PACKAGE / "methods"):
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if methods_named(tree, module_name(path), is_package=path.name == "__init__.py"):
            naming.add(identify(path))
    assert naming == set()


def circles(imports: dict[str, set[str]]) -> list[set[str]]:
    """Files that import each other, directly or by way of others (Tarjan 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    circles_found: list[set[str]] = []

    def visit(file: str) -> None:
        index[file] = low[file] = len(index)
        stack.append(file)
        for other in sorted(imports[file]):
            if other not in index:
                visit(other)
                low[file] = min(low[file], low[other])
            elif other in stack:
                low[file] = min(low[file], index[other])
        if low[file] == index[file]:
            circle = set()
            while not circle or file not in circle:
                circle.add(stack.pop())
            if len(circle) > 1:
                circles_found.append(circle)

    for file in sorted(imports):
        if file not in index:
            visit(file)
    return circles_found


def imports_of_files() -> dict[str, set[str]]:
    """Module -> the modules of this package whose names it imports, also for types alone."""
    modules = {module_name(path): path for path in files()}
    imports = {}
    for module, path in modules.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = imported(tree, module, is_package=path.name == "__init__.py")
        if module == "dovetail":
            names = set()  # its names are read when they are used
        imports[module] = set()
        for name in names:
            while name and name not in modules:  # a name in a module is the module's
                name = name.rpartition(".")[0]
            if name and name not in {module, "dovetail"}:
                imports[module].add(name)
    return imports


def dangerous(tree: ast.AST) -> list[str]:
    """Ways in for code that comes as data: pickles, ``eval``, ``exec``."""
    problems = []
    for name in sorted(imported(tree, "", is_package=False)):
        if name.split(".")[0] in PICKLERS or name in {"torch.load", "torch.save"}:
            problems.append(f"import of {name}")
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name("torch"), attr="load" | "save" as attribute):
                problems.append(f"line {node.lineno}: torch.{attribute}")
            case ast.Call(func=ast.Name("eval" | "exec" | "__import__" as function)):
                problems.append(f"line {node.lineno}: {function}()")
            case ast.keyword(arg="allow_pickle", value=value):
                if not (isinstance(value, ast.Constant) and value.value is False):
                    problems.append(f"line {value.lineno}: allow_pickle")
    return problems


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


@pytest.mark.parametrize("path", sorted((PACKAGE / "settings").glob("*.py")), ids=identify)
def test_settings_import_nothing_that_computes(path):
    names = imported(ast.parse(path.read_text(encoding="utf-8")), "", is_package=False)
    tops = {".".join(each.split(".")[: 1 + each.startswith("dovetail.")]) for each in names}
    assert tops <= OF_SETTINGS


def test_no_files_import_each_other_in_a_circle():
    assert circles(imports_of_files()) == []


def test_a_circle_is_found():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [{"a", "b", "c"}]
    assert circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


@pytest.mark.parametrize("path", files(), ids=identify)
def test_nothing_runs_code_that_came_as_data(path):
    assert dangerous(ast.parse(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    ("module", "line", "wrong"),
    [
        ("dovetail.data.party", "import dovetail.network.engine", ["dovetail.network.engine"]),
        ("dovetail.data.party", "from dovetail import network", ["dovetail.network"]),
        ("dovetail.data.party", "from ..models import saved", ["dovetail.models.saved"]),
        ("dovetail.data.party", "from dovetail import load", ["dovetail.models.exported"]),
        ("dovetail.data.party", "def f():\n    import dovetail", ["dovetail"]),
        ("dovetail.data.party", "from .task import Task", []),
        ("dovetail.data.party", "from dovetail.errors import DataError", []),
        ("dovetail.models.saved", "from dovetail.data import task", []),
        (
            "dovetail.models.saved",
            "from dovetail.network import ledger",
            ["dovetail.network.ledger"],
        ),
        ("dovetail.methods.apfed", "from dovetail.models import networks", []),
        ("dovetail.methods.apfed.variants", "from dovetail.methods import vertical", []),
        (
            "dovetail.methods.chfl",
            "from dovetail.methods.vertical import train",
            ["dovetail.methods.vertical.train"],
        ),
        ("dovetail.methods.chfl", "from .. import hyfem", ["dovetail.methods.hyfem"]),
        ("dovetail.methods.chfl.variant_settings", "import dovetail.methods.chfl", []),
        ("dovetail.methods.chfl.variant_settings", "import dovetail.methods.base", []),
        (
            "dovetail.methods.chfl.variant_settings",
            "import dovetail.methods.hyfem.variant_settings",
            ["dovetail.methods.hyfem.variant_settings"],
        ),
        ("dovetail.node.site_folder", "from dovetail.runs import run", ["dovetail.runs.run"]),
        ("dovetail.runs.baselines", "from dovetail import apfed, vertical", []),
        ("dovetail.runs.baselines", "import dovetail.cli.main", ["dovetail.cli.main"]),
        ("dovetail.cli.main", "from dovetail import __version__, runs", []),
        (
            "dovetail.cli.main",
            "from dovetail.companions import room",
            ["dovetail.companions.room"],
        ),
        ("dovetail.companions.room.serving", "from dovetail.companions.service import rows", []),
        ("dovetail.companions.room.serving", "from dovetail.api import fit", []),
        (
            "dovetail.companions.service.rows",
            "from dovetail.companions import room",
            ["dovetail.companions.room"],
        ),
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
