"""Every argument of delete, update and merge, and files handed in: as in stock, refusals too."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake.transaction import AddAction, RemoveAction

from deltalakedb import (
    CommitProperties,
    DeltaTable,
    PostCommitHookProperties,
    Transaction,
    WriterProperties,
)
from deltalakedb.exceptions import ConflictError
from support.twins import Twins, sales

if TYPE_CHECKING:
    from collections.abc import Callable

SQLITE = pytest.mark.parametrize("engine_name", ["sqlite"])
ZSTD = WriterProperties(compression="ZSTD", compression_level=3)
NOTES = CommitProperties(custom_metadata={"who": "me"}, app_transactions=[Transaction("app", 7)])
HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
SAID: dict[str, Any] = {"commit_properties": NOTES, "post_commithook_properties": HOOKS}


def filled(twins: Twins) -> Twins:
    for start in (0, 10):
        twins.write(sales(*range(start, start + 10)), mode="append")
    return twins


def merger(table: Any, source: Any, predicate: str = "t.id = s.id", **options: Any) -> Any:
    return table.merge(source, predicate, source_alias="s", target_alias="t", **options)


def source(*numbers: int, **columns: Any) -> pa.Table:
    made = sales(*numbers)
    for name, values in columns.items():
        made = made.append_column(name, values)
    return made


DONE: dict[str, Callable[[Any], Any]] = {
    "delete": lambda t: t.delete("id = 3", writer_properties=ZSTD, **SAID),
    "update": lambda t: t.update({"amount": "1.0"}, predicate="id < 4", writer_properties=ZSTD, **SAID),
    "update with values": lambda t: t.update(new_values={"amount": 2.5, "place": "it's"[:2]}, **SAID),
    "update that casts loosely": lambda t: t.update(
        {"amount": "'no number'"}, predicate="id = 1", error_on_type_mismatch=False, **SAID
    ),
    "merge": lambda t: (
        merger(t, source(3, 40), writer_properties=ZSTD, **SAID)
        .when_matched_update_all()
        .when_not_matched_insert_all()
        .execute()
    ),
    "merge of a stream": lambda t: (
        merger(t, source(3, 40).to_reader(), streamed_exec=True, **SAID)
        .when_matched_delete()
        .when_not_matched_insert({"id": "s.id"})
        .execute()
    ),
    "merge held in memory": lambda t: (
        merger(t, source(3, 40), streamed_exec=False, max_spill_size=100_000_000, **SAID)
        .when_matched_update({"amount": "s.amount"}, predicate="t.id = 3")
        .execute()
    ),
    "merge with a wider schema": lambda t: (
        merger(t, source(3, 40, note=pa.array(["a", "b"])), merge_schema=True, **SAID)
        .when_matched_update_all(except_cols=["place"])
        .when_not_matched_insert_all()
        .execute()
    ),
    "merge that casts loosely": lambda t: (
        merger(
            t,
            pa.table({"id": pa.array([3], pa.int64()), "amount": pa.array(["no number"])}),
            error_on_type_mismatch=False,
            **SAID,
        )
        .when_matched_update({"amount": "s.amount"})
        .execute()
    ),
    "merge by source": lambda t: (
        merger(t, source(3, 4), **SAID)
        .when_not_matched_by_source_update({"amount": "-1.0"}, predicate="t.id < 8")
        .when_not_matched_by_source_delete("t.id > 15")
        .execute()
    ),
    "merge with other aliases": lambda t: (
        t.merge(sales(3), "target.id = source.id", "source", "target", **SAID).when_matched_delete().execute()
    ),
    "merge of batches": lambda t: (
        merger(t, source(3, 40).to_batches()[0], max_temp_directory_size=100_000_000, **SAID)
        .when_matched_update({"place": "'done'"})
        .execute()
    ),
}


@SQLITE
@pytest.mark.parametrize("kind", DONE)
def test_arguments_do_what_they_do_in_stock(twins: Twins, kind: str) -> None:
    filled(twins).both(DONE[kind])
    ours, stock = twins.open()
    assert ours.history(1)[0]["who"] == stock.history(1)[0]["who"] == "me"
    assert ours.transaction_version("app") == stock.transaction_version("app") == 7
    assert ours.history(1)[0]["operationParameters"] == stock.history(1)[0]["operationParameters"]
    assert ours.schema() == stock.schema()
    if kind in ("delete", "update", "merge"):
        codecs = [
            {pq.read_metadata(u).row_group(0).column(0).compression for u in t.file_uris()}
            for t in (ours, stock)
        ]
        assert "ZSTD" in codecs[0]
        assert "ZSTD" in codecs[1]


REFUSED: dict[str, Callable[[Any], Any]] = {
    "a column that is not there": lambda t: t.delete("nothing = 1"),
    "no SQL": lambda t: t.delete("id = = 1"),
    "an update of nothing": lambda t: t.update(),
    "updates and values": lambda t: t.update({"id": "1"}, new_values={"id": 1}),
    "values of a strange type": lambda t: t.update(new_values={"id": object()}),
    "updates that are no SQL texts": lambda t: t.update({"id": 1}),
    "an update of the wrong type": lambda t: t.update({"amount": "'no number'"}),
    "metadata that is kept": lambda t: t.delete(commit_properties=CommitProperties({"operation": "x"})),
    "a merge of rows that match twice": lambda t: (
        merger(t, sales(1, 1)).when_matched_update({"amount": "s.amount"}).execute()
    ),
    "a merge without its column": lambda t: (
        merger(t, sales(1), "t.no = s.id").when_matched_delete().execute()
    ),
    "a merge of the wrong type": lambda t: (
        merger(t, pa.table({"id": pa.array([3], pa.int64()), "amount": pa.array(["no"])}))
        .when_matched_update({"amount": "s.amount"})
        .execute()
    ),
}


@SQLITE
def test_what_stock_refuses_is_refused_alike(twins: Twins) -> None:
    twins.write(sales(*range(5)))
    for refused in REFUSED.values():
        twins.both_fail(refused)


@SQLITE
def test_what_stock_lets_pass_passes(twins: Twins) -> None:
    twins.write(sales(*range(5)))
    twins.both(lambda t: t.update({"nothing": "1"}))
    twins.both(lambda t: merger(t, sales(1)).execute())
    twins.both(lambda t: merger(t, sales(1)).when_matched_update({"nothing": "1"}).execute())


# ---- files that the user has written ----------------------------------------------------------------------


def handed_in(table: Any, name: str, *numbers: int, place: str = "x") -> AddAction:
    """A file that lies under the table's root, and the action that tells of it."""
    target = Path(table.table_uri.removeprefix("file://")) / name
    target.parent.mkdir(exist_ok=True)
    pq.write_table(sales(*numbers).drop_columns(["place"]), target)
    return AddAction(
        name, target.stat().st_size, {"place": place}, 1, True, f'{{"numRecords": {len(numbers)}}}'
    )


def test_files_that_lie_there_are_committed_as_they_are(twins: Twins) -> None:
    twins.write(sales(*range(10)), partition_by=["place"])

    def append(table: Any) -> None:
        added = [
            handed_in(table, "place=x/mine 1.parquet", 100),
            handed_in(table, "place=y/2.parquet", 101, place="y"),
        ]
        table.create_write_transaction(
            added, mode="append", schema=table.schema(), partition_by=["place"], commit_properties=NOTES
        )

    def replace_one(table: Any) -> None:
        table.create_write_transaction(
            [handed_in(table, "place=x/3.parquet", 102)],
            mode="overwrite",
            schema=table.schema(),
            partition_by="place",
            partition_filters=[("place", "=", "x")],
        )

    def remove(table: Any) -> None:
        gone = [
            RemoveAction(path, data_change=True, deletion_timestamp=1)
            for path in pa.table(table.get_add_actions())["path"].to_pylist()
            if path.startswith("place=y/")
        ]
        table.create_write_transaction(gone, mode="append", schema=table.schema())

    for work in (append, replace_one, remove):
        twins.both(work)
    assert DeltaTable(twins.uri).transaction_version("app") == 7
    stale = DeltaTable(twins.uri)
    stale.load_as_version(2)
    with pytest.raises(ConflictError):
        remove(stale)
    twins.both_fail(
        lambda t: t.create_write_transaction(
            [RemoveAction("x", data_change=True, deletion_timestamp=1)], mode="overwrite", schema=t.schema()
        )
    )
