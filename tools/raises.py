"""Calls of libraries whose errors can leave a public function: ``python -m tools.raises``.

A static walk over ``dovetail/``. Of each function it knows which calls stand in a ``try`` whose
handlers take the library's errors, and whom it calls; a call of a library that a name of
``dovetail/__init__.pyi`` reaches with no such ``try`` on the way is listed. Calls of methods are
resolved by their names: of ``self`` in the class, else wherever few classes have one. What a
variable holds is not known, so a call such as ``connection.execute`` counts by its name alone.

``ALLOWED`` says of calls that are reached why they raise nothing of a user's making. What is not
there ends the command in 1; the fuzz of ``tests/api/test_small_tables.py`` looks for what no walk
can see.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]

#: Library -> the errors that are taken in its place, besides Exception and BaseException. Those
#: that read tables and models, and fit: numpy and torch have what only a slip of ours breaks.
LIBRARIES = {
    "duckdb": {"Error"},
    "lightgbm": {"LightGBMError"},
    "numpy.linalg": {"LinAlgError"},
    "torch.linalg": {"LinAlgError", "_LinAlgError", "RuntimeError"},
    "scipy": {"ValueError", "LinAlgError"},
    "sklearn": {"ValueError"},
    "safetensors": {"SafetensorError"},
    "onnxruntime": set(),
    "onnx": set(),
    "narwhals": {"TypeError"},
    "pandas": {"ValueError"},
    "pyarrow": {"ArrowException", "ArrowInvalid"},
}

#: Functions of numbers alone, which raise nothing.
_PLAIN = (
    *("scipy.special.", "scipy.stats.", "scipy.fft.", "scipy.sparse.", "numpy.linalg.norm"),
    "torch.linalg.vector_norm",
)

#: Methods of library objects that variables hold -> the library.
METHODS = {"execute": "duckdb", "fetchall": "duckdb", "fetchnumpy": "duckdb", "sql": "duckdb"}

#: More classes than this with a method of a name: a call by it alone says nothing.
_MANY = 6


@dataclass(frozen=True)
class Call:
    """A call in a function: of ours by its qualified name, or of a library."""

    name: str
    line: int
    library: str = ""
    taken: frozenset[str] = frozenset()

    def is_taken(self, library: str) -> bool:
        """Whether a ``try`` around it takes the errors of a library."""
        return bool(self.taken & (LIBRARIES[library] | {"Exception", "BaseException"}))


@dataclass
class Function:
    """A function or method, and what it calls."""

    path: Path
    calls: list[Call] = field(default_factory=list)


class _Module(ast.NodeVisitor):
    """Functions of a module."""

    def __init__(self, name: str, path: Path, found: dict[str, Function]) -> None:
        self.name, self.path, self.found = name, path, found
        self.imported: dict[str, str] = {}
        self.inside: list[str] = []
        self.classes: list[str] = []
        self.taken: list[frozenset[str]] = []

    def visit_Import(self, node: ast.Import) -> None:
        for each in node.names:
            self.imported[each.asname or each.name.partition(".")[0]] = (
                each.name if each.asname else each.name.partition(".")[0]
            )

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for each in node.names:
            name = each.asname or each.name  # a module of ours may stand for a library
            self.imported[name] = name if name in LIBRARIES else f"{node.module}.{each.name}"

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.classes.append(node.name)
        self.generic_visit(node)
        self.classes.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if self.inside:  # a function in a function is its part
            self.generic_visit(node)
            return
        self.inside.append(".".join([self.name, *self.classes, node.name]))
        self.found[self.inside[-1]] = Function(self.path)
        self.generic_visit(node)
        self.inside.pop()

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Try(self, node: ast.Try) -> None:
        names = {
            name.attr if isinstance(name, ast.Attribute) else getattr(name, "id", "")
            for handler in node.handlers
            for name in ast.walk(handler.type or ast.Name("Exception"))
        }
        self.taken.append(frozenset(names))
        for statement in node.body:
            self.visit(statement)
        self.taken.pop()
        for other in (*node.handlers, *node.orelse, *node.finalbody):
            self.visit(other)

    def visit_With(self, node: ast.With) -> None:
        """``suppress(...)`` takes errors as a ``try`` does; two of ours take all."""
        names: set[str] = set()
        for item in node.items:
            called = item.context_expr
            if isinstance(called, ast.Call):
                self.visit(called)
                name = getattr(called.func, "id", getattr(called.func, "attr", ""))
                if name == "suppress":
                    names |= {getattr(n, "id", getattr(n, "attr", "")) for n in called.args}
                names |= {"Exception"} if name in ("explained", "rebuilding") else set()
        self.taken.append(frozenset(names))
        for statement in node.body:
            self.visit(statement)
        self.taken.pop()

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        self._add(node.func, node.lineno)
        for each in (*node.args, *(keyword.value for keyword in node.keywords)):
            if isinstance(each, ast.Name | ast.Attribute):  # a function that is handed on
                self._add(each, node.lineno, is_called=False)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """A property is a call, too."""
        self.generic_visit(node)
        self._add(node, node.lineno, is_called=False)

    def _add(self, func: ast.expr, line: int, *, is_called: bool = True) -> None:
        if not self.inside:
            return
        name = self._qualified(func)
        library = next((each for each in LIBRARIES if name.startswith(f"{each}.")), "")
        if not library and is_called and isinstance(func, ast.Attribute):
            library = METHODS.get(func.attr, "")
        if name.startswith(_PLAIN):
            return
        if is_called or not library:
            taken = frozenset().union(*self.taken)
            self.found[self.inside[-1]].calls.append(Call(name, line, library, taken))

    def _qualified(self, func: ast.expr) -> str:
        """As what is imported, or defined here, is called; of what a variable holds ``?.name``."""
        parts: list[str] = []
        while isinstance(func, ast.Attribute):
            parts.append(func.attr)
            func = func.value
        if not isinstance(func, ast.Name):
            return f"?.{parts[0]}" if parts else "?"
        if func.id in ("self", "cls") and self.classes:
            return ".".join([self.name, *self.classes, parts[-1]]) if parts else "?"
        if func.id in self.imported:
            return ".".join([self.imported[func.id], *reversed(parts)])
        return f"?.{parts[0]}" if parts else f"{self.name}.{func.id}"


@cache
def functions() -> dict[str, Function]:
    """Qualified name -> function, of all of ``dovetail/``."""
    found: dict[str, Function] = {}
    for path in sorted((ROOT / "dovetail").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        _Module(name, path, found).visit(ast.parse(path.read_text(encoding="utf-8")))
    return found


def public() -> list[str]:
    """Where each function and class of ``dovetail`` is defined; not those of its modules."""
    tree = ast.parse((ROOT / "dovetail" / "__init__.pyi").read_text(encoding="utf-8"))
    return [
        f"{node.module}.{each.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for each in node.names
        if not _is_module(f"{node.module}.{each.name}")
    ]


def _is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def reached() -> Iterator[tuple[str, Function, Call, str]]:
    """Function, what it calls of a library, and the public name from which errors can leave."""
    known = functions()
    by_method: dict[str, list[str]] = defaultdict(list)
    for name in known:
        by_method[name.rpartition(".")[2]].append(name)

    def targets(call: Call) -> list[str]:
        if call.name in known:
            return [call.name]
        method = call.name.rpartition(".")[2]
        inits = [f"{call.name}.{each}" for each in ("__init__", "__post_init__")]
        if made := [name for name in inits if name in known]:
            return made
        named = by_method[method]
        is_ours = call.name.startswith(("?", "dovetail."))
        return named if is_ours and len(named) <= _MANY else []

    seen: dict[str, set[str]] = {library: set() for library in LIBRARIES}
    for library in LIBRARIES:
        queue: deque[tuple[str, str]] = deque()
        for start in public():
            queue += [
                (name, start) for name in known if name == start or name.startswith(f"{start}.")
            ]
        while queue:
            name, start = queue.popleft()
            if name in seen[library]:
                continue
            seen[library].add(name)
            for call in known[name].calls:
                if call.is_taken(library):
                    continue
                if call.library == library:
                    yield name, known[name], call, start
                elif not call.library:
                    queue += [(target, start) for target in targets(call)]


def report() -> list[str]:
    """A line for each call that is not allowed, and for what is allowed and is not there."""
    lines, used = set(), set()
    for name, function, call, start in reached():
        short = name.removeprefix("dovetail.")
        allowed = {prefix for prefix in ALLOWED if short.startswith(prefix)}
        used |= allowed
        if not allowed:
            where = f"{function.path.relative_to(ROOT)}:{call.line}"
            public_name = start.rpartition(".")[2]
            lines.add(f"{where}: {call.name} ({call.library}), in {short}, from {public_name}")
    return sorted(lines) + [f"ALLOWED: nothing is called in {each}" for each in {*ALLOWED} - used]


def main() -> int:
    lines = report()
    print("\n".join(lines) or "no error of a library leaves a public function")
    return 1 if lines else 0


#: Where a function's name begins so -> why its calls raise nothing of a user's making.
ALLOWED = {
    "api.run.Run.curves": "makes a DataFrame of columns of one length",
    "api.scores.Scores.to_pandas": "makes a DataFrame of columns of one length",
    "audit.attacks.": "fits what an audit made: finite features of its own scenes",
    "companions.service.graph.Graph.": "writes nodes of its own; export runs and checks the graph",
    "companions.survival.analyses.Analysis.to_pandas": "makes a DataFrame of one length",
    "companions.survival.kaplan_meier.Counts.log_rank": "counts, which are finite",
    "data.databases._read_through_duckdb": "opens a database in memory",
    "data.duck.Data.make": "called by read_table and by bodies, which take its errors",
    "data.duck.bounded_cursor": "opens a database in memory",
    "data.duck.lock": "sets settings that there are",
    "data.duck.shared_cursor": "opens a database in memory",
    "data.loaded.Loaded.": "fetches what _run has run, which takes errors",
    "data.vectors.": "counts of words, of which there are some; Words.fit refuses none",
    "methods.facets.views.whitened": "of an audit's finite features",
    "methods.limits.code_rank": "codes, which are checked to be finite",
    "methods.released.ReleasedRows.__init__": "standardised features, which are finite",
    "methods.selection.score": "finite scores of groups",
    "models.calibration._fitted": "scores of a model, which are finite",
    "models.folders.write_keys": "writes tensors of its own",
    "models.learners.": "standardised features; of constant ones boosting splits none",
    "models.matching._match_party": "weights, which messages refuse if they are not finite",
    "models.moments.": "covariances of standardised features",
    "models.onnx_files.open_session": "makes options",
    "models.several_scores.": "as many finite outputs as labels; of one class it says nan",
    "models.smoothers.Smoothing.": "labelled rows, of which a question has at least one; ridge > 0",
    "network.checkpoint.written_state": "writes tensors of its own",
    "privacy.accountant.epsilon": "a root between bounds that are tried first",
    "privacy.labels.in_stages": "finite features, two classes at least",
    "sklearn._Solo.": "scikit-learn's own checks, whose errors its users expect",
}


if __name__ == "__main__":
    sys.exit(main())
