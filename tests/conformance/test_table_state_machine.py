"""Any order of appends, overwrites and travels agrees with a plain model, and with what stock reads."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from deltalakedb import Catalog, DeltaTable, write_deltalake
from deltalakedb.metastore.database import close_all
from support.lake import ids, ids_of

if TYPE_CHECKING:
    import pyarrow as pa

numbers = st.lists(st.integers(-(2**62), 2**62), max_size=3, unique=True)
parts = st.sampled_from(["a", "b c", "d/e", "ü%"])


class TableMachine(RuleBasedStateMachine):
    """A table beside a list of what each version should hold."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="deltasql-machine-"))
        self.catalog_uri = f"deltasql://sqlite/{self.folder}/catalog.db?synchronous=NORMAL"
        self.name = "t"
        self.versions: list[list[int]] = []

    @property
    def uri(self) -> str:
        return f"{self.catalog_uri}&table={self.name}"

    def _write(self, rows: pa.Table, mode: Any, **options: Any) -> None:
        where = f"&location={self.folder}/lake" if not self.versions else ""
        write_deltalake(self.uri + where, rows, mode=mode, **options)

    @initialize(values=numbers, partitioned=st.booleans())
    def create(self, values: list[int], partitioned: bool) -> None:
        self._write(ids(*values), "error", partition_by=["part"] if partitioned else None)
        self.versions.append(sorted(values))

    @rule(values=numbers, part=parts)
    def append(self, values: list[int], part: str) -> None:
        self._write(ids(*values, part=part), "append")
        self.versions.append(sorted(self.versions[-1] + values))

    @rule(values=numbers, part=parts)
    def overwrite(self, values: list[int], part: str) -> None:
        self._write(ids(*values, part=part), "overwrite")
        self.versions.append(sorted(values))

    @rule(values=numbers)
    def ignore(self, values: list[int]) -> None:
        self._write(ids(*values), "ignore")

    @rule(number=st.integers(0, 100))
    def rename(self, number: int) -> None:
        Catalog(self.catalog_uri).rename_table(self.name, f"n{number}")
        self.name = f"n{number}"

    @rule()
    def reopen(self) -> None:
        close_all()

    @precondition(lambda self: self.versions)
    @rule(data=st.data())
    def travel(self, data: st.DataObject) -> None:
        version = data.draw(st.integers(0, len(self.versions) - 1))
        bound = data.draw(st.integers(-(2**62), 2**62))
        table = DeltaTable(self.uri, version=version)
        assert ids_of(table) == self.versions[version]
        above = table.to_pyarrow_table(filters=[("id", ">", bound)])["id"].to_pylist()
        assert sorted(above) == [v for v in self.versions[version] if v > bound]
        stock = deltalake.DeltaTable(self.folder / "lake", version=version)
        assert ids_of(stock) == self.versions[version]

    @precondition(lambda self: self.versions)
    @invariant()
    def agrees(self) -> None:
        table, stock = DeltaTable(self.uri), deltalake.DeltaTable(self.folder / "lake")
        assert table.version() == stock.version() == len(self.versions) - 1
        assert ids_of(table) == ids_of(stock) == self.versions[-1]
        assert sorted(table.file_uris()) == sorted(stock.file_uris())
        head = Catalog(self.catalog_uri).describe(self.name).head
        assert (head.num_files, head.num_records) == (len(stock.file_uris()), len(self.versions[-1]))

    def teardown(self) -> None:
        close_all()
        shutil.rmtree(self.folder)


TestTableMachine = TableMachine.TestCase
TestTableMachine.settings = settings(max_examples=8, stateful_step_count=10, deadline=None)
