"""Conflicts as users meet them: two handles that read the same version, and the exception of the second."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest

from deltalakedb import Catalog, CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalakedb.exceptions import CommitError, ConflictError
from support.lake import files_below, ids, ids_of, root_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import TableUri


def two(uri: str, version: int = 0) -> tuple[DeltaTable, DeltaTable]:
    """Two handles at a chosen version: neither moves on before it works."""
    return DeltaTable(uri, version=version), DeltaTable(uri, version=version)


def rows(*numbers: int, part: str = "a") -> pa.Table:
    return ids(*numbers, part=part)


@pytest.fixture
def uri(table_uri: TableUri) -> str:
    """A table of four files: two parts, and two ranges of ids in each."""
    address = table_uri("t")
    frame = pa.concat_tables([rows(1, 2, part="a"), rows(1, 2, part="b")])
    write_deltalake(address, frame, partition_by=["part"])
    write_deltalake(
        address, pa.concat_tables([rows(11, 12, part="a"), rows(11, 12, part="b")]), mode="append"
    )
    return address


def lose(uri: str, winner: Callable[[Any], Any], loser: Callable[[Any], Any]) -> ConflictError:
    """The error of the second of two, who leaves no trace."""
    first, second = two(uri, 1)
    winner(first)
    root = root_of(second)
    before = files_below(root)
    with pytest.raises(deltalake.exceptions.CommitFailedError) as caught:
        loser(second)
    assert isinstance(caught.value, ConflictError)
    assert isinstance(caught.value, CommitError)
    assert caught.value.table == "t"
    assert caught.value.version == 2
    assert caught.value.transient
    assert caught.value.suggestion
    assert files_below(root) == before
    assert not (root / "_deltasql").exists()
    assert DeltaTable(uri).version() == 2
    return caught.value


def win(uri: str, winner: Callable[[Any], Any], second_too: Callable[[Any], Any]) -> DeltaTable:
    """The table after both have succeeded."""
    first, second = two(uri, 1)
    winner(first)
    second_too(second)
    table = DeltaTable(uri)
    assert table.version() == second.version() == 3
    assert ids_of(deltalake.DeltaTable(table.table_uri)) == ids_of(table)
    return table


def upsert(table: Any, data: pa.Table, predicate: str = "t.id = s.id AND t.part = s.part") -> None:
    merger = table.merge(data, predicate, source_alias="s", target_alias="t")
    merger.when_matched_update_all().when_not_matched_insert_all().execute()


# ---- both succeed ----------------------------------------------------------------------------------------

PASSING: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "append, append": (
        lambda t: write_deltalake(t, rows(3), mode="append"),
        lambda t: write_deltalake(t, rows(4), mode="append"),
    ),
    "delete, append": (
        lambda t: t.delete("id = 1"),
        lambda t: write_deltalake(t, rows(4), mode="append"),
    ),
    "overwrite, append": (
        lambda t: write_deltalake(t, rows(9), mode="overwrite"),
        lambda t: write_deltalake(t, rows(4), mode="append"),
    ),
    "append in b, delete in a": (
        lambda t: write_deltalake(t, rows(5, part="b"), mode="append"),
        lambda t: t.delete("part = 'a'"),
    ),
    "delete in b, update in a": (
        lambda t: t.delete("part = 'b' AND id = 1"),
        lambda t: t.update({"id": "id + 100"}, predicate="part = 'a' AND id < 5"),
    ),
    "append beyond the range, update": (
        lambda t: write_deltalake(t, rows(500), mode="append"),
        lambda t: t.update({"id": "id + 1"}, predicate="id < 5"),
    ),
    "update of low ids, delete of high ids": (
        lambda t: t.update({"id": "id + 1"}, predicate="id < 5"),
        lambda t: t.delete("id > 10"),
    ),
    "overwrite of b, overwrite of a": (
        lambda t: write_deltalake(t, rows(7, part="b"), mode="overwrite", predicate="part = 'b'"),
        lambda t: write_deltalake(t, rows(8, part="a"), mode="overwrite", predicate="part = 'a'"),
    ),
    "merge into b, merge into a": (
        lambda t: upsert(t, rows(1, 50, part="b"), "t.id = s.id AND t.part = 'b'"),
        lambda t: upsert(t, rows(1, 60, part="a"), "t.id = s.id AND t.part = 'a'"),
    ),
}


@pytest.mark.parametrize("case", PASSING)
def test_writers_who_do_not_meet_both_succeed(uri: str, case: str) -> None:
    win(uri, *PASSING[case])


# ---- the second loses --------------------------------------------------------------------------------------

LOSING: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], str]] = {
    "append, delete that reads it": (
        lambda t: write_deltalake(t, rows(3), mode="append"),
        lambda t: t.delete("id = 3 OR id = 1"),
        "concurrent_append",
    ),
    "append, overwrite": (
        lambda t: write_deltalake(t, rows(3), mode="append"),
        lambda t: write_deltalake(t, rows(9), mode="overwrite"),
        "concurrent_append",
    ),
    "append, update of all": (
        lambda t: write_deltalake(t, rows(500), mode="append"),
        lambda t: t.update({"id": "id + 1"}),
        "concurrent_append",
    ),
    "append, merge": (
        lambda t: write_deltalake(t, rows(3), mode="append"),
        lambda t: upsert(t, rows(3)),
        "concurrent_append",
    ),
    "append, delete by what SQL does not know": (
        lambda t: write_deltalake(t, rows(500), mode="append"),
        lambda t: t.delete("abs(id) = 1"),
        "concurrent_append",
    ),
    "delete, delete of the same": (
        lambda t: t.delete("id = 1 AND part = 'a'"),
        lambda t: t.delete("id = 2 AND part = 'a'"),
        "concurrent_delete_delete",
    ),
    "delete of a part, update of a row in it": (
        lambda t: t.delete("part = 'a'"),
        lambda t: t.update({"id": "7"}, predicate="part = 'a' AND id = 1"),
        "concurrent_delete_delete",
    ),
    "overwrite of a part, delete in it": (
        lambda t: write_deltalake(t, rows(1, part="a"), mode="overwrite", predicate="part = 'a'"),
        lambda t: t.delete("part = 'a' AND id = 12"),
        "concurrent_delete_delete",
    ),
    "new column, append": (
        lambda t: write_deltalake(
            t, rows(3).append_column("more", pa.array([1])), mode="append", schema_mode="merge"
        ),
        lambda t: write_deltalake(t, rows(4), mode="append"),
        "metadata_changed",
    ),
    "application, the same application": (
        lambda t: write_deltalake(t, rows(3), mode="append", commit_properties=_app(1)),
        lambda t: write_deltalake(t, rows(4), mode="append", commit_properties=_app(2)),
        "concurrent_transaction",
    ),
}


def _app(version: int) -> CommitProperties:
    return CommitProperties(app_transactions=[Transaction("app", version)])


@pytest.mark.parametrize("case", LOSING)
def test_the_second_of_two_who_meet_loses(uri: str, case: str) -> None:
    winner, loser, kind = LOSING[case]
    before = set(DeltaTable(uri).file_uris())
    error = lose(uri, winner, loser)
    assert error.context["kind"] == kind
    if kind.startswith("concurrent_append"):
        new = {Path(f).name for f in set(DeltaTable(uri).file_uris()) - before}
        assert {Path(f).name for f in error.context["files"]} <= new
        assert error.context["files"]
    if kind.startswith("concurrent_delete"):
        gone = {Path(f).name for f in before - set(DeltaTable(uri).file_uris())}
        assert {Path(f).name for f in error.context["files"]} <= gone
        assert error.context["files"]
    operation = DeltaTable(uri).history(1)[0]["operation"]
    assert operation in str(error)
    told = json.loads(json.dumps(error.to_dict()))
    assert (told["kind"], told["files"], told["version"]) == (kind, list(error.files), error.version)
    assert (told["operation"], told["predicate"], told["table"]) == (operation, error.predicate, "t")


def test_the_predicate_at_fault_is_told(uri: str) -> None:
    error = lose(
        uri,
        lambda t: write_deltalake(t, rows(2), mode="append"),
        lambda t: t.delete("id < 5 AND part IS NOT NULL OR id IN (1, 2)"),
    )
    assert error.predicate == "(id < 5 AND part IS NOT NULL) OR id IN (1, 2)"
    assert error.predicate in str(error)


def test_the_loser_wins_when_it_reads_again(uri: str) -> None:
    lose(uri, lambda t: t.delete("id = 1"), lambda t: t.delete("id = 2"))
    table = DeltaTable(uri)
    table.delete("id = 2")
    assert ids_of(table) == [11, 11, 12, 12]


def test_write_serializable_as_a_table_property(table_uri: TableUri) -> None:
    uri = table_uri("t")
    write_deltalake(uri, rows(1, 2), configuration={"delta.isolationLevel": "WriteSerializable"})
    write_deltalake(uri, rows(3), mode="append")
    first, second = two(uri, 1)
    write_deltalake(first, rows(4), mode="append")
    second.update({"id": "id + 100"})
    assert ids_of(DeltaTable(uri)) == [4, 101, 102, 103]
    assert second.history(1)[0]["isolationLevel"] == "WriteSerializable"
    first, second = two(uri, 3)
    first.delete("id = 4")
    with pytest.raises(ConflictError):
        second.update({"id": "0"})


def test_write_serializable_asked_for_by_a_transaction(catalog: Catalog, uri: str) -> None:
    with catalog.transaction(isolation="WriteSerializable") as tx:
        tx.table("t").delete("id < 5")
        write_deltalake(uri, rows(3), mode="append")
    assert ids_of(catalog.table("t")) == [3, 11, 11, 12, 12]


def test_a_full_overwrite_never_loses_a_concurrent_append(uri: str) -> None:
    """What delta-rs lets pass: the overwrite would win and the appended row would stay."""
    error = lose(
        uri,
        lambda t: write_deltalake(t, rows(77), mode="append"),
        lambda t: write_deltalake(t, rows(5), mode="overwrite"),
    )
    assert error.context["kind"] == "concurrent_append"
    assert 77 in ids_of(DeltaTable(uri))
