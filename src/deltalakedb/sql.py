"""Read-only SQL over the data tables and metadata views of a catalog, run by DuckDB or DataFusion."""

from __future__ import annotations

import re
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import pyarrow as pa

from deltalakedb.exceptions import (
    DeltaError,
    DeltaSqlError,
    InvalidArgumentError,
    QueryError,
    TableMissingError,
    engine_text,
)
from deltalakedb.extras import available, require
from deltalakedb.metastore.user_sql import first_word
from deltalakedb.table.handle import handle_of
from deltalakedb.table.roots import find_unreadable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from deltalakedb.table.drop_in.delta_table import DeltaTable
    from deltalakedb.table.read.dataset import PlannedDataset
    from deltalakedb.table.transaction import CatalogTransaction

SqlEngine = Literal["auto", "duckdb", "datafusion"]
#: the prefix of the metadata views that queries may name
VIEW_PREFIX: Final = "dl_v_"
_TABLE_NAMES: Final = "SELECT name FROM dl_v_tables ORDER BY name"
_SHOW_TABLES: Final = re.compile(r"\s*show\s+tables\s*;?\s*", re.IGNORECASE)
#: string literals and comments, which name nothing
_LITERALS_AND_COMMENTS: Final = re.compile(r"'[^']*(?:'|$)|--[^\n]*|/\*.*?(?:\*/|$)", re.DOTALL)
_NAME: Final = r'(?:"(?:[^"]|"")+"|[^\W\d]\w*)'
_NAMES: Final = re.compile(rf"{_NAME}(?:\s*\.\s*{_NAME})*")
_PARENTHESES: Final = re.compile(r"\([^()]*\)")
_WORD: Final = re.compile(r"[^\W\d]\w*")
_PART: Final = re.compile(_NAME)
#: the name of a common table expression
_NAMED_AS: Final = re.compile(r'(?:"[^"]*"|\b[^\W\d]\w*)\s+as\b', re.IGNORECASE)
_PARSER_ERROR: Final = re.compile(r'ParserError\("(.*)"\)')
_QUERY_WORDS: Final = frozenset(
    {"select", "with", "values", "from", "table", "explain", "describe", "desc", "show", "summarize", "pivot",
     "unpivot"}
)  # fmt: skip
_CHANGES: Final = frozenset(
    {"alter", "attach", "begin", "call", "commit", "copy", "create", "delete", "detach", "drop", "export",
     "insert", "install", "load", "merge", "pragma", "rollback", "set", "truncate", "update", "vacuum"}
)  # fmt: skip
_READ_ONLY: Final = "`deltasql write`, `deltasql alter` and the other commands change tables"
#: in a message if a data file may be the cause
_FILE_FAILED: Final = re.compile(r"arquet|IOError|IO Error|a data file of the table")
_MISSING: Final = re.compile(
    r"Table with name (?P<duckdb>\S+) does not exist|table '(?P<datafusion>[^']+)' not found", re.IGNORECASE
)


def run_sql(
    sql: str,
    snapshot: CatalogTransaction,
    *,
    open_table: Callable[[str], DeltaTable],
    catalogs: Collection[str] = (),
    engine: SqlEngine = "auto",
) -> pa.RecordBatchReader:
    """Run a query over the tables and views of a snapshot; only those that the query names are opened.

    Args:
        sql: The query. A table is named as in the catalog, ``sales.orders`` or ``"sales.orders"``.
        snapshot: The catalog at one moment; it may end before the rows are read.
        open_table: Opens a table by name: as the snapshot has it, or as of another time.
        catalogs: Prefixes of tables that are in other catalogs: ``"prod:sales.orders"``, in quotes.
        engine: ``duckdb``, ``datafusion``, or DuckDB if it is installed.

    Raises:
        QueryError: The query is wrong, or is not a query.
        TableMissingError: The query names a table that the catalog does not have.
    """
    if engine not in ("auto", "duckdb", "datafusion"):
        raise InvalidArgumentError(f"unknown engine {engine!r}", suggestion="use auto, duckdb or datafusion")
    require_query(sql)
    if _SHOW_TABLES.fullmatch(sql):
        sql = _TABLE_NAMES
    known: list[str] = snapshot.query(_TABLE_NAMES).column("name").to_pylist()
    names = _named_tables(sql, known)
    tables = {name: open_table(name) for name in names}
    for name in sorted(set(_dotted_names(sql)) - {*names, *catalogs}):
        if name.partition(":")[0] in catalogs:
            with suppress(TableMissingError):  # a column may have such a name, too
                tables[name] = open_table(name)
    views = {name: _view(snapshot, name) for name in _named_views(sql)}
    by_duckdb = engine == "duckdb" or (engine == "auto" and available("duckdb"))
    try:
        return (_by_duckdb if by_duckdb else _by_datafusion)(sql, tables, views)
    except QueryError as error:
        if (missing := _missing_table(error)) is None:
            raise
        # a name with more than two dots must be quoted; for DataFusion, its case must be right too
        if (near := next((n for n in names if n.lower().endswith(missing.lower())), None)) is not None:
            raise QueryError(
                f"the engine does not find the table {near} as the query spells it",
                suggestion=f'write its exact name in double quotes: "{near}"',
            ) from error
        open_table(missing)  # the error suggests similar names
        raise


def require_query(sql: str) -> None:
    """Raise QueryError unless a text is one statement that only reads."""
    if not isinstance(sql, str) or not sql.strip(" \t\r\n;"):
        raise QueryError("the query is empty", suggestion='write one, such as "SELECT * FROM dl_v_tables"')
    word = first_word(sql)
    plain, before = _LITERALS_AND_COMMENTS.sub("''", sql), ""
    while before != plain:  # what is inside parentheses is a part of the statement
        before, plain = plain, _PARENTHESES.sub(" ", plain)
    if ";" in plain.strip(" \t\r\n;"):
        raise QueryError("only one query can run at a time", suggestion="run them one after another")
    if (verb := _verb(plain)) in _CHANGES:
        raise QueryError(f"`sql` is read-only, but the statement has {verb.upper()}", suggestion=_READ_ONLY)
    if word not in _QUERY_WORDS:
        raise QueryError(
            f"a query cannot begin with {word.upper() or repr(sql.strip()[:10])}",
            suggestion=f"begin with one of {', '.join(sorted(_QUERY_WORDS)).upper()}; `sql` is read-only",
        )


def _verb(plain: str) -> str:
    """The word that says what a statement does: the first one, or the one after WITH … AS or EXPLAIN."""
    # leave out the names of common table expressions, which may be any word
    words = [found.lower() for found in _WORD.findall(_NAMED_AS.sub(" ", plain))]
    if words and words[0] in ("with", "explain"):
        return next((w for w in words[1:] if w in _CHANGES | _QUERY_WORDS - {"with"}), "")
    return words[0] if words else ""


def _dotted_names(sql: str) -> Iterator[str]:
    """Every dotted name in a query, and its prefixes: a column may follow a table's name."""
    for chain in _NAMES.findall(_LITERALS_AND_COMMENTS.sub(" ", sql)):
        parts = [part[1:-1].replace('""', '"') if part[0] == '"' else part for part in _PART.findall(chain)]
        for end in range(len(parts), 0, -1):
            yield ".".join(parts[:end])


def _named_tables(sql: str, known: Iterable[str]) -> list[str]:
    """The tables that a query may name; as in SQL, the case of a name does not matter."""
    spelled = set(_dotted_names(sql))
    folded = {name.lower() for name in spelled}
    groups: dict[str, list[str]] = {}
    for name in known:
        if name.lower() in folded:
            groups.setdefault(name.lower(), []).append(name)
    chosen = []
    for names in groups.values():
        candidates = [name for name in names if name in spelled] or names
        if len(candidates) > 1:
            raise QueryError(
                f"the query names {' or '.join(candidates)}: tables whose names differ only in case",
                suggestion="name one of them, exactly as it is spelled",
            )
        chosen += candidates
    return sorted(chosen)


def _named_views(sql: str) -> list[str]:
    return sorted(
        {n.lower() for n in _dotted_names(sql) if n.lower().startswith(VIEW_PREFIX) and "." not in n}
    )


def _view(snapshot: CatalogTransaction, name: str) -> pa.Table:
    try:
        found = snapshot.query(f'SELECT * FROM "{name}"')  # noqa: S608 - a name of word characters
    except DeltaSqlError as error:
        raise QueryError(
            f"there is no metadata view {name}", suggestion="docs/reference/views.md lists the views"
        ) from error
    # a column that holds only nulls has no type yet
    types = [pa.string() if pa.types.is_null(field.type) else field.type for field in found.schema]
    return found.cast(pa.schema(list(zip(found.column_names, types, strict=True))))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _by_duckdb(sql: str, tables: dict[str, DeltaTable], views: dict[str, pa.Table]) -> pa.RecordBatchReader:
    duckdb = require("duckdb", "duckdb", "queries by DuckDB")
    from deltalakedb.table.read.dataset import PlannedDataset

    settings = {"python_enable_replacements": "false", "autoinstall_known_extensions": "false"}
    connection = duckdb.connect(":memory:", config=settings)
    datasets: list[PlannedDataset] = []
    try:
        for name, view in views.items():
            connection.register(name, view)
        for name, table in tables.items():
            if (handle := handle_of(table)) is None:
                continue
            datasets.append(PlannedDataset.of(handle.source, handle.root))
            _register(connection, name, f"dl_data_{len(datasets)}", datasets[-1], duckdb.Error)
        found = connection.sql(sql.strip(" \t\r\n;"))
        if found is None:
            raise QueryError("the statement has no result", suggestion=_READ_ONLY)
        reader = found.to_arrow_reader(10_000)
        return pa.RecordBatchReader.from_batches(
            reader.schema, _duckdb_batches(reader, connection, datasets, tables.values(), duckdb.Error)
        )
    except duckdb.Error as error:
        connection.close()
        raise _failed(error, tables.values(), datasets) from error
    except BaseException:
        connection.close()
        raise


def _register(
    connection: Any, name: str, data_name: str, data: PlannedDataset, errors: type[Exception]
) -> None:
    """Create views of a table: by its quoted name and, with one or two dots, by the dotted name."""
    connection.register(data_name, data)
    rows = f"AS SELECT * FROM temp.main.{data_name}"  # noqa: S608 - a name of ours
    connection.execute(f"CREATE VIEW {_quoted(name)} {rows}")
    parts = list(map(_quoted, name.split(".")))
    if not 2 <= len(parts) <= 3:
        return
    with suppress(errors):  # a name that DuckDB reserves still works as one quoted name
        if len(parts) == 3:
            connection.execute(f"ATTACH IF NOT EXISTS ':memory:' AS {parts[0]}")
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {'.'.join(parts[:-1])}")
        connection.execute(f"CREATE VIEW {'.'.join(parts)} {rows}")


def _duckdb_batches(
    reader: pa.RecordBatchReader,
    connection: Any,
    datasets: Sequence[PlannedDataset],
    tables: Iterable[DeltaTable],
    errors: type[Exception],
) -> Iterator[pa.RecordBatch]:
    try:
        with ExitStack() as stack:
            for handle in filter(None, map(handle_of, tables)):
                stack.enter_context(handle.reading())
            yield from reader
    except (errors, pa.ArrowException) as error:
        raise _failed(error, tables, datasets) from error
    finally:
        del reader
        connection.close()


def _failed(
    error: Exception, tables: Iterable[DeltaTable], datasets: Iterable[PlannedDataset] = ()
) -> DeltaSqlError:
    """The error of a table that could not be read; else a QueryError with the engine's message."""
    for dataset in datasets:
        if dataset.failure is not None:
            return dataset.failure
    if _FILE_FAILED.search(str(error)):
        for handle in filter(None, map(handle_of, tables)):
            unreadable = find_unreadable(handle.root, handle.file_sizes, handle.version, str(error))
            if unreadable is not None:
                return unreadable
    lines = [line.strip() for line in str(error).splitlines()]
    text = engine_text(lines[0] if lines else "") or "no details"
    hint = next((line for line in lines[1:] if line.startswith(("Did you mean", "Candidate bindings"))), None)
    if "compound identifier" in text or "mbiguous reference to catalog" in text:
        hint = "write the table's whole name in double quotes, dots included"
    parser = _PARSER_ERROR.fullmatch(text)
    text = text if parser is None else parser[1]
    return QueryError(
        f"the query failed: {text[0].lower()}{text[1:]}".rstrip("!."),
        suggestion=hint or "check the names and the syntax; `deltasql schema TABLE` shows a table's columns",
    )


def _missing_table(error: QueryError) -> str | None:
    """The table that an engine did not find, by the name in the query."""
    if (found := _MISSING.search(error.message)) is None:
        return None
    name = found["duckdb"] or found["datafusion"]
    return name.removeprefix("datafusion.").removeprefix("public.").strip('"')


def _by_datafusion(
    sql: str, tables: dict[str, DeltaTable], views: dict[str, pa.Table]
) -> pa.RecordBatchReader:
    import pyarrow.parquet as pq

    from deltalakedb.query import QueryBuilder

    # keep the case of names: DataFusion would not find columns with capital letters
    builder = QueryBuilder({"datafusion.sql_parser.enable_ident_normalization": "false"})
    folder = tempfile.TemporaryDirectory(prefix="deltasql-sql-")
    try:
        for name, view in views.items():
            path = Path(folder.name) / f"{name}.parquet"
            pq.write_table(view, path)
            location = str(path).replace("'", "''")
            builder.execute(f"CREATE EXTERNAL TABLE {name} STORED AS PARQUET LOCATION '{location}'")
        for name, table in tables.items():
            builder.register(_quoted(name), table)
            parts = list(map(_quoted, name.split(".")))
            if not 2 <= len(parts) <= 3:
                continue
            with suppress(DeltaError):
                if len(parts) == 3:
                    builder.execute(f"CREATE DATABASE IF NOT EXISTS {parts[0]}")
                builder.execute(f"CREATE SCHEMA IF NOT EXISTS {'.'.join(parts[:-1])}")
                builder.register(".".join(parts), table)
        reader = pa.RecordBatchReader.from_stream(builder.execute(sql.strip(" \t\r\n;")))
    except DeltaSqlError:
        folder.cleanup()
        raise
    except DeltaError as error:
        folder.cleanup()
        raise _failed(error, tables.values()) from error
    except BaseException:
        folder.cleanup()
        raise

    def batches() -> Iterator[pa.RecordBatch]:
        try:
            yield from reader
        except DeltaSqlError:
            raise
        except (DeltaError, pa.ArrowException) as error:
            raise _failed(error, tables.values()) from error
        finally:
            folder.cleanup()

    return pa.RecordBatchReader.from_batches(reader.schema, batches())
