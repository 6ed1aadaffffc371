"""Addresses of tables elsewhere: what of them is shown, and what their libraries' errors become."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from dovetail.errors import DataError

_VARIABLE = re.compile(r"\$\{(\w+)\}")

#: Keys of an address whose values are secrets, and a value as ODBC quotes one that has a semicolon.
_SECRET = r"(?:password|passwd|pwd|passphrase|secret|token|(?:access|account|api)_?key|\bsig)"
_BRACED = r"\{(?:[^}]|\}\})*\}"

_REACH = "check the address, and that it can be reached from here"

#: Words of a library's error -> what to do.
_ADVICE = {
    r"\[Driver Manager\] Could not load": "install that ADBC driver (pip install adbc-driver-...)",
    r"Can't open lib|Data source name not found": (
        "install that ODBC driver, or name one that odbcinst -q -d lists"
    ),
    r"Unable to connect": _REACH,
    r"\b40[13]\b|denied|InvalidAccessKey|Signature|credential|authenticat|password|invalid_grant": (
        "check the credentials in the environment"
    ),
    r"\b404\b|not found|no such|not exist|unable to find|were empty|URI missing|no files": (
        "check the names"
    ),
}


def without_password(url: str) -> str:
    """The URL as errors may show it.

    >>> without_password("postgresql://me:p@ss/w@host/db?sslpassword=x")
    'postgresql://me:***@host/db?sslpassword=***'
    >>> without_password("adbc:snowflake:me:p@ssw@account/db")
    'adbc:snowflake:me:***@account/db'
    >>> without_password("odbc:Driver={SQL Server};Uid=me;Pwd={p;w};Server=db")
    'odbc:Driver={SQL Server};Uid=me;Pwd=***;Server=db'
    """
    if url[:5].lower() == "odbc:":  # what has no braces ends at a semicolon alone
        return re.sub(rf"([^;=]*{_SECRET}[^;=]*=)(?:\s*{_BRACED}|[^;]*)", r"\1***", url, flags=re.I)
    start = r"((?:://|\badbc:[\w.-]+:)[^/@:\s]*)"
    shown = re.sub(start + r":(?!//)\S*@", r"\1:***@", url)  # a password may have an @ itself
    value = rf"(?:{_BRACED}|'[^']*'|[^&;\s]*)"
    return re.sub(rf"({_SECRET}\w*\s*=\s*){value}", r"\1***", shown, flags=re.I)


@contextmanager
def explained(url: str) -> Iterator[str]:
    """The address, whose ``${NAME}`` are variables of the environment, to be read inside.

    Raises:
        DataError: a variable that is not set; and whatever a library raises inside, as one sentence
            that shows neither a password nor a variable's value.
    """
    names = _VARIABLE.findall(url)
    lacking = [name for name in names if not os.environ.get(name)]
    if lacking:
        raise DataError(
            f"cannot read {without_password(url)}: {lacking[0]} is not set in the environment; "
            "set it"
        )
    address = _VARIABLE.sub(lambda found: os.environ[found[1]], url)

    masked, scheme = without_password(url), len("odbc:")
    is_odbc = url[:scheme].lower() == "odbc:"  # drivers say what follows the scheme

    def shown(text: str) -> str:
        text = text.replace(address, masked)
        if is_odbc:
            text = text.replace(address[scheme:], masked[scheme:])
        text = " ".join(text.split()).replace(address, masked)
        for name in names:
            text = text.replace(os.environ[name], f"${{{name}}}")
        return without_password(text)

    try:
        yield address
    except DataError as error:
        raise DataError(shown(str(error))) from None
    except ImportError as error:
        raise DataError(
            f"cannot read {shown(url)}: {error.name or error} is not installed here; pip install "
            + ("arrow-odbc" if error.name == "arrow_odbc" else "'dovetail-fl[lake]'")
        ) from None
    except Exception as error:  # of Polars, deltalake, pyiceberg or a driver: they share no base
        text = re.split(r"\.? <\?xml|\. |; ", shown(str(error)))[0][:300].rstrip(".:; ")
        found = (told for words, told in _ADVICE.items() if re.search(words, str(error), re.I))
        advice = next(found, _REACH)
        raise DataError(f"cannot read {shown(url)}: {text}; {advice}") from None
