"""DataFrames of pandas, polars and pyarrow, and of what else narwhals knows, as tables."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np

from dovetail.data.kinds import CATEGORY, Column, convert, stored
from dovetail.data.tables import InMemory, Table, check_rows, repeated_name
from dovetail.errors import DataError
from dovetail.settings.mending import DATAFRAME

if TYPE_CHECKING:
    import narwhals as nw
    from narwhals.typing import IntoFrame

    Frame = IntoFrame
else:
    Frame = Any

NAME = DATAFRAME


def table_from_frame(frame: Frame, *, name: str = NAME) -> Table:
    """A DataFrame as a table, as ``read_table`` gives one; a copy, which later changes miss.

    A lazy frame is collected. Columns that are called by numbers are called by their digits.

    Raises:
        DataError: no DataFrame, no rows, or a column's name that comes twice.
    """
    import narwhals as nw  # takes long to import, and files need it not

    try:
        given = nw.from_native(frame)
    except TypeError:
        raise DataError(
            "expected a path, a SELECT or a DataFrame of pandas, polars or pyarrow, got "
            f"{_kind(frame)}"
        ) from None
    except Exception as error:  # whatever a library says of names that come twice
        repeated = repeated_name(map(str, getattr(frame, "columns", ())))
        if repeated is not None:
            raise DataError(
                f"cannot read {name}: it has two columns {repeated!r}; rename one"
            ) from None
        raise DataError(f"cannot read {name}: {str(error).splitlines()[0]}") from None
    eager = given.collect() if isinstance(given, nw.LazyFrame) else given.clone()
    names = {str(each): each for each in eager.columns}
    if len(names) < len(eager.columns):
        raise DataError(f"{name} has two columns of one name; rename one")
    check_rows(name, list(names), len(eager))
    index = [str(each) for each in getattr(getattr(frame, "index", None), "names", ()) if each]

    def read(key: str) -> Column:
        return _column(name, key, eager.get_column(names[key]))  # eager[5] would be a row

    return Table(name, list(names), len(eager), InMemory(read), named_index=index)


def series_like(given: Any, values: np.ndarray, *, name: str, names: Sequence[str] = ()) -> Any:
    """The (N,) values as a column for a DataFrame: of pandas with its index, or of polars.

    Of (N, L) values a DataFrame of columns called ``names``. The values themselves where ``given``
    is neither.
    """
    import narwhals as nw

    frame = nw.from_native(given, pass_through=True)
    if not isinstance(frame, (nw.DataFrame, nw.LazyFrame)):
        return values
    kind = frame.implementation
    if names and (kind.is_pandas_like() or kind.is_polars()):
        columns = {each: values[:, index] for index, each in enumerate(names)}
        library = kind.to_native_namespace()
        if kind.is_polars():
            return library.DataFrame(columns)
        return library.DataFrame(columns, index=given.index)
    if kind.is_pandas_like():
        return kind.to_native_namespace().Series(values, index=given.index, name=name)
    return kind.to_native_namespace().Series(name, values) if kind.is_polars() else values


def _kind(given: Any) -> str:
    kind = type(given)
    of = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return f"{of}{kind.__qualname__}"


def column_of_series(table: str, name: str, series: Any) -> Column:
    """Column from a Series of pandas, polars or pyarrow.

    Raises:
        DataError: a type that is neither number, date nor text.
    """
    import narwhals as nw

    return _column(table, name, nw.from_native(series, series_only=True))


def _column(table: str, name: str, series: nw.Series[Any]) -> Column:
    """Column from a Series.

    Raises:
        DataError: a type that is neither number, date nor text.
    """
    import narwhals as nw

    dtype = series.dtype
    missing = series.is_null().to_numpy().astype(bool)
    values: np.ndarray
    if dtype == nw.Boolean:
        values = series.fill_null(False).to_numpy().astype(bool)
    elif dtype.is_integer():
        values = series.fill_null(0).to_numpy()
    elif dtype.is_float():
        values = series.cast(nw.Float64).fill_null(0.0).to_numpy().astype(np.float64)
        missing = missing | np.isnan(values)
    elif dtype in (nw.Date, nw.Datetime):
        stamps = series.dt.timestamp("us").fill_null(0).to_numpy().astype(np.int64)
        values = stamps.astype("datetime64[us]")  # days since 1970, as of a file
    elif dtype in (nw.String, nw.Categorical, nw.Enum):
        try:
            values = series.cast(nw.String).fill_null("").to_numpy().astype(object)
        except UnicodeEncodeError as error:
            raise DataError(
                f"column {name!r} of {table} has text that is no Unicode ({error.reason}), as of a "
                "file read in a wrong encoding; read it again, or leave the column out"
            ) from None
        column = stored(values, missing)
        return column if dtype == nw.String else convert(column, CATEGORY)
    elif dtype in (nw.Object, nw.Unknown, nw.Decimal):
        values = np.empty(len(series), dtype=object)
        values[:] = series.to_list()
        for value in values[~missing]:
            if not isinstance(value, _READ):
                raise _not_read(table, name, _kind(value))
    else:
        raise _not_read(table, name, str(dtype))
    return stored(values, missing)


#: What objects of a column may be; decimals are as a database's driver gives them.
_READ = (str, bool, int, float, np.number, np.bool_, date, Decimal)


def _not_read(table: str, name: str, kind: str) -> DataError:
    return DataError(
        f"column {name!r} of {table} has the type {kind}, which is neither number, date nor text; "
        "leave it out, or convert it"
    )
