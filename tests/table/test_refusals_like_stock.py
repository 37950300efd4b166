"""What delta-rs refuses: the class that stock raises, about the real table, no word of scratch folders."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest

import deltalakedb
from deltalakedb import exceptions as ours
from deltalakedb.table.scratch import ErrorContext, translate_errors, without_scratch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("p", pa.string())])


def rows(*numbers: int | None, p: str = "a") -> pa.Table:
    return pa.table({"id": pa.array(numbers, pa.int64()), "p": [p] * len(numbers)})


def broken() -> Iterator[pa.RecordBatch]:
    yield from rows(5).to_batches()
    raise KeyError("the user's own")


def reader() -> pa.RecordBatchReader:
    return pa.RecordBatchReader.from_batches(rows(5).schema, broken())


def merge(table: Any, source: pa.Table) -> Any:
    return table.merge(source, "s.id = t.id", source_alias="s", target_alias="t")


OPERATIONS: dict[str, tuple[Callable[[Any, Callable[..., None]], object], type[Exception]]] = {
    "too few columns": (
        lambda t, write: write(t, pa.table({"id": ["x"]}), mode="append"),
        ours.SchemaError,
    ),
    "a strange column": (
        lambda t, write: write(t, rows(1).append_column("z", [[1]]), mode="append"),
        ours.SchemaError,
    ),
    "a broken constraint": (lambda t, write: write(t, rows(-1), mode="append"), ours.OperationError),
    "a null where none may be": (
        lambda t, write: write(t, rows(None), mode="append"),
        ours.OperationError,
    ),
    "rows outside of the predicate": (
        lambda t, write: write(t, rows(1), mode="overwrite", predicate="p = 'b'"),
        ours.OperationError,
    ),
    "other partitions": (
        lambda t, write: write(t, rows(1), mode="append", partition_by=["id"]),
        ours.OperationError,
    ),
    "an unknown mode": (lambda t, write: write(t, rows(1), mode="nope"), ours.InvalidArgumentError),
    "an unknown schema mode": (
        lambda t, write: write(t, rows(1), mode="append", schema_mode="nope"),
        ours.OperationError,
    ),
    "no data": (lambda t, write: write(t, 5, mode="append"), ours.InvalidArgumentError),
    "a reader that fails": (lambda t, write: write(t, reader(), mode="append"), ours.OperationError),
    "bad SQL to delete": (lambda t, _: t.delete("id >> << 3"), ours.OperationError),
    "an unknown column to delete by": (lambda t, _: t.delete("nope = 3"), ours.OperationError),
    "bad SQL to update": (lambda t, _: t.update(updates={"id": "((("}), ours.OperationError),
    "an update to another type": (lambda t, _: t.update(updates={"id": "'x'"}), ours.OperationError),
    "an update against a constraint": (lambda t, _: t.update(updates={"id": "-5"}), ours.OperationError),
    "a division by zero": (lambda t, _: t.update(updates={"id": "1/0"}), ours.InvalidArgumentError),
    "reserved commit properties": (
        lambda t, _: t.delete(
            "id = 1", commit_properties=deltalake.CommitProperties(custom_metadata={"timestamp": 3})
        ),
        ours.InvalidArgumentError,
    ),
    "a merge with two matches": (
        lambda t, _: merge(t, rows(1, 1)).when_matched_update({"p": "s.p"}).execute(),
        ours.OperationError,
    ),
    "a merge by an unknown column": (
        lambda t, _: t.merge(rows(1), "s.nope = t.id", "s", "t").when_matched_delete().execute(),
        ours.OperationError,
    ),
}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The same table twice: plain, and SQL-backed."""
    folder = tmp_path_factory.mktemp("refusals")
    address = f"deltasql://sqlite/{folder}/meta.db?table=t"
    for name in ("plain", "sql"):
        path = str(folder / name)
        made = deltalake.DeltaTable.create(path, SCHEMA, partition_by="p")
        made.alter.add_constraint({"positive": "id > 0"})
        deltalake.write_deltalake(path, rows(1, 2), mode="append")
    deltalakedb.import_table(str(folder / "sql"), address)
    return str(folder / "plain"), address


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_refusal_is_the_error_that_stock_raises(name: str, tables: tuple[str, str]) -> None:
    operation, kind = OPERATIONS[name]
    plain, address = tables
    with pytest.raises(Exception) as theirs:
        operation(deltalake.DeltaTable(plain), deltalake.write_deltalake)
    with pytest.raises(ours.DeltaSqlError) as caught:
        operation(deltalakedb.DeltaTable(address), deltalakedb.write_deltalake)
    error = caught.value
    assert type(error) is kind
    assert isinstance(error, theirs.type)
    told = "".join(traceback.format_exception(error))
    assert "_deltasql/" not in told
    assert "__deltasql_root__" not in told
    if not isinstance(error, ours.InvalidArgumentError):
        assert (error.table, error.version) == ("t", 2)
        hint = (
            "fix the exception that the input raised"
            if name == "a reader that fails"
            else "columns are id, p"
        )
        assert hint in str(error)
        if not isinstance(error, ours.SchemaError) and name != "a reader that fails":
            assert "positive: id > 0" in str(error)
    assert deltalakedb.DeltaTable(address).version() == 2


def test_a_missing_file_is_named_by_its_real_path(tmp_path: Path) -> None:
    address = f"deltasql://sqlite/{tmp_path}/meta.db?table=t&location={tmp_path}/t"
    deltalakedb.write_deltalake(address, rows(1, 2))
    table = deltalakedb.DeltaTable(address)
    (file,) = table.file_uris()
    (tmp_path / "t" / file).unlink()
    with pytest.raises(ours.DeltaError, match=file) as caught:
        table.update(updates={"id": "id + 1"})
    assert "__deltasql_root__" not in "".join(traceback.format_exception(caught.value))


def test_a_table_that_cannot_be_made_is_named_too(tmp_path: Path) -> None:
    address = f"deltasql://sqlite/{tmp_path}/meta.db?table=t&location={tmp_path}/t"
    with pytest.raises(ours.OperationError, match=r"\[table t\]") as caught:
        deltalakedb.write_deltalake(address, rows(1), configuration={"delta.nope": "true"})
    assert "_deltasql" not in "".join(traceback.format_exception(caught.value))


HEX = "0123456789abcdef" * 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"at /lake/t/_deltasql/{HEX}/__deltasql_root__/p=a/x.parquet", "at /lake/t/p=a/x.parquet"),
        (f"at lake/t/_deltasql/{HEX}/x.parquet: gone", "at lake/t/x.parquet: gone"),
        (f"(file:///lake/t/_deltasql/{HEX}/__deltasql_root__3/x)", "(file:///lake/t/x)"),
        ("no file:///tmp/deltasql-abc_12x9/__deltasql_root__/x.parquet", "no s3://b/t/x.parquet"),
        ("no /tmp/deltasql-fetched-abcd1234/_delta_log", "no s3://b/t/_delta_log"),
        ("IOError\n \x1b[31m↳\x1b[0m disk", "IOError\n ↳ disk"),
        ("a deltasql://sqlite//meta.db address", "a deltasql://sqlite//meta.db address"),
    ],
)
def test_a_message_speaks_of_the_table_alone(text: str, expected: str) -> None:
    assert without_scratch(text, "s3://b/t") == expected


@pytest.mark.parametrize(
    ("theirs", "kind"),
    [
        (ours.CommitFailedError, ours.CommitError),
        (ours.DeltaProtocolError, ours.ProtocolError),
        (FileNotFoundError, ours.StorageMissingError),
        (OSError, ours.StorageError),
        (NotImplementedError, ours.UnsupportedOperationError),
        (Exception, ours.OperationError),
        (KeyError, KeyError),
        (pa.ArrowInvalid, pa.ArrowInvalid),
    ],
)
def test_every_class_of_stock_has_one_of_ours(theirs: type[Exception], kind: type[Exception]) -> None:
    with pytest.raises(theirs) as caught, translate_errors(ErrorContext("t")):
        raise theirs("no")
    assert type(caught.value) is kind


def test_a_panic_is_an_error_and_an_interrupt_stays_one() -> None:
    class PanicException(BaseException):
        pass

    with (
        pytest.raises(ours.OperationError, match="stopped unexpectedly: boom"),
        translate_errors(ErrorContext("t")),
    ):
        raise PanicException("boom")
    with pytest.raises(KeyboardInterrupt), translate_errors(ErrorContext("t")):
        raise KeyboardInterrupt
