"""The change data feed of SQL-backed tables: the rows that stock gives for the same work on a plain table."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest

import deltalakedb
from deltalakedb import Catalog, DeltaTable, import_table, write_deltalake
from deltalakedb.exceptions import (
    ArgumentTypeError,
    DeltaError,
    InvalidArgumentError,
    ProtocolError,
    VersionMissingError,
)
from deltalakedb.protocol.actions import Remove
from deltalakedb.protocol.dv import inline_dv
from deltalakedb.table.read.change_feed import _as_add
from support.feeds import (
    FEED,
    changed_table,
    changes,
    commit_actions,
    hide_log,
    put_vector,
    remove_all,
    switch_on_feed,
)

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import TableUri


@pytest.fixture
def twins(table_uri: TableUri, tmp_path: Path) -> tuple[deltalake.DeltaTable, DeltaTable]:
    """The same work on a plain table and on a SQL-backed one, whose log is then taken away."""
    plain = changed_table(deltalake, str(tmp_path / "plain"))
    ours = changed_table(deltalakedb, table_uri("t"))
    hide_log(ours)
    return plain, ours


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """The address of a new table; what does not depend on the engine is tested on SQLite."""
    return f"deltasql://sqlite/{tmp_path}/meta.db?table=t&location={tmp_path}/t"


def test_the_feed_is_that_of_a_plain_table(twins: tuple[deltalake.DeltaTable, DeltaTable]) -> None:
    theirs, mine = (pa.table(t.load_cdf().read_all()) for t in twins)
    assert mine.schema == theirs.schema
    assert changes(mine) == changes(theirs)
    for wanted in (
        {"starting_version": 1},
        {"starting_version": 1, "ending_version": 2},
        {"ending_version": 99},
        {"predicate": "id = 2"},
        {"predicate": "ID = 2 AND _change_type = 'delete'"},
        {"predicate": "_commit_version > 1 AND p = 'b'"},
        {"columns": ["s", "_change_type"]},
        {"columns": ["_commit_version", "id"], "predicate": "s = 'x'"},
        {"starting_version": 99, "allow_out_of_range": True},
        {"starting_version": 3, "ending_version": 1, "allow_out_of_range": True},
        {"ending_timestamp": "2000-01-01T00:00:00Z"},
        {"starting_timestamp": "2000-01-01T00:00:00Z"},
        {"starting_version": None, "starting_timestamp": "2000-01-01T00:00:00Z"},
        {"starting_timestamp": "2999-01-01T00:00:00Z", "allow_out_of_range": True},
    ):
        theirs, mine = (pa.table(t.load_cdf(**wanted).read_all()) for t in twins)
        assert mine.schema == theirs.schema, wanted
        assert changes(mine) == changes(theirs), wanted


def test_times_are_those_of_the_commits(twins: tuple[deltalake.DeltaTable, DeltaTable]) -> None:
    ours = twins[1]
    rows = pa.table(ours.load_cdf().read_all()).to_pylist()
    times = {h["version"]: h["timestamp"] for h in ours.history()}
    for row in rows:
        moment = row["_commit_timestamp"].replace(tzinfo=UTC)
        assert round(moment.timestamp() * 1000) == times[row["_commit_version"]]
    second = datetime.fromtimestamp(times[2] / 1000, UTC).isoformat()
    later = pa.table(ours.load_cdf(starting_timestamp=second).read_all())
    assert set(later["_commit_version"].to_pylist()) == {v for v in times if v >= 2}
    before = pa.table(ours.load_cdf(ending_timestamp=second).read_all())
    assert set(before["_commit_version"].to_pylist()) == {0, 1, 2}
    alone = pa.table(ours.load_cdf(None, starting_timestamp=second).read_all())
    assert changes(alone) == changes(later)


def test_an_older_handle_reads_up_to_the_newest_version(
    twins: tuple[deltalake.DeltaTable, DeltaTable],
) -> None:
    whole = changes(twins[1].load_cdf().read_all())
    for table in twins:
        table.load_as_version(1)
        assert changes(table.load_cdf().read_all()) == whole


@pytest.mark.parametrize(
    ("wanted", "error", "words"),
    [
        ({"starting_version": 99}, VersionMissingError, "Invalid table version: 99"),
        ({"starting_version": 3, "ending_version": 1}, InvalidArgumentError, "greater than end version"),
        ({"starting_timestamp": "2999-01-01T00:00:00Z"}, VersionMissingError, "latest commit timestamp"),
        ({"starting_timestamp": "soon"}, InvalidArgumentError, "not a time"),
        ({"starting_version": None}, InvalidArgumentError, "No starting version"),
        ({"starting_version": -1}, InvalidArgumentError, "a version is a whole number"),
        ({"starting_version": "1"}, ArgumentTypeError, "a version is a whole number"),
        ({"ending_version": True}, ArgumentTypeError, "a version is a whole number"),
        ({"columns": ["nope"]}, InvalidArgumentError, "no column 'nope'"),
        ({"columns": "id"}, ArgumentTypeError, "list of names"),
        ({"predicate": 5}, ArgumentTypeError, "text"),
        ({"predicate": "nope = 1"}, DeltaError, "nope"),
        ({"predicate": "id ="}, DeltaError, "Expected"),
    ],
)
def test_wrong_arguments_are_errors_of_the_call(
    uri: str, wanted: dict[str, Any], error: type[Exception], words: str
) -> None:
    write_deltalake(uri, pa.table({"id": [1]}), configuration=FEED)
    for _ in range(3):
        write_deltalake(uri, pa.table({"id": [2]}), mode="append")
    with pytest.raises(error, match=words):
        DeltaTable(uri).load_cdf(**wanted)


def test_versions_without_recorded_changes_are_refused(uri: str) -> None:
    write_deltalake(uri, pa.table({"id": [1]}))
    write_deltalake(uri, pa.table({"id": [2]}), mode="append")
    for version in (0, 1):
        with pytest.raises(ProtocolError, match=f"not enabled for version: {version}"):
            DeltaTable(uri).load_cdf(version)
    begun = switch_on_feed(uri)
    assert changes(DeltaTable(uri).load_cdf(begun).read_all()) == []
    with pytest.raises(ProtocolError, match="not enabled for version: 0"):
        DeltaTable(uri).load_cdf()


def test_names_that_differ_in_case_and_odd_partition_values_are_read(uri: str) -> None:
    data = pa.table({"Id": [1, 2, 3], "p q": ["a b", "c/d", None], "s": [{"x": "y"}] * 3})
    write_deltalake(uri, data, partition_by=["p q"], configuration=FEED)
    table = DeltaTable(uri)
    table.update(updates={"s": "named_struct('x', 'z')"}, predicate='"Id" = 2')
    found = pa.table(table.load_cdf(columns=["Id", "p q", "s"], predicate="Id = 2").read_all())
    assert sorted(found.to_pylist(), key=str) == sorted(
        [
            {"Id": 2, "p q": "c/d", "s": {"x": "y"}},
            {"Id": 2, "p q": "c/d", "s": {"x": "y"}},
            {"Id": 2, "p q": "c/d", "s": {"x": "z"}},
        ],
        key=str,
    )


def test_inside_a_transaction_the_feed_ends_at_its_snapshot(uri: str) -> None:
    write_deltalake(uri, pa.table({"id": [1]}), configuration=FEED)
    with Catalog(uri.partition("?")[0]) as catalog:
        with catalog.transaction() as tx:
            table = tx.table("t")
            tx.write("t", pa.table({"id": [2]}))
            assert pa.table(table.load_cdf().read_all())["id"].to_pylist() == [1]
        assert sorted(pa.table(catalog.table("t").load_cdf().read_all())["id"].to_pylist()) == [1, 2]


def test_a_remove_that_says_nothing_of_its_file_is_looked_up(uri: str) -> None:
    write_deltalake(uri, pa.table({"id": [1, 2], "p": ["a", "b"]}), partition_by=["p"], configuration=FEED)
    paths = pa.table(DeltaTable(uri).get_add_actions())["path"].to_pylist()
    commit_actions(uri, [Remove(path=p) for p in paths])
    found = pa.table(DeltaTable(uri).load_cdf(1, columns=["id", "p", "_change_type"]).read_all())
    assert changes(found) == changes(
        pa.table({"id": [1, 2], "p": ["a", "b"], "_change_type": ["delete", "delete"]})
    )


def test_deletion_vectors_that_grow_and_shrink_are_deletes_and_inserts(uri: str) -> None:
    write_deltalake(
        uri,
        pa.table({"id": list(range(10))}),
        configuration={**FEED, "delta.enableDeletionVectors": "true"},
    )
    for rows in ([1, 2], [1, 2, 7], [2], []):
        put_vector(uri, inline_dv(rows) if rows else None)
    table = DeltaTable(uri)
    found = [
        (r["_commit_version"], r["_change_type"], r["id"])
        for r in pa.table(table.load_cdf(1).read_all()).to_pylist()
    ]
    assert sorted(found) == [
        (1, "delete", 1),
        (1, "delete", 2),
        (2, "delete", 7),
        (3, "insert", 1),
        (3, "insert", 7),
        (4, "insert", 2),
    ]


def test_column_mapping_is_no_hindrance(golden: Path, tmp_path: Path) -> None:
    """Stock refuses the feed of a mapped table; ours reads it by the physical names."""
    root = tmp_path / "mapped"
    shutil.copytree(golden / "tables" / "delta" / "dv-with-columnmapping", root)
    uri = f"deltasql://sqlite/{tmp_path}/meta.db?table=mapped"
    import_table(str(root), uri)
    version = switch_on_feed(uri)
    table = DeltaTable(uri)
    before = table.to_pyarrow_table().to_pylist()
    remove_all(uri)
    hide_log(table)
    found = pa.table(DeltaTable(uri).load_cdf(version).read_all())
    rows = [{k: v for k, v in r.items() if not k.startswith("_")} for r in found.to_pylist()]
    assert set(found["_change_type"].to_pylist()) == {"delete"}
    in_order = [{name: row[name] for name in rows[0]} for row in before]
    assert sorted(map(str, rows)) == sorted(map(str, in_order))


def test_a_remove_becomes_the_file_it_was() -> None:
    vector = inline_dv([1])
    add = _as_add(Remove(path="a", partition_values={"p": "1"}, size=3, deletion_vector=vector))
    assert (add.path, add.partition_values, add.size, add.deletion_vector) == ("a", {"p": "1"}, 3, vector)
