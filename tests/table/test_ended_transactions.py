"""What users hold of a transaction's tables once it is over."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from deltalakedb import Catalog, DeltaTable
from deltalakedb.exceptions import ConflictError, InvalidArgumentError, TableMissingError

if TYPE_CHECKING:
    from pathlib import Path

ROWS = pa.table({"id": [1, 2]})


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    made = Catalog(f"deltasql://sqlite/{tmp_path}/meta.db")
    made.set_root(tmp_path)
    for name in ("a", "b", "c"):
        made.write(name, ROWS)
    return made


def test_after_a_commit_a_handle_is_an_ordinary_table(catalog: Catalog) -> None:
    with catalog.transaction() as tx:
        written, read, renamed = tx.table("a"), tx.table("b"), tx.table("c")
        tx.write("a", ROWS)
        tx.rename_table("c", "d")
        new = tx.create_table("n", ROWS.schema)
        tx.write("n", ROWS)
    catalog.write("b", ROWS, mode="append")
    assert (written.version(), written.count()) == (1, 4)
    assert (read.version(), read.count()) == (0, 2), "what was only read stays what was read"
    assert (renamed.name, renamed.version()) == ("d", 0)
    assert (new.version(), new.to_pyarrow_table().num_rows) == (tx.commits["n"].version, 2)
    read.update_incremental()
    assert read.version() == 1
    assert written == catalog.table("a")
    written.delete("id = 1")
    assert (written.version(), catalog.table("a").version()) == (2, 2)
    assert written.history(1)[0]["operation"] == "DELETE"


def test_after_a_rollback_a_handle_says_so(catalog: Catalog) -> None:
    with catalog.transaction() as tx:
        held = tx.table("a")
        tx.write("a", ROWS)
        assert held.count() == 4
        tx.rollback()
    for use in (held.version, held.to_pyarrow_table, held.file_uris, held.schema, lambda: held.delete()):
        with pytest.raises(InvalidArgumentError, match="rolled back") as caught:
            use()
        assert "open the table again" in (caught.value.suggestion or "")
    assert "meta.db" in repr(held)
    assert catalog.table("a").count() == 2


@pytest.mark.parametrize("rolled_back", [False, True])
def test_an_ended_transaction_is_freed_at_once(catalog: Catalog, rolled_back: bool) -> None:
    gc.collect()
    gc.disable()  # it would free a cycle of the transaction and its handles, but late and in a long pause
    try:
        with catalog.transaction() as tx:
            held = tx.table("a")
            tx.write("a", ROWS)
            if rolled_back:
                tx.rollback()
        ended = weakref.ref(tx)
        del tx
        assert ended() is None
    finally:
        gc.enable()
    assert held.name == "a"


def test_a_commit_that_lost_leaves_rolled_back_handles(catalog: Catalog) -> None:
    with catalog.transaction() as tx:
        held = tx.table("a")
        held.delete("id = 1")
        catalog.table("a").delete("id = 1")
        with pytest.raises(ConflictError):
            tx.commit()
    with pytest.raises(InvalidArgumentError, match="rolled back"):
        held.count()


def test_the_handle_of_a_dropped_table_says_so(catalog: Catalog) -> None:
    with catalog.transaction() as tx:
        held, new = tx.table("a"), tx.create_table("n", ROWS.schema)
        tx.drop_table("a")
        tx.drop_table("n")
    for table in (held, new):
        with pytest.raises(TableMissingError, match="dropped in its transaction"):
            table.count()


def test_handles_of_a_catalogs_snapshot_stay_at_their_version(catalog: Catalog) -> None:
    with catalog.snapshot() as seen:
        held = seen.table("a")
    catalog.write("a", ROWS, mode="append")
    assert (held.version(), held.count()) == (0, 2)
    assert isinstance(held, DeltaTable)
