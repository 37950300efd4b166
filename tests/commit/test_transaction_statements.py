"""A user's own statements inside a transaction: with the commit, or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from deltalakedb.exceptions import (
    ConflictError,
    DeltaError,
    InvalidArgumentError,
)
from support.lake import ids
from support.transactions import contents, versions

if TYPE_CHECKING:
    from deltalakedb import Catalog


def test_own_rows_are_written_with_the_commit(lake: Catalog) -> None:
    with lake.transaction() as tx:
        tx.execute("create table mine (id integer, note varchar(50))")
        tx.execute("insert into mine values (?, ?)", (1, "a?b"))
        tx.execute("insert into mine values (2, 'it''s; dl_files -- no')")
        tx.write("a", ids(5))
    rows = lake.query("select id, note from mine order by id").to_pylist()
    assert rows == [{"id": 1, "note": "a?b"}, {"id": 2, "note": "it's; dl_files -- no"}]


def test_own_rows_are_undone_with_the_commit(lake: Catalog) -> None:
    with lake.transaction() as tx:
        tx.execute("create table mine (id integer)")

    def work() -> None:
        with lake.transaction() as tx:
            tx.table("a").delete()
            tx.execute("insert into mine values (1)")
            lake.write("a", ids(5), mode="append")

    with pytest.raises(ConflictError):
        work()
    assert lake.query("select * from mine").num_rows == 0


DISTURBING = [
    "commit",
    "ROLLBACK",
    "  begin",
    "/* x */ commit",
    "-- x\ncommit",
    "savepoint s",
    "end",
    "insert into mine values (1); commit",
    "delete from dl_commits",
    'delete from "dl_commits"',
    "delete from main.dl_commits",
    "insert into DL_FILES values (1)",
    "update [dl_heads] set head_version = 9",
    "vacuum",
    "set transaction isolation level serializable",
    "pragma journal_mode = delete",
    "attach 'x.db' as x",
    "",
    " ; ",
    "select 1 -- ; \n; commit",
    'insert into "a--b" values (1); commit',
]


def test_statements_that_would_disturb_are_refused(lake: Catalog) -> None:
    for statement in DISTURBING:
        with lake.transaction() as tx, pytest.raises(InvalidArgumentError):
            tx.execute(statement)
    assert versions(lake) == {"a": 0, "b": 0, "c": 0}


def test_comments_and_quoted_names_are_no_obstacle(lake: Catalog) -> None:
    with lake.transaction() as tx:
        tx.execute('/* who: me */ create table "odd; -- name" (id integer)')
        tx.execute('-- why\ninsert into "odd; -- name" values (?) -- \';', (1,))
    assert lake.query('select id from "odd; -- name"').to_pylist() == [{"id": 1}]


def test_a_wrong_statement_fails_the_commit_and_names_the_database(lake: Catalog) -> None:
    def work() -> None:
        with lake.transaction() as tx:
            tx.write("a", ids(5))
            tx.execute("insert into nowhere values (1)")

    with pytest.raises(DeltaError):
        work()
    assert contents(lake)["a"] == [0]
