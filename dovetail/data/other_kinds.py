"""Description of a file that cannot be read as a table, and the command that makes a table of
it."""

from __future__ import annotations

import codecs
import re
import shlex
from pathlib import Path

from dovetail.errors import DataError

_WORKBOOKS = (".xlsx", ".xlsm", ".xls", ".ods")

#: A word with a letter beyond ASCII, and what stands around words.
_WORD = re.compile(rb"[^\s,;|\"]*[\x80-\xff][^\s,;|\"]*")

_RECODE = "open(b, 'wb').write(open(a, 'rb').read().decode('{}').encode())"
_EXPORT = "pandas.read_excel(a, dtype=str).to_csv(b, index=False)"


def refuse_workbook(path: Path) -> None:
    """Refuse a spreadsheet's own file, by its ending.

    Raises:
        DataError: naming the file and the command that writes its first sheet as CSV; or that
            there is no such file.
    """
    if path.suffix.lower() in _WORKBOOKS:
        if not path.is_file():
            raise DataError(f"there is no file {path}; check the path")
        raise DataError(f"cannot read {path}: it {_workbook(path)}")


def refuse_other_kind(path: Path) -> None:
    """Say what a file that could not be read is, by what is in it, if that is known.

    Raises:
        DataError: naming the file, what it is and what to do.
    """
    if path.name.lower().endswith(".gz") or not path.is_file():
        return
    is_parquet = path.suffix.lower() == ".parquet"
    with path.open("rb") as file:
        begins = file.read(4)
    if begins == b"PK\x03\x04":
        what = _workbook(path)
    elif begins.startswith((b"\xff\xfe", b"\xfe\xff")):
        what = f"is text in UTF-16; save it as UTF-8: {_command(path, _RECODE.format('utf-16'))}"
    elif (begins == b"PAR1") != is_parquet:
        kind = "no" if is_parquet else "a"
        what = f"is {kind} Parquet file; give it the ending of what it is"
    elif not is_parquet and not _decodes(path, "utf-8"):
        what = _utf8(path)
    else:
        return
    raise DataError(f"cannot read {path}: it {what}")


def _workbook(path: Path) -> str:
    return (
        "is an Excel workbook or another archive; save the sheet as CSV (UTF-8), or, after "
        f"pip install pandas openpyxl: {_command(path, _EXPORT, 'pandas')}"
    )


def _utf8(path: Path) -> str:
    """Description of a text that is not UTF-8, with a word as it would be read."""
    if not _decodes(path, "cp1252"):
        return "is not UTF-8 text, nor Windows-1252; save it as CSV (UTF-8) where it was written"
    with path.open("rb") as file:
        words = (_WORD.search(line) for line in file)
        word = next(found[0] for found in words if found).decode("cp1252", "replace")
    return (
        f"is not UTF-8 text; if {word[:40]!r} is a word of it, it is Windows-1252 (as Excel saves "
        f"CSV), and this writes it as UTF-8: {_command(path, _RECODE.format('cp1252'))}"
    )


def _command(path: Path, code: str, *modules: str) -> str:
    """A shell's command that writes a .csv file of this one beside it."""
    new = path.with_suffix(".csv")
    if new == path:
        new = path.with_name(f"{path.stem}-utf8.csv")
    program = f"import {', '.join(('sys', *modules))}; a, b = sys.argv[1:]; {code}"
    return f'python -c "{program}" {shlex.quote(str(path))} {shlex.quote(str(new))}'


def _decodes(path: Path, encoding: str) -> bool:
    decoder = codecs.getincrementaldecoder(encoding)()
    try:
        with path.open("rb") as file:
            while part := file.read(1 << 20):
                decoder.decode(part)
            decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True
