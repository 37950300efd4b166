"""Data files that cannot be read: every way of reading names the file and what to do, as a typed error."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from deltalakedb import DeltaTable, QueryBuilder, write_deltalake
from deltalakedb.exceptions import DataFileCorruptError, DeltaError, StorageError, StorageMissingError
from deltalakedb.metastore.database import close_all
from deltalakedb.storage.store import open_store
from support.lake import child, finish, ids

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conftest import TableUri
    from support.stores import StoreServers


def _merge(table: DeltaTable) -> Any:
    merger = table.merge(ids(4), "t.id = s.id", source_alias="s", target_alias="t")
    return merger.when_matched_delete().execute()


#: by name what reads rows, and raises its errors in Python
READS: dict[str, Callable[[DeltaTable], object]] = {
    "table": lambda t: t.to_pyarrow_table(),
    "pandas": lambda t: t.to_pandas(),
    "filtered": lambda t: t.to_pyarrow_table(filters=[("id", ">", 1)]),
    "filtered by SQL": lambda t: t.to_pyarrow_table(filters="id > 1"),
    "dataset": lambda t: t.to_pyarrow_dataset().to_table(),
    "batches": lambda t: list(t.to_pyarrow_dataset().to_batches()),
    "head": lambda t: t.to_pyarrow_dataset().head(9),
    "take": lambda t: t.to_pyarrow_dataset().take([0]),
    "rows": lambda t: t.to_pyarrow_dataset().count_rows(),
    "delete": lambda t: t.delete("id = 4"),
    "update": lambda t: t.update({"id": "id + 1"}),
    "merge": _merge,
    "compact": lambda t: t.optimize.compact(),
    "z-order": lambda t: t.optimize.z_order(["id"]),
    "constraint": lambda t: t.alter.add_constraint({"x": "id > 0"}),
}
#: streams cross Arrow's C interface, which keeps an error's words but not its class
STREAMS: dict[str, Callable[[DeltaTable], Any]] = {
    "scan": lambda t: t.scan(),
    "query": lambda t: QueryBuilder().register("t", t).execute("SELECT * FROM t"),
    "changes": lambda t: t.load_cdf(0),
}


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def other(file: Path) -> None:
    file.write_bytes(b"x" * file.stat().st_size)


def unfooted(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-8] + b"\xff\xff\xff\x7fPAR1")


def loop(file: Path) -> None:
    file.unlink()
    file.symlink_to(file)


def made(table_uri: TableUri, name: str) -> tuple[DeltaTable, list[Path]]:
    """A table of two files with a change feed, and the files."""
    uri = table_uri(name)
    write_deltalake(uri, ids(1, 2, 3), configuration={"delta.enableChangeDataFeed": "true"})
    write_deltalake(uri, ids(4, 5, 6), mode="append")
    table = DeltaTable(uri)
    return table, [Path(path) for path in table.file_uris()]


@pytest.mark.parametrize("engine_name", ["sqlite"])
@pytest.mark.parametrize(
    ("damage", "error", "words"),
    [
        (cut, DataFileCorruptError, "the log says"),
        (other, DataFileCorruptError, "does not end like a Parquet file"),
        (Path.unlink, StorageMissingError, "is missing"),
        (loop, StorageError, "symbolic links"),
    ],
    ids=["cut short", "something else", "gone", "a loop of links"],
)
def test_a_file_that_cannot_be_read_is_named(
    table_uri: TableUri, damage: Callable[[Path], object], error: type[StorageError], words: str
) -> None:
    table, files = made(table_uri, "t")
    broken = files[0]  # the newest, with the ids from 4 on
    damage(broken)
    for name, read in READS.items():
        with pytest.raises(error, match=words) as failed:
            read(table)
        assert broken.name in failed.value.message, name
        assert failed.value.suggestion, name
        assert isinstance(failed.value, DeltaError), name
        assert isinstance(failed.value, OSError), name
        if error is DataFileCorruptError:
            assert isinstance(failed.value, pa.ArrowInvalid), f"{name}: as stock raises it"
    for name, stream in STREAMS.items():
        with pytest.raises(Exception, match=words) as lost:
            pa.RecordBatchReader.from_stream(stream(table)).read_all()
        assert broken.name in str(lost.value), name
    assert table.version() == DeltaTable(table.address).version() == 1


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_a_file_whose_footer_cannot_be_read_is_named(table_uri: TableUri) -> None:
    table, files = made(table_uri, "t")
    unfooted(files[0])
    # delta-rs panics over such a file, and can end the process when it reads one in the background
    for name in ("table", "pandas", "filtered", "dataset", "batches", "head", "rows"):
        with pytest.raises(DataFileCorruptError, match="footer cannot be read") as failed:
            READS[name](table)
        assert files[0].name in failed.value.message, name


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_a_wrong_filter_is_still_the_filters_fault(table_uri: TableUri) -> None:
    table, _ = made(table_uri, "t")
    with pytest.raises(pa.ArrowInvalid, match="filters") as failed:
        table.to_pyarrow_table(filters=[("id", ">", "x")])
    assert not isinstance(failed.value, StorageError)
    with pytest.raises(DeltaError) as refused:
        table.delete("no_such_column = 1")
    assert not isinstance(refused.value, StorageError)


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_objects_that_cannot_be_read_are_named(table_uri: TableUri, store_servers: StoreServers) -> None:
    bucket = store_servers.bucket("s3")
    location, options = f"{bucket.url}/t", bucket.options()
    uri = table_uri("t", location=location)
    write_deltalake(uri, ids(4, 5, 6), storage_options=options)
    store = open_store(location, options)
    (path,) = [m.path for m in store.list() if m.name.endswith(".parquet")]
    store.put(path, store.get(path)[:-100])
    table = DeltaTable(uri, storage_options=options)
    for name in ("table", "dataset", "filtered by SQL", "delete", "compact"):
        if name == "compact":
            write_deltalake(uri, ids(7), mode="append", storage_options=options)
        with pytest.raises(DataFileCorruptError, match="the log says") as failed:
            READS[name](table)
        assert path in failed.value.message, name
    store.delete(path)
    with pytest.raises(StorageMissingError, match=path):
        table.to_pyarrow_table()


WITHOUT_RIGHTS = """
    import os, sys
    import pyarrow as pa
    from deltalakedb import DeltaTable
    from deltalakedb.exceptions import StorageAccessError

    table = DeltaTable(sys.argv[1])
    list(table.to_pyarrow_dataset().schema)
    if os.getuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
    for read in (
        lambda: table.to_pyarrow_table(),
        lambda: table.to_pyarrow_dataset().to_table(),
        lambda: table.to_pyarrow_table(filters="id > 0"),
    ):
        try:
            read()
        except PermissionError as error:
            print(isinstance(error, StorageAccessError), "rights" in error.suggestion)
"""


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that other users may look into, as pytest's own may not."""
    folder = Path(tempfile.mkdtemp(prefix="deltasql-rights-"))
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def test_files_without_rights_are_told(public_folder: Path) -> None:
    for part in (public_folder, *public_folder.parents):
        if not part.stat().st_mode & 0o001:
            pytest.skip(f"{part} is closed to other users")
    uri = f"deltasql://sqlite/{public_folder}/c.db?table=t&location={public_folder}/t"
    write_deltalake(uri, ids(1))
    close_all()
    for entry in public_folder.iterdir():
        entry.chmod(0o777)
    public_folder.chmod(0o777)
    for file in (public_folder / "t").glob("*.parquet"):
        file.chmod(0o000)
    assert finish(child(WITHOUT_RIGHTS, uri, cwd="/")).splitlines() == ["True True"] * 3
