"""Sentences that a command may end with say what to do next."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOMS = ("network", "node", "alignment", "companions/mailbox")

#: Errors that end a command. What a partner that breaks the protocol is told is none.
ENDS = {
    *("AlignmentError", "BudgetError", "ChangedError", "CheckpointError", "ConfigError"),
    *("DataError", "LimitError", "ModelError", "NetworkError", "PartyError", "QuotaError"),
    *("ParticipationError", "PlaceError", "SpoiltError", "TrainingError", "UnreachableError"),
}

#: Whose sentences are what was found in files that are held to each other.
FINDINGS = {"heads.py", "ledger.py", "reconcile.py", "record.py", "tree.py"}

#: A step, behind the first part of a sentence, or all that a word of the user's may be.
STEP = re.compile(
    r"[;:,(].*\b(add|again|align|allow|ask|begin|check|choose|convert|delete|end|free|give|gives|"
    r"goes on|leave|list|look|make|makes a new|mount|must|name|pip|propose|put|raise|remove|"
    r"run|say|see|send|set|share|sort|start|take|tell|train|use|wait|write)\b|"
    r"[;:,(].*dovetail [a-z]|--[a-z]+.*(takes|names)|says: \.\.\.$|for example|"
    r"there (are|is no) .*;|in its file|which it has|needs an|there is no \.\.\., \.\.\.$|"
    r"; there are \.\.\.|; \.\.\.",
    re.DOTALL | re.IGNORECASE,
)


def said(node: ast.expr) -> str:
    """The words of an error, with "..." for what is put into them."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(map(said, values))
        case ast.BinOp(left=left, right=right):
            return said(left) + said(right)
        case ast.FormattedValue():
            return "..."
    return "..."


def sentences() -> Iterator[tuple[str, str]]:
    """Where, and what a command may end with there."""
    root = Path(__file__).parents[1] / "dovetail"
    for path in sorted(path for room in ROOMS for path in (root / room).rglob("*.py")):
        if path.name in FINDINGS:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and node.args):  # raised here, or by who calls
                continue
            if ast.unparse(node.func).rpartition(".")[2] in ENDS:
                text = said(node.args[-1])
                if text.strip(".: "):  # else it is another's sentence
                    yield f"{path.relative_to(root)}:{node.lineno}", text


def test_what_ends_a_command_says_what_to_do_next() -> None:
    without = [f"{where} {text}" for where, text in sentences() if not STEP.search(text)]
    assert not without, "\n".join(without)


def test_a_sentence_without_a_step_is_found() -> None:
    assert STEP.search("cannot read x: denied; allow reading it")
    assert not STEP.search("cannot read x: denied")
    assert not STEP.search("has not been connected since 12:55:55")
