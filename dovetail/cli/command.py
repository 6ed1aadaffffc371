"""A command is its annotated Python function: its parameters are the options, its docstring is the
help.

What a command does for a function of ``api/`` is written there: names, types, defaults and help of
its options are read from that function's source, as a type checker does, so that ``dovetail audit
--help`` and a mistake import no library."""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from functools import wraps
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, get_args, get_origin

import typer

from dovetail.cli.options import SHARED

PACKAGE = Path(__file__).parents[1]

#: A type of one word that an option may have.
_KINDS = {"bool": bool, "float": float, "int": int, "str": str}

_NONE: Mapping[str, Any] = MappingProxyType({})

Command = Callable[..., None]
Parameters = dict[str, inspect.Parameter]


def command_of(
    function: str, *, names: Mapping[str, str] = _NONE, least: Mapping[str, int] = _NONE
) -> Callable[[Command], Command]:
    """Makes a command of a function, such as "api.auditing:audit", and of what it does beside it.

    What is decorated gets first ``call``: it calls the function with what the command line says
    and shows the result, or prints its JSON. Its own parameters are options, too, instead of
    the function's of the same name; what it passes to ``call`` by name replaces what was given.

    Args:
        function: module below ``dovetail``, and the function's name.
        names: parameter -> its option, where that is called otherwise.
        least: parameter -> the least number that is taken.
    """
    module, _, name = function.partition(":")

    def decorate(command: Command) -> Command:
        local = dict(inspect.signature(command, eval_str=True).parameters)
        del local["call"]
        known = dict(_parameters(_source(module, name), names, least, local))
        shown = {name: _of(name, bool, False) for name in ("quiet", "as_json")}
        parameters: Parameters = {**known, **local, **shown}

        @wraps(command)
        def typed(**values: Any) -> None:
            silent = values["quiet"] or values["as_json"]
            given = {key: values[key] for key in known if values[key] is not None}

            def call(**changes: Any) -> Any:
                from dovetail.cli.output import show

                called = getattr(import_module(f"dovetail.{module}"), name)
                result = called(**{**given, "quiet": silent, **changes})
                if values["as_json"]:
                    print(json.dumps(result.to_json(), indent=2))
                elif not silent:
                    show(result)
                return result

            command(call, **{key: values[key] for key in local})

        keyword = inspect.Parameter.KEYWORD_ONLY
        signature = inspect.Signature([each.replace(kind=keyword) for each in parameters.values()])
        typed.__signature__ = signature  # type: ignore[attr-defined]
        typed.__annotations__ = {key: each.annotation for key, each in parameters.items()}
        return typed

    return decorate


def documented(command: Command) -> Command:
    """The command with the help that its docstring has.

    ``Args`` says what each option is, or ``SHARED`` of those that several commands have. A
    parameter without a default is an argument, one that is false by default a flag.
    """
    about, _, args = (inspect.getdoc(command) or "").partition("\n\nArgs:\n")
    help_of = dict(_help(f"\nArgs:\n{args}"))
    parameters = inspect.signature(command, eval_str=True).parameters
    typed = [_with_help(each, help_of.get(name)) for name, each in parameters.items()]
    command.__doc__ = about
    command.__annotations__ = {each.name: each.annotation for each in typed}
    command.__signature__ = inspect.Signature(typed)  # type: ignore[attr-defined]
    return command


def _with_help(parameter: inspect.Parameter, text: str | None) -> inspect.Parameter:
    """A parameter as Typer reads it; one that says its help itself stays as it is."""
    kind, info = parameter.annotation, None
    if get_origin(kind) is Annotated:
        kind, info = get_args(kind)
    option: Any
    if text is None:
        option = info or SHARED[parameter.name]
        return parameter.replace(annotation=Annotated[kind, option])
    if info is not None:
        option = copy(info)
    elif parameter.default is inspect.Parameter.empty:
        option = typer.Argument()
    elif parameter.default is False:
        option = typer.Option(f"--{parameter.name.replace('_', '-')}")
    else:
        option = typer.Option()
    option.help = text
    return parameter.replace(annotation=Annotated[kind, option])


def _of(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


def _source(module: str, name: str) -> ast.FunctionDef:
    path = PACKAGE.joinpath(*module.split(".")).with_suffix(".py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return next(
        each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name == name
    )


def _parameters(
    function: ast.FunctionDef, names: Mapping[str, str], least: Mapping[str, int], local: Parameters
) -> Iterator[tuple[str, inspect.Parameter]]:
    """Those of a function as options; of those without a default, as arguments."""
    help_of = dict(_help(ast.get_docstring(function) or ""))
    args = function.args
    without = [None] * (len(args.args) - len(args.defaults))
    defaults = [*without, *args.defaults, *args.kw_defaults]
    for each, default in zip([*args.args, *args.kwonlyargs], defaults, strict=True):
        key = each.arg
        if key in local:
            yield key, local[key]
        elif key != "quiet" and each.annotation is not None and default is not None:
            kind, metavar = _kind(ast.unparse(each.annotation))
            value = ast.literal_eval(default)
            flag = names.get(key) or f"--{key.replace('_', '-')}" + f"/--no-{key}" * (value is True)
            said = typer.Option(flag, help=help_of[key], metavar=metavar, min=least.get(key))
            yield key, _of(key, Annotated[kind, said], None if value == () else value)


def _kind(text: str) -> tuple[Any, str | None]:
    """The type of an option, of an annotation's text, and what stands for its value.

    Of several words any text is taken: the function says which it knows.

    >>> _kind("Sequence[str]"), _kind("int | None"), _kind("Literal['none', 'low']")
    ((list[str] | None, None), (int | None, None), (<class 'str'>, 'none|low'))
    """
    first, *others = text.split(" | ")
    if first.startswith("Literal"):
        return str, "|".join(ast.literal_eval(first.removeprefix("Literal")))
    if first == "Sequence[str]":
        return list[str] | None, None
    return (_KINDS[first] | None if "None" in others else _KINDS[first]), None


def _help(docstring: str) -> Iterator[tuple[str, str]]:
    """Parameter -> what the docstring says of it; what nothing stands for, in brackets.

    >>> dict(_help("Does.\\n\\nArgs:\\n    seeds: how many; None:\\n        all.\\n\\nRaises:\\n"))
    {'seeds': 'How many. [all]'}
    """
    _, _, args = docstring.partition("\nArgs:\n")
    args, _, _ = args.partition("\n\n")
    for block in re.split(r"\n {4}(?=\w)", "\n" + args)[1:]:
        name, _, text = " ".join(block.split()).partition(": ")
        text = re.sub(r"; (?:None|\(\)): (.*)\.$", r". [\1]", text)
        yield name, text[:1].upper() + text[1:]
