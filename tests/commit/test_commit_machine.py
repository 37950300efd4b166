"""Random histories on two tables: SQL, stock and a plain model agree, and every live file is there.

With stale handles, transactions, restores, vacuums without retention, restores in the middle of a vacuum,
commits that are interrupted, and folders that are moved away.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from deltalakedb import Catalog, DeltaTable, write_deltalake
from deltalakedb.commit import committer
from deltalakedb.exceptions import ConflictError, StorageMissingError, TableFolderMissingError
from deltalakedb.metastore.database import close_all
from deltalakedb.table.maintenance import vacuum as vacuum_module
from support.lake import files_below

PARTS = ("a", "b c", None)
Row = tuple[int, str | None, int]
Rows = Counter[Row]

numbers = st.integers(0, 9)
parts = st.sampled_from(PARTS)
rows = st.lists(st.tuples(numbers, parts, st.integers(0, 3)), min_size=1, max_size=4)
names = st.sampled_from(["a", "b"])

#: a predicate, and the same in Python
predicates = st.one_of(
    numbers.map(lambda n: (f"id = {n}", lambda r: r[0] == n)),
    numbers.map(lambda n: (f"id < {n}", lambda r: r[0] < n)),
    st.just(("part IS NULL", lambda r: r[1] is None)),
    st.just(("part = 'b c'", lambda r: r[1] == "b c")),
    numbers.map(lambda n: (f"part = 'a' AND id >= {n}", lambda r: r[1] == "a" and r[0] >= n)),
    st.just((None, lambda r: True)),
)


def frame(data: list[Row]) -> pa.Table:
    schema = pa.schema([("id", pa.int64()), ("part", pa.string()), ("n", pa.int64())])
    return pa.Table.from_pylist([dict(zip(schema.names, r, strict=True)) for r in data], schema=schema)


def rows_of(table: deltalake.DeltaTable) -> Rows:
    found = pa.RecordBatchReader.from_stream(table.scan()).read_all()
    return Counter(tuple(r[c] for c in ("id", "part", "n")) for r in found.to_pylist())


class Work:
    """An operation: what it does to a table, to the model, and what of the table it reads."""

    def __init__(self, kind: str, data: list[Row], predicate: Any) -> None:
        self.kind, self.data = kind, data
        self.where, self.matches = predicate

    def apply(self, table: Any) -> None:
        """Do it to a handle."""
        if self.kind == "append":
            write_deltalake(table, frame(self.data), mode="append")
        elif self.kind == "overwrite":
            write_deltalake(table, frame(self.data), mode="overwrite")
        elif self.kind == "delete":
            table.delete(self.where)
        elif self.kind == "update":
            table.update({"n": "n + 1"}, predicate=self.where)
        else:
            merger = table.merge(frame(self._source()), "t.id = s.id", source_alias="s", target_alias="t")
            merger.when_matched_update({"n": "s.n"}).when_not_matched_insert_all().execute()

    def _source(self) -> list[Row]:
        return list({r[0]: r for r in self.data}.values())

    def model(self, before: Rows) -> Rows:
        """What the rows are afterwards."""
        if self.kind == "append":
            return before + Counter(self.data)
        if self.kind == "overwrite":
            return Counter(self.data)
        if self.kind == "delete":
            return Counter({r: c for r, c in before.items() if not self.matches(r)})
        after: Rows = Counter()
        if self.kind == "update":
            for row, count in before.items():
                after[(row[0], row[1], row[2] + 1) if self.matches(row) else row] += count
            return after
        source = {r[0]: r for r in self._source()}
        for row, count in before.items():
            after[(row[0], row[1], source[row[0]][2]) if row[0] in source else row] += count
        for number, row in source.items():
            if not any(r[0] == number for r in before):
                after[row] += 1
        return after


works = st.builds(
    Work, st.sampled_from(["append", "append", "overwrite", "delete", "update", "merge"]), rows, predicates
)


NOW: dict[str, Any] = {"retention_hours": 0, "enforce_retention_duration": False}


class Lake(RuleBasedStateMachine):
    """Two tables, a model of each at every version, and handles that others overtake."""

    stale = Bundle("stale")

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="machine-"))
        self.catalog = Catalog(f"deltasql://sqlite/{self.folder}/catalog.db")
        self.history: dict[str, list[Rows]] = {}

    @initialize(first=rows, second=rows)
    def begin(self, first: list[Row], second: list[Row]) -> None:
        for name, data, partition in (("a", first, ["part"]), ("b", second, None)):
            self.catalog.write(name, frame(data), location=self.folder / name, partition_by=partition)
            self.history[name] = [Counter(data)]

    def now(self, name: str) -> Rows:
        return self.history[name][-1]

    def committed(self, name: str, after: Rows, version: int) -> None:
        """Note what a table became; an operation that had nothing to do makes no version."""
        if version == len(self.history[name]):
            self.history[name].append(after)
        assert version == len(self.history[name]) - 1
        assert after == self.now(name)

    @rule(name=names, work=works)
    def operate(self, name: str, work: Work) -> None:
        table = self.catalog.table(name)
        work.apply(table)
        self.committed(name, work.model(self.now(name)), table.version())

    @rule(target=stale, name=names)
    def keep(self, name: str) -> tuple[str, DeltaTable, int]:
        version = len(self.history[name]) - 1
        return name, self.catalog.table(name, version=version), version

    @rule(handle=consumes(stale), work=works)
    def operate_late(self, handle: tuple[str, DeltaTable, int], work: Work) -> None:
        """A handle that stays at its version either loses, or the order of commits explains the result."""
        name, table, version = handle
        before = len(self.history[name]) - 1
        if not self.is_readable(name, version):
            return  # a vacuum has deleted its files
        assert rows_of(table) == self.history[name][version]
        lost = self.loses(table, work)
        newest = self.catalog.table(name).version()
        if lost is not None:
            assert work.kind != "append"
            assert version < (lost.version or 0) <= before == newest
        elif newest == before:
            # it had nothing to do at its version, which is where its place in the order is
            seen = self.history[name][version]
            assert work.model(seen) == seen
        else:
            # serializable: as if it had begun after everything that was committed before it
            self.committed(name, work.model(self.now(name)), newest)

    @staticmethod
    def loses(table: DeltaTable, work: Work) -> ConflictError | None:
        try:
            work.apply(table)
        except ConflictError as conflict:
            return conflict
        return None

    @rule(
        steps=st.lists(st.tuples(names, works), min_size=1, max_size=4),
        outcome=st.sampled_from(["commit", "raise"]),
    )
    def transact(self, steps: list[tuple[str, Work]], outcome: str) -> None:
        seen = {name: self.now(name) for name in ("a", "b")}
        files = files_below(self.folder)
        try:
            with self.catalog.transaction() as tx:
                for name, work in steps:
                    work.apply(tx.table(name))
                    seen[name] = work.model(seen[name])
                    assert rows_of(tx.table(name)) == seen[name]
                    assert rows_of(self.catalog.table(name)) == self.now(name)
                if outcome == "raise":
                    raise KeyError("stop")
        except KeyError:
            left = {f for f in files_below(self.folder) if not f.startswith("catalog.db")}
            assert left == {f for f in files if not f.startswith("catalog.db")}
            return
        for name in ("a", "b"):
            self.committed(name, seen[name], self.catalog.table(name).version())

    @rule(first=works, second=works, other=names)
    def race(self, first: Work, second: Work, other: str) -> None:
        """Two transactions that each read one table and write the other: an order explains the result."""
        one, two = self.catalog.transaction(), self.catalog.transaction()
        mine, theirs = ("a", "b") if other == "b" else ("b", "a")
        with one, two:
            sums = [sum(rows_of(one.table(theirs)).values()), sum(rows_of(two.table(mine)).values())]
            assert sums == [sum(self.now(theirs).values()), sum(self.now(mine).values())]
            first.apply(one.table(mine))
            second.apply(two.table(theirs))
            one.commit()
            changed = bool(one.commits)
            lost = False
            try:
                two.commit()
            except ConflictError:
                lost = True
        self.committed(mine, first.model(self.now(mine)), self.catalog.table(mine).version())
        if lost:
            assert changed
            assert self.catalog.table(theirs).version() == len(self.history[theirs]) - 1
        else:
            after = second.model(self.now(theirs))
            wrote = self.catalog.table(theirs).version() == len(self.history[theirs])
            # had both written something, one of them would have read what the other changed
            assert not (changed and wrote)
            self.committed(theirs, after, self.catalog.table(theirs).version())

    def is_readable(self, name: str, version: int) -> bool:
        """Whether every file of a version is there."""
        return all(Path(uri).exists() for uri in self.catalog.table(name, version=version).file_uris())

    @rule(name=names, data=st.data())
    def restore(self, name: str, data: st.DataObject) -> None:
        """A version comes back as a whole, or not at all if a vacuum has deleted one of its files."""
        newest = len(self.history[name]) - 1
        if newest == 0:
            return
        version = data.draw(st.integers(0, newest - 1))
        table = self.catalog.table(name)
        if self.is_readable(name, version):
            table.restore(version)
            self.committed(name, self.history[name][version], table.version())
        else:
            with pytest.raises(StorageMissingError):
                table.restore(version)

    @rule(name=names, full=st.booleans(), data=st.data())
    def vacuum(self, name: str, full: bool, data: st.DataObject) -> None:
        """No version that is kept loses a file, and the dry run says just what goes."""
        newest = len(self.history[name]) - 1
        kept = data.draw(st.sets(st.integers(0, newest), max_size=2))
        kept = {version for version in kept if self.is_readable(name, version)}
        table = self.catalog.table(name)
        wanted = {**NOW, "full": full, "keep_versions": sorted(kept)}
        listed = table.vacuum(**wanted, dry_run=True)
        before = files_below(self.folder / name)
        assert table.vacuum(**wanted, dry_run=False) == listed
        after = files_below(self.folder / name)
        assert {f for f in before - after if not f.startswith("_delta_log")} == set(listed)
        self.history[name] += [self.now(name)] * (2 if listed else 0)
        assert all(self.is_readable(name, version) for version in kept)

    @rule(name=names, data=st.data())
    def restore_amid_vacuum(self, name: str, data: st.DataObject) -> None:
        """A restore between a vacuum's last look and its deletion: refused, or its files stay."""
        newest = len(self.history[name]) - 1
        version = data.draw(st.integers(0, newest))
        restored: list[int] = []

        def restore(_: str) -> None:
            table = self.catalog.table(name)
            try:
                table.restore(version)
            except (ConflictError, StorageMissingError):
                return
            restored.append(table.version())

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(vacuum_module, "failpoint", restore)
            deleted = self.catalog.table(name).vacuum(**NOW, dry_run=False)
        if deleted:
            self.history[name].append(self.now(name))
            if restored:
                self.committed(name, self.history[name][version], restored[0])
            self.history[name].append(self.now(name))

    @rule(name=names, work=works, point=st.sampled_from(["commit.before_commit", "commit.after"]))
    def interrupt(self, name: str, work: Work, point: str) -> None:
        """Ctrl-C around COMMIT: the work is done as a whole or not at all."""
        before = len(self.history[name])

        def stop(reached: str) -> None:
            if reached == point:
                raise KeyboardInterrupt

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(committer, "failpoint", stop)
            try:
                work.apply(self.catalog.table(name))
            except KeyboardInterrupt:
                assert point != "commit.before_commit" or self.catalog.table(name).version() == before - 1
        version = self.catalog.table(name).version()
        if version == before:
            self.committed(name, work.model(self.now(name)), version)
        self.catalog.mirror.publish(name)

    @rule(name=names, work=works, whole=st.booleans())
    def lose_the_folder(self, name: str, work: Work, whole: bool) -> None:
        """While a table's folder is moved away, or empty, nothing is written and nothing is created."""
        home, away = self.folder / name, self.folder / f"{name}-away"
        home.rename(away)
        if not whole:
            home.mkdir()
        try:
            for attempt in (work.apply, lambda t: t.repair(), lambda t: t.create_checkpoint()):
                with pytest.raises(TableFolderMissingError):
                    attempt(self.catalog.table(name))
            with pytest.raises(TableFolderMissingError), self.catalog.transaction() as tx:
                tx.write(name, frame([(1, "a", 1)]), mode="append")
            with pytest.raises(TableFolderMissingError):
                self.catalog.mirror.repair(name)
            assert home.exists() is not whole
            assert whole or files_below(home) == set()
        finally:
            if not whole:
                home.rmdir()
            away.rename(home)

    @invariant()
    def sql_and_stock_agree_with_the_model(self) -> None:
        for name, history in self.history.items():
            table = self.catalog.table(name)
            assert table.version() == len(history) - 1
            assert rows_of(table) == history[-1]
            stock = deltalake.DeltaTable(table.table_uri)
            assert stock.version() == len(history) - 1
            assert rows_of(stock) == history[-1]
            assert not (self.folder / name / "_deltasql").exists()

    def teardown(self) -> None:
        for name, history in self.history.items():
            for version, expected in enumerate(history):
                if not self.is_readable(name, version):
                    continue
                assert rows_of(self.catalog.table(name, version=version)) == expected
                assert rows_of(deltalake.DeltaTable(str(self.folder / name), version=version)) == expected
            times = [h["timestamp"] for h in self.catalog.table(name).history()]
            assert times == sorted(set(times), reverse=True)
        close_all()
        shutil.rmtree(self.folder, ignore_errors=True)


TestLake = Lake.TestCase
TestLake.settings = settings(max_examples=12, stateful_step_count=12)
