"""Failures of delta-spark as typed errors, with its own words instead of a Java stack."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from deltalakedb.exceptions import DeltaError
from deltalakedb.table.scratch import translate_errors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deltalakedb.table.scratch import ErrorContext

#: what Spark says if the name of an error is Delta's, and it looks among its own
_UNKNOWN: Final = "Cannot find main error class"
#: rows that break a rule of the table, as Spark Connect's client tells of them
_RULES: Final = (
    "[DELTA_VIOLATE_CONSTRAINT_WITH_VALUES]",
    "[DELTA_NOT_NULL_CONSTRAINT_VIOLATED]",
    "[DELTA_EXCEED_CHAR_VARCHAR_LIMIT]",
)
#: characters of a message that are shown
_SHOWN: Final = 1000


@contextmanager
def own_words(about: ErrorContext) -> Iterator[None]:
    """Raise what delta-spark refuses as a typed error, if PySpark has no class of its own for it.

    Args:
        about: The table.

    Raises:
        OperationError: With the message of delta-spark.
    """
    with translate_errors(about):
        try:
            yield
        except Exception as error:
            # by its name: a client of Spark Connect has no py4j
            if type(error).__name__ == "Py4JJavaError":
                raise DeltaError(_words(error)) from error
            if any(rule in str(error) for rule in _RULES):
                raise DeltaError(_shown(str(error).partition("\n\nJVM stacktrace")[0])) from error
            raise


def _words(error: Any) -> str:
    """The message of the failure at the bottom of a Java error, or of the one that PySpark failed to tell."""
    words = str(error).partition("\n\tat ")[0]
    first: Any = error
    while first is not None:
        java = getattr(first, "java_exception", None)
        said = None
        while java is not None:
            said, java = java.getMessage() or said, java.getCause()
        if said and _UNKNOWN not in said:
            words = said
            break
        first = first.__context__
    return _shown(str(words))


def _shown(text: str) -> str:
    return " ".join(text.split())[:_SHOWN]
