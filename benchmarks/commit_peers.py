"""The systems that commits are measured on, each with the same few calls.

Imported by fresh processes in two environments: only the standard library at module level.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_COMMIT: Final = re.compile(r"\d{20}\.json")


class Peer(Protocol):
    """A system with a number of two-column tables, named by numbers."""

    def create(self, tables: int) -> None:
        """Make empty tables."""

    def open(self) -> None:
        """Connect and import, so that no figure holds it."""

    def append(self, table: int) -> None:
        """Commit one row."""

    def atomic(self, tables: Sequence[int]) -> None:
        """Commit one row in each of some tables, all or none."""

    def state(self, table: int) -> tuple[int, int]:
        """Rows, and commits after the table's creation; both counted from what is stored."""


class DeltaRs:
    """Stock ``deltalake`` on plain paths, by address or with a handle that is kept."""

    def __init__(self, place: Mapping[str, Any]) -> None:
        self._folder, self._kept = place["folder"], place["variant"] == "kept"
        self._handles: dict[int, Any] = {}

    def open(self) -> None:
        """The row to append."""
        import deltalake
        import pyarrow as pa

        self._write, self._class = deltalake.write_deltalake, deltalake.DeltaTable
        self._row = pa.table({"id": pa.array([1], pa.int64()), "v": pa.array(["x"])})

    def create(self, tables: int) -> None:
        """Empty tables."""
        for number in range(tables):
            self._class.create(self._path(number), self._row.schema)

    def append(self, table: int) -> None:
        """By path, or by the handle kept for it."""
        if not self._kept:
            self._write(self._path(table), self._row, mode="append")
            return
        if table not in self._handles:
            self._handles[table] = self._class(self._path(table))
        self._write(self._handles[table], self._row, mode="append")

    def atomic(self, tables: Sequence[int]) -> None:
        """There is no such thing."""
        raise NotImplementedError

    def state(self, table: int) -> tuple[int, int]:
        """From the log."""
        return _rows(self._class(self._path(table))), contiguous(self._path(table))

    def _path(self, table: int) -> str:
        return f"{self._folder}/t{table}"


class DuckLake:
    """DuckLake on one of its catalogs; one row is one Parquet file unless the variant is ``inline``."""

    def __init__(self, place: Mapping[str, Any]) -> None:
        self._place = place

    def open(self) -> None:
        """A connection with the catalog attached."""
        import duckdb

        place, folder = self._place, self._place["folder"]
        os.makedirs(folder, exist_ok=True)  # noqa: PTH103 - pathlib has no part in this file
        self._connection = duckdb.connect()
        for file in place["extensions"]:
            self._connection.execute(f"LOAD '{file}'")
        catalog = {
            "duckdb": f"{folder}/catalog.ducklake",
            "sqlite": f"sqlite:{folder}/catalog.sqlite",
            "postgres": f"postgres:host={place['sockets']} user=postgres dbname={place['database']}",
        }[place["engine"]]
        inlined = "" if place["variant"] == "inline" else ", DATA_INLINING_ROW_LIMIT 0"
        self._connection.execute(f"ATTACH 'ducklake:{catalog}' AS l (DATA_PATH '{folder}/data/'{inlined})")

    def create(self, tables: int) -> None:
        """Empty tables."""
        for number in range(tables):
            self._connection.execute(f"CREATE TABLE l.t{number} (id BIGINT, v VARCHAR)")

    def append(self, table: int) -> None:
        """One INSERT."""
        self._connection.execute(f"INSERT INTO l.t{table} VALUES (1, 'x')")

    def atomic(self, tables: Sequence[int]) -> None:
        """INSERTs in one transaction."""
        self._connection.execute("BEGIN")
        try:
            for number in tables:
                self.append(number)
            self._connection.execute("COMMIT")
        except Exception:
            with suppress(Exception):
                self._connection.execute("ROLLBACK")
            raise

    def state(self, table: int) -> tuple[int, int]:
        """Snapshots have one row of numbers for all tables; they have to be without a hole."""
        rows = self._connection.execute(f"SELECT count(*) FROM l.t{table}").fetchone()[0]
        first, last, count, changed = self._connection.execute(
            "SELECT min(snapshot_id), max(snapshot_id), count(*), "
            "count(*) FILTER (WHERE list_contains(map_keys(changes), 'tables_inserted_into')"
            " OR list_contains(map_keys(changes), 'inlined_insert')) FROM ducklake_snapshots('l')"
        ).fetchone()
        if last - first + 1 != count:
            raise SystemExit(f"the snapshots {first} to {last} are only {count}")
        return rows, changed


class Ours:
    """This package, by address, every commit published before the call returns."""

    def __init__(self, place: Mapping[str, Any]) -> None:
        from urllib.parse import quote

        self._folder = place["folder"]
        self._options = ""
        if place["engine"] == "postgres":
            host = f"127.0.0.1:{place['port']}" if place["port"] else quote(place["sockets"], safe="")
            self._catalog = f"deltasql://postgres/postgres@{host}/{place['database']}/lake"
            self._options = "&sslmode=disable" if place["port"] else ""
        else:
            self._catalog = f"deltasql://{place['engine']}/{quote(self._folder)}/catalog.{place['engine']}"

    def open(self) -> None:
        """The row to append."""
        import deltalake
        import pyarrow as pa

        import deltalakedb

        self._us, self._stock = deltalakedb, deltalake
        self._row = pa.table({"id": pa.array([1], pa.int64()), "v": pa.array(["x"])})
        self._lake = deltalakedb.Catalog(f"{self._catalog}{self._options.replace('&', '?')}")

    def create(self, tables: int) -> None:
        """Empty tables."""
        for number in range(tables):
            where = f"{self._address(number)}&location={self._path(number)}"
            self._us.DeltaTable.create(where, self._row.schema)

    def append(self, table: int) -> None:
        """By address, as one would write without thinking of a handle."""
        self._us.write_deltalake(self._address(table), self._row, mode="append")

    def atomic(self, tables: Sequence[int]) -> None:
        """One transaction."""
        with self._lake.transaction() as tx:
            for number in tables:
                tx.write(f"t{number}", self._row, mode="append")

    def state(self, table: int) -> tuple[int, int]:
        """From the catalog, and from `_delta_log` as stock reads it: they have to agree."""
        ours, path = self._us.DeltaTable(self._address(table)), self._path(table)
        stock = self._stock.DeltaTable(path)
        found, mirrored = (_rows(ours), ours.version()), (_rows(stock), contiguous(path))
        if found != mirrored:
            raise SystemExit(f"the catalog has {found} rows and commits, the log {mirrored}")
        return found

    def _address(self, table: int) -> str:
        return f"{self._catalog}?table=t{table}{self._options}"

    def _path(self, table: int) -> str:
        return f"{self._folder}/t{table}"


def _rows(table: Any) -> int:
    return sum(n.as_py() for n in table.get_add_actions(flatten=True).column("num_records"))


def contiguous(path: str) -> int:
    """The newest version in a table's log, in which none may be missing."""
    found = sorted(int(n[:20]) for n in os.listdir(f"{path}/_delta_log") if _COMMIT.fullmatch(n))  # noqa: PTH208
    if found != list(range(len(found))):
        raise SystemExit(f"{path} has {len(found)} commits, and the newest is {found[-1]}")
    return found[-1]


PEERS: Final[Mapping[str, Any]] = {"delta-rs": DeltaRs, "ducklake": DuckLake, "ours": Ours}
