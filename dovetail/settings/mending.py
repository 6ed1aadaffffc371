"""SQL that a user writes to mend a table, instead of its file, ready to be pasted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from dovetail.settings.sources import is_csv, is_query, literal, quoted

#: What DataFrames are called in errors.
DATAFRAME = "the DataFrame"


def repeated_text(ids: Iterable[object], source: str = "", columns: Sequence[str] = ()) -> str:
    """That ids are repeated, with a few of them and what keeps one row of each; "" if none is.

    >>> repeated_text(["C1", "C2", "C1"])
    "1 of 3 ids are repeated, such as 'C1'; each row must be one sample"
    """
    counts = Counter(ids)
    repeated = counts.total() - len(counts)
    if not repeated:
        return ""
    few = [repr(str(each)) for each, count in counts.most_common(3) if count > 1]
    text = (
        f"{repeated} of {counts.total()} ids are repeated, such as "
        f"{', '.join(few).replace(chr(92) + 'x1f', ' + ')}; each row must be one sample"
    )
    remedy = keeping_one(source, columns)
    return f"{text}; to keep one row of each: {remedy}" if remedy else text


def keeping_one(source: str, ids: Sequence[str]) -> str:
    """SQL that keeps one row of each id; "" of what is no file, query or DataFrame."""
    if source == DATAFRAME:
        return f"df.drop_duplicates({list(ids)!r})"
    names = [quoted(each) for each in ids]
    alike = ", ".join(f"trim({name})" for name in names) if is_csv(source) else ", ".join(names)
    rows = _rows_of(source)
    return rows and _table(f"SELECT DISTINCT ON ({alike}) * FROM {rows} ORDER BY ALL")


def changing(source: str, column: str, by: str) -> str:
    """SQL that changes a column, which is ``{}`` in it."""
    name, rows = quoted(column), _rows_of(source)
    if not rows:
        return f"{by.format(name)} in its query"
    return _table(f"SELECT * REPLACE ({by.format(name)} AS {name}) FROM {rows}")


def _table(query: str) -> str:
    """The line of a party file; what is between the quotes is a shell's, too."""
    written = query.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
    return f'table = "{written}"'


def _rows_of(source: str) -> str:
    """All rows of a file or query, in SQL; "" of what is neither."""
    if is_query(source):
        return "" if source.endswith("…") else f"({source})"
    file = literal(source)
    if is_csv(source):
        return f"read_csv({file}, header = true, all_varchar = true)"
    return file if source.lower().endswith(".parquet") else ""
