"""Failures of delta-spark whose message PySpark cannot look up: their own words, in a typed error."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from deltalakedb.exceptions import OperationError

if TYPE_CHECKING:
    from collections.abc import Iterator

#: what Spark says where a name of an error is Delta's, and it looks among its own
_UNKNOWN: Final = "Cannot find main error class"


@contextmanager
def own_words(table: str) -> Iterator[None]:
    """Say what delta-spark said, where PySpark fails over the name of the error.

    Raises:
        OperationError: With the message of delta-spark.
    """
    try:
        yield
    except Exception as error:
        words = _words(error) if type(error).__name__ == "Py4JJavaError" and _UNKNOWN in str(error) else None
        if words is None:
            raise
        raise OperationError(words, table=table) from error


def _words(error: BaseException) -> str | None:
    """The message of the failure that PySpark was about to tell of."""
    first = error.__context__
    while first is not None:
        java = getattr(first, "java_exception", None)
        if java is not None and (said := java.getMessage()) and _UNKNOWN not in said:
            return str(said).strip().partition("\n")[0]
        first = first.__context__
    return None
