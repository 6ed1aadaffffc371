"""``dovetail``: its commands, each in the file of its name, and those of installed packages.

A command's file is imported when it is run, and what is heavy when its function starts, so that
``dovetail --help`` and ``dovetail train --help`` answer at once.
"""

from __future__ import annotations

import ast
import gc
import os
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

#: The core's commands -> what each does: the first line of its function.
COMMANDS = {
    "demo": "Train with a partner on built-in data, and predict without it.",
    "init": "Write a first party file and run file, from a table and a few answers.",
    "train": "Train what a run file describes; write the run's folder.",
    "propose": "Write a run as one page that every party reads and signs, before it starts.",
    "review": "Read a proposal, compare it with your policy and table, and sign or refuse it.",
    "inspect": "Show which party holds what, and which of the methods fit and why.",
    "align": "Find which rows are the same sample, by private set intersection.",
    "value": "Rank the partners of a run by what they are worth to the party with labels.",
    "audit": "Attack a run's own messages: what could each party learn of the others?",
    "bench": "Make a paper's table, beside the paper's figures (in Dovetail's repository only).",
    "invite": "Cut a new party's part out of a finished HyFEM model; it predicts alone, untrained.",
    "predict": "Predict alone: the model's folder and a table are all it needs.",
    "card": "Write a model's card: columns, rows, method, scores, groups, ledger, hashes.",
    "report": "Write one page about runs: results, curves, inputs, data sent by each party.",
    "schema": "Print the JSON Schema of run files or party files, for editors.",
    "certificates": "Make the certificates that parties on several machines know each other by.",
    "join": "Serve a party: answer drivers until Ctrl-C.",
    "ledger": "Show what left a party and what came; verify, reconcile and prove its record.",
}

#: The papers' tables are no part of the package: this command is there in a checkout of it.
IN_CHECKOUT = {"bench": "benchmarks.bench"}


def function_of(command: str) -> Any:
    """The function of a command, or its Typer of several; imports no other's.

    Raises:
        ConfigError: the command needs Dovetail's repository, and this is an installed package; or
            another package's cannot be loaded.
    """
    if command in COMMANDS:
        return getattr(_module_of(command), command)
    from dovetail.entries import load

    return load("commands", command)


def _module_of(command: str) -> ModuleType:
    name = IN_CHECKOUT.get(command, f"dovetail.cli.{command}")
    root = Path(__file__).parents[2]
    if command in IN_CHECKOUT:
        from dovetail.errors import ConfigError

        if not (root / Path(*name.split("."))).with_suffix(".py").is_file():
            raise ConfigError(
                f"dovetail {command} makes the papers' tables from Dovetail's repository, and "
                "this is an installed package; clone the repository, then pip install -e ."
            )
        if str(root) not in sys.path:
            sys.path.append(str(root))
    return import_module(name)


def others() -> dict[str, str]:
    """Command -> the first line of its docstring, of companions and other packages; unimported."""
    from dovetail.entries import registered

    return {name: _first_line(entry) for name, entry in registered("commands").items()}


def _first_line(entry: EntryPoint) -> str:
    """The first line of a function's docstring, or of its module's."""
    spec = find_spec(entry.module)
    if spec is None or not spec.origin:
        return ""
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    named = [each for each in tree.body if getattr(each, "name", None) == entry.attr]
    kinds = (ast.FunctionDef, ast.Module)
    texts = [ast.get_docstring(each) for each in (*named, tree) if isinstance(each, kinds)]
    return next(filter(None, texts), "").partition("\n")[0]


class _Commands(TyperGroup):
    """Imports the command that is run, and no other."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*COMMANDS, *others()]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        from dovetail.errors import ConfigError
        from dovetail.files import did_you_mean

        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            names = self.list_commands(ctx)
            if args[0] not in names:
                hint = did_you_mean(args[0], names) or "; dovetail --help lists them"
                raise ConfigError(f"there is no command {args[0]!r}{hint}")
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS and cmd_name not in others():
            return None
        from dovetail.cli.command import documented

        command = function_of(cmd_name)
        if not isinstance(command, typer.Typer):
            function, command = command, typer.Typer(add_completion=False, rich_markup_mode=None)
            command.command(cmd_name)(documented(function))
        return typer.main.get_command(command)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([*COMMANDS.items(), *others().items()])


app = typer.Typer(
    name="dovetail",
    cls=_Commands,
    help=(
        "Federated learning for organisations whose columns and rows only partly match.\n\n"
        "Partners help to train; no table leaves its owner; the label owner predicts alone.\n\n"
        "Start with: dovetail demo"
    ),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(show: bool) -> None:
    if show:
        from dovetail import __version__

        print(f"dovetail {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Runs a command; a user's mistake ends in one sentence and exit code 2, Ctrl-C in 130."""
    from dovetail.cli.interrupts import ends_by_ctrl_c
    from dovetail.errors import DovetailError
    from dovetail.files import not_written

    # Nearly all that a run makes is let go by counting: looking for circles after every 700 objects
    # took a twentieth of the demo's processor time.
    gc.set_threshold(50_000, 20, 20)
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what it would print is told by our own errors
    # Threads that share a large product sleep while they wait, and do not spin: on busy cores that
    # halves the time. It is read when PyTorch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        try:
            with ends_by_ctrl_c():
                app()
        finally:
            sys.stdout.flush()  # a reader that is gone is found here, not after main
    except DovetailError as error:
        print(f"dovetail: {error}", file=sys.stderr)
        sys.exit(2)
    except SystemExit as done:  # app always ends in one
        if done.code == 130:
            print("dovetail: stopped; what was finished is kept (see --resume)", file=sys.stderr)
        raise
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:  # a full disk, a folder that may not be written
        if error.errno is None:
            raise
        name = error.filename or _full_output()
        where = f"{name}: " if name else ""
        print(f"dovetail: {where}{not_written(error, Path(name or '.'))}", file=sys.stderr)
        if not error.filename:  # else what is left of the output would fail again at the end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(2)


def _full_output() -> str:
    """The file that the output goes to, if its disk has no room; else ""."""
    number = sys.stdout.fileno()
    path = Path(f"/proc/self/fd/{number}").resolve()
    is_full = path.is_file() and not os.fstatvfs(number).f_bavail
    return str(path) if is_full else ""


if __name__ == "__main__":
    main()
