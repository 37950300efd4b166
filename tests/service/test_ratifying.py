"""Commits that other engines hand in: decided like ours, kept byte for byte, published at once."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import deltalake
import pytest

from deltalakedb.protocol.actions import encode_commit
from support.actions import add, info, metadata, protocol, remove
from support.callers import appended, first
from support.lake import ids
from support.mirrors import append, append_outside, blocked, commit_file, logged

if TYPE_CHECKING:
    from pathlib import Path

    from deltalakedb import Catalog
    from support.callers import Caller

one_engine = pytest.mark.parametrize("engine_name", ["sqlite"])


def test_commits_become_versions_byte_for_byte(catalog: Catalog, caller: Caller, root: Path) -> None:
    table = root / "sales" / "orders"
    zero, one = first(add("a")), appended("b")
    assert caller.commit(table, 0, zero).status == 200
    assert commit_file(table, 0).read_bytes() == zero
    said = caller.commit(table, 1, one)
    assert (said.status, said.word, said.text) == (200, "committed", "sales.orders has version 1")
    assert commit_file(table, 1).read_bytes() == one

    rows = catalog.query("SELECT version, operation, origin FROM dl_commits ORDER BY version").to_pylist()
    assert [tuple(row.values()) for row in rows] == [(0, "CREATE TABLE", "service"), (1, "WRITE", "service")]
    assert [f.path for f in catalog.files("sales.orders")] == ["a", "b"]
    assert catalog.log("sales.orders").commit_bytes(1) == one
    assert catalog.mirror.status("sales.orders")[0].versions_behind == 0
    assert catalog.mirror.verify("sales.orders").ok
    blind = catalog.query("SELECT version FROM dl_commits WHERE is_blind_append")["version"].to_pylist()
    assert blind == [1]

    # the same bytes again: the answer was lost. Other bytes: somebody else was first
    assert caller.commit(table, 1, one).word == "committed"
    assert caller.commit(table, 0, zero).word == "committed"
    taken = caller.commit(table, 1, appended("c"))
    assert (taken.status, taken.word) == (409, "taken")
    assert logged(table) == [0, 1]


def test_writers_of_ours_and_of_others_follow_each_other(
    catalog: Catalog, caller: Caller, root: Path
) -> None:
    table = root / "t"
    catalog.write("t", ids(1, 2), location=table)
    gone = next(catalog.files("t")).path
    overwritten = encode_commit(
        [info("DELETE", isBlindAppend=False), remove(gone, partition_values={}, size=1)]
    )
    assert caller.commit(table, 1, overwritten).word == "committed"
    append(catalog, 3)
    assert caller.commit(table, 2, appended()).word == "taken"
    assert catalog.table("t").to_pyarrow_table()["id"].to_pylist() == [3]
    assert deltalake.DeltaTable(table).to_pyarrow_table()["id"].to_pylist() == [3]
    # an application's version that is recorded: the engine decided on it, the bytes tell a repetition
    for version, number in ((3, 7), (4, 7), (5, 3)):
        about = info("WRITE", txnId=str(version))
        sent = encode_commit([about, deltalake_txn("app", number)])
        assert caller.commit(table, version, sent).word == "committed"
    assert catalog.table("t").transaction_version("app") == 3


def deltalake_txn(app: str, version: int) -> Any:
    from deltalakedb.protocol.actions import Txn

    return Txn(app_id=app, version=version)


@one_engine
def test_what_waits_is_published_when_somebody_lists(catalog: Catalog, caller: Caller, root: Path) -> None:
    table = root / "t"
    catalog.write("t", ids(1), location=table)
    catalog.mirror.pause("t")
    append(catalog, 2, 3)
    # paused: listing publishes nothing, and a commit is refused with what to do
    assert caller.publish(table).word == "published"
    held = caller.commit(table, 3, appended())
    assert (held.status, held.word) == (423, "held")
    assert "deltasql mirror resume t" in held.text
    assert "\n" not in held.text
    assert logged(table) == [0]
    catalog.mirror.pause()
    assert caller.commit(root / "new", 0, first()).status == 423
    catalog.mirror._pause(None, paused=False)
    catalog.mirror._pause("t", paused=False)
    # nobody has caught up yet: a conflict is told only when its winner can be read
    assert caller.commit(table, 2, appended()).word == "taken"
    assert logged(table) == [0, 1, 2]
    catalog.mirror.pause("t")
    append(catalog, 4)
    catalog.mirror._pause("t", paused=False)
    said = caller.publish(table)
    assert (said.status, said.word) == (200, "published")
    assert logged(table) == [0, 1, 2, 3]


@one_engine
def test_a_frozen_table_takes_no_commit_and_is_listed_as_it_is(
    catalog: Catalog, caller: Caller, root: Path
) -> None:
    table = root / "t"
    catalog.write("t", ids(1), location=table)
    append_outside(table, 2)
    # Spark saw version 1, which the catalog did not make
    said = caller.commit(table, 2, appended())
    assert (said.status, said.word) == (423, "held")
    assert "mirror recover" in said.text
    assert catalog.describe("t").state == "frozen"
    assert caller.publish(table).word == "published"
    assert caller.commit(table, 1, appended()).status == 423
    # where the policy is to adopt, their commits are taken over and come first
    catalog.mirror.recover("t")
    catalog.mirror.set_policy("t", "adopt")
    append_outside(table, 3)
    assert caller.commit(table, 2, appended()).word == "taken"
    assert caller.commit(table, 3, appended()).word == "committed"


@one_engine
def test_new_tables_are_the_catalogs_under_its_root_or_by_name(
    catalog: Catalog, caller: Caller, root: Path, tmp_path: Path
) -> None:
    for place, name in (("a", "a"), ("ns/b", "ns.b"), ("sales.db/c d", "sales.c d"), ("ü%20", "ü%20")):
        assert caller.commit(root / place, 0, first()).word == "committed"
        assert catalog.describe(name).location == str(root / place)
        assert caller.commit(root / place, 1, appended()).word == "committed"
    apart = tmp_path / "somewhere" / "else"
    assert caller.commit(apart, 0, first()).word == "committed"
    assert catalog.describe("apart").location == str(apart)

    elsewhere = [tmp_path / "plain", root / "t" / "_deltasql" / "x", root / ".hidden", "hdfs://host/t"]
    for place in elsewhere:
        said = caller.commit(place, 0, first())
        assert (said.status, said.word) == (404, "elsewhere"), place
        assert caller.publish(place).status == 404
    assert caller.commit(root / "unknown", 7, appended()).status == 404
    # a plain table that is there already stays what it is
    deltalake.write_deltalake(root / "plain", ids(1))
    assert caller.commit(root / "plain", 0, first()).status == 404
    assert not (tmp_path / "plain").exists()

    for place, why in (("x.y", "without dots"), ("apart", "taken")):
        said = caller.commit(root / place, 0, first())
        assert (said.status, said.word) == (422, "refused"), said
        assert why in said.text
    assert len(catalog.tables()) == 5


@one_engine
def test_a_table_around_others_or_inside_one_is_refused(
    catalog: Catalog, caller: Caller, root: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside" / "t"
    catalog.write("outside", ids(1), location=outside)
    assert caller.commit(root / "a", 0, first()).word == "committed"
    (tmp_path / "link").symlink_to(tmp_path)
    refused = {
        root: "is the catalog's root",
        f"{root}/": "is the catalog's root",
        tmp_path / "link" / "lake": "is the catalog's root",
        tmp_path: "contains the catalog's root",
        root / "a" / "inner": "is inside the folder of the table a",
        outside / "day=1": "is inside the folder of the table outside",
        outside.parent: "contains the table outside",
    }
    for place, why in refused.items():
        said = caller.commit(place, 0, first())
        assert (said.status, said.word) == (422, "refused"), place
        assert "the data files of this write are still there" in said.text
        assert why in said.text
        assert "; write to a folder" in said.text
    # what engines keep for themselves inside of a table, and names that only begin alike
    for place in (outside / "_deltasql" / "x", f"{outside}2", f"{root}2"):
        assert caller.commit(place, 0, first()).word == "elsewhere"
    # a plain table that is there goes on: nobody would find its newer versions otherwise
    assert caller.commit(root, 1, appended()).word == "elsewhere"
    assert sorted(table.name for table in catalog.tables()) == ["a", "outside"]


@one_engine
def test_a_table_is_found_by_every_spelling_of_its_place(
    catalog: Catalog, caller: Caller, root: Path, tmp_path: Path
) -> None:
    table = root / "t"
    assert caller.commit(table, 0, first()).word == "committed"
    link = tmp_path / "link"
    link.symlink_to(root)
    assert caller.commit(link / "t", 1, appended()).word == "committed"
    assert caller.commit(f"file://{table}", 2, appended()).word == "committed"
    assert caller.commit(str(table) + "/../t/.", 3, appended()).word == "committed"
    (tmp_path / "real").mkdir()
    (tmp_path / "by-link").symlink_to(tmp_path / "real")
    catalog.write("linked", ids(1), location=tmp_path / "by-link" / "l")
    assert caller.commit(tmp_path / "real" / "l", 1, appended()).word == "committed"
    assert catalog.describe("linked").head.version == 1


@one_engine
def test_a_commit_that_the_protocol_forbids_is_refused(catalog: Catalog, caller: Caller, root: Path) -> None:
    table = root / "t"
    refused = {
        "holds no action": b"\n",
        "line 1": b"{not json}\n",
        "protocol and metaData": appended(),
        "at most one Metadata": first(metadata()),
        "appears twice": first(add("a"), add("a")),
        "climbs": first(add("../a")),
        "catalogManaged": encode_commit([with_features("catalogManaged"), metadata()]),
        "unheardOf": encode_commit(
            [
                protocol(
                    min_reader_version=3,
                    min_writer_version=7,
                    reader_features=("unheardOf",),
                    writer_features=("unheardOf",),
                ),
                metadata(),
            ]
        ),
    }
    for why, data in refused.items():
        said = caller.commit(table, 0, data)
        assert (said.status, said.word) == (422, "refused"), why
        assert why in said.text
        assert "\n" not in said.text
    assert not table.exists()
    assert catalog.tables() == []
    # features that only writers mind are the business of the engine that wrote
    kept = encode_commit(
        [with_features("identityColumns", "appendOnly"), metadata(configuration=APPEND_ONLY)]
    )
    assert caller.commit(table, 0, kept).word == "committed"
    assert caller.commit(table, 1, encode_commit([remove("a")])).status == 422
    assert caller.commit(table, 2, appended()).status == 422
    assert caller.commit(table, 1, appended()).status == 200


APPEND_ONLY = {"delta.appendOnly": "true"}


def with_features(*names: str) -> Any:
    return protocol(min_reader_version=1, min_writer_version=7, writer_features=names)


@one_engine
def test_a_commit_that_cannot_be_published_stands_and_says_so(
    catalog: Catalog, caller: Caller, root: Path
) -> None:
    table = root / "t"
    assert caller.commit(table, 0, first()).word == "committed"
    one = appended()
    with blocked(table):
        said = caller.commit(table, 1, one)
        assert (said.status, said.word) == (503, "later")
        assert "version 1 of t is ratified, but not in the log yet" in said.text
        assert caller.publish(table).status == 503
        assert caller.commit(table, 1, appended()).status == 503
    assert caller.commit(table, 1, one).word == "committed"
    assert logged(table) == [0, 1]


@one_engine
def test_a_table_whose_files_were_deleted_is_not_created_over_the_catalog(
    catalog: Catalog, caller: Caller, root: Path
) -> None:
    table = root / "t"
    assert caller.commit(table, 0, first()).word == "committed"
    commit_file(table, 0).unlink()
    said = caller.commit(table, 0, first())
    assert said.status == 422
    assert "deltasql drop t" in said.text
    catalog.drop_table("t", force=True)
    assert caller.commit(table, 0, first()).word == "committed"


@one_engine
def test_in_commit_times_have_to_grow(catalog: Catalog, caller: Caller, root: Path) -> None:
    table = root / "t"
    timed = with_features("inCommitTimestamp")
    on = metadata(configuration={"delta.enableInCommitTimestamps": "true"})
    zero = encode_commit([info("CREATE TABLE", inCommitTimestamp=5_000), timed, on])
    assert caller.commit(table, 0, zero).word == "committed"
    late = encode_commit([info("WRITE", inCommitTimestamp=5_000), add("a")])
    assert "not after 5000" in caller.commit(table, 1, late).text
    good = encode_commit([info("WRITE", inCommitTimestamp=5_001), add("a")])
    assert caller.commit(table, 1, good).word == "committed"
    assert catalog.commits("t")[0].committed_at == 5_001


def test_many_callers_at_once_lose_nothing(catalog: Catalog, caller: Caller, root: Path) -> None:
    table = root / "t"
    won: list[int] = []

    def work(number: int) -> None:
        zero = first()
        if caller.commit(table, 0, zero).word == "committed":
            won.append(0)
        for step in range(4):
            data, version = appended(f"{number}-{step}"), 1
            while (said := caller.commit(table, version, data)).word == "taken":
                version += 1
            assert said.word == "committed", said
            won.append(version)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == list(range(17))
    assert logged(table) == list(range(17))
    assert len(list(catalog.files("t"))) == 16
    assert catalog.mirror.verify("t").ok
