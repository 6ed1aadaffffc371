"""The docs' language: `python .ci/words.py [FILE ...]` names sentences that must be read twice.

Two rules, of prose alone (no code, no tables, no headings): a sentence has at most 35 words, and
none of the words and phrases below, for each of which a plainer one is given. Docstrings are held
to the words, and to a first sentence that says what comes back or what the thing is.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]

#: Words of a sentence at most; code in it is one word.
MOST_WORDS = 35

#: What is not written (a regular expression, whole words, any case) -> what to write.
FORBIDDEN = {
    r"rulers?": "baseline",
    r"recovered shares?": "share of the gain kept",
    r"commonest": "most frequent, or majority class",
    r"dealt( out)?|deals out": "split",
    r"is no (TOML|model folder|table|JSON|CSV)": "is not valid TOML, is not a model folder",
    r"dear(er|est)": "expensive",
    r"(is|are) told(?! apart)( of| at once)?": "is reported, raises an error",
    r"told of": "reported",
    r"in a sentence": "with a clear error",
    r"tells?( apart)?": "shows, reveals, prints, reports",
    r"(is|are|was|were|be) said": "is printed, is predicted",
    r"stands? (in(?! for)|beside|below|above|there|under)": "is in, is beside, is below",
    r"(whose|no) word": "signed by, nothing",
    r"books?": "ledger",
    r"in the place of": "instead of",
    r"will do": "works, is enough",
    r"what (it|each|they) tells?": "what it reveals, shows, adds",
    r"walks? away|walked away": "leaves",
    r"weighed": "weighted",
    r"came of it|comes of it": "result",
    r"who has what": "which party holds what",
    r"helpers?": "partner",
    r"stays? at home|at home": "at its site, locally",
    r"leans? on": "relies on",
    r"says once": "printed once",
    r"begun|begins": "started, starts",
    r"anew": "again",
    r"dials?|dialled|dialling": "connect",
    r"rows of its own": "its rows",
    r"is as may be": "depends",
    r"ought": "should",
    r"lest|whence|whereof|thereof|hitherto|henceforth": "plain words",
    r"utili[sz]e[sd]?": "use",
    r"leverages?": "use",
    r"simply|obviously|of course|needless to say": "nothing: leave it out",
}

_FORBIDDEN = [
    (re.compile(rf"\b(?:{words})\b", re.IGNORECASE), better) for words, better in FORBIDDEN.items()
]


#: How no docstring begins: it says what comes back, or what the thing is.
FIRST = re.compile(r"(What|Who|One|Its|The same)\b")


@dataclass(frozen=True)
class Finding:
    """A sentence that is to be rewritten."""

    page: Path
    line: int
    why: str
    sentence: str

    def __str__(self) -> str:
        page = self.page.relative_to(ROOT) if self.page.is_relative_to(ROOT) else self.page
        return f"{page}:{self.line}: {self.why}: {self.sentence}"


def pages() -> list[Path]:
    """Everything that is to be read."""
    folders = (ROOT / "docs", ROOT / "benchmarks" / "results" / "bench")
    found = [page for folder in folders for page in sorted(folder.glob("*.md"))]
    return [ROOT / "README.md", ROOT / "SECURITY.md", *found]


#: Files whose docstrings are not held to the rules yet: APFed-S and what it computes with.
NOT_YET = ("encrypted.py", "smoothers.py", "sealed")


def modules() -> list[Path]:
    """Files whose docstrings are to be read."""
    found = sorted((ROOT / "dovetail").rglob("*.py"))
    return [path for path in found if not path.name.startswith(NOT_YET)]


def of_docstrings(module: Path) -> Iterator[Finding]:
    """What to rewrite in a module's docstrings."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        text = ast.get_docstring(node) if isinstance(node, kinds) else None
        if text is None:
            continue
        start = node.body[0].lineno - 1
        if first := FIRST.match(text):
            yield Finding(module, start + 1, f"begins with {first[0]!r}", text.splitlines()[0])
        for line, paragraph in paragraphs(text):
            for sentence in sentences(paragraph):
                for known, better in _FORBIDDEN:
                    if found := known.search(sentence):
                        why = f"{found[0]!r}; write {better}"
                        yield Finding(module, start + line, why, sentence)


def findings(page: Path) -> Iterator[Finding]:
    """What to rewrite on a page."""
    for line, paragraph in paragraphs(page.read_text(encoding="utf-8")):
        for sentence in sentences(paragraph):
            count = len(sentence.split())
            if count > MOST_WORDS:
                yield Finding(page, line, f"{count} words, at most {MOST_WORDS}", sentence)
            for known, better in _FORBIDDEN:
                if found := known.search(sentence):
                    yield Finding(page, line, f"{found[0]!r}; write {better}", sentence)
    for number, text in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if re.match(r"(<{7}|>{7}) ", text):
            yield Finding(page, number, "a conflict that was not solved", text)


def paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """(Line, paragraph) of running text; items of lists are paragraphs."""
    parts: list[str] = []
    start, fence, comment = 0, "", False
    for number, line in enumerate([*text.splitlines(), ""], 1):
        bare = line.strip()
        if fence or bare.startswith("```"):
            fence = ("" if fence and bare.startswith(fence) else fence) or (
                "```" if not fence else ""
            )
            bare = ""
        elif comment or bare.startswith("<!--"):
            comment = "-->" not in bare
            bare = ""
        item = re.match(r"([-*]|\d+\.)\s+", bare)
        ends = not bare or item or bare.startswith(("#", "|", "<")) or _is_code(line, parts)
        if ends and parts:
            yield start, " ".join(parts)
            parts = []
        if not bare or bare.startswith(("#", "|", "<")) or _is_code(line, parts):
            continue
        if not parts:
            start = number
        parts.append(bare[item.end() :] if item else bare)


def _is_code(line: str, parts: list[str]) -> bool:
    """Whether a line is an indented block of code: it follows no text."""
    return line.startswith("    ") and not parts


def sentences(paragraph: str) -> list[str]:
    """The sentences of a paragraph; code, links and formulas are one word each."""
    plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", paragraph)
    plain = re.sub(r"``.+?``|`[^`]*`", "CODE", plain)
    parts = re.split(r"(?<=[.!?])[)*\"”]*\s+(?=[A-Z*(\"“])|(?<=;)\s+", plain)
    return [part for part in parts if part]


def main() -> int:
    given = [Path(each) for each in sys.argv[1:]] or [*pages(), *modules()]
    read = {".py": of_docstrings}
    found = [finding for path in given for finding in read.get(path.suffix, findings)(path)]
    for finding in found:
        print(finding)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
