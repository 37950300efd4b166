"""Files that are no database, damaged ones, and ones that may not be opened: errors that say what to do."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from deltalakedb import Catalog, DeltaTable, open_log, write_deltalake
from deltalakedb.address import parse_address
from deltalakedb.exceptions import (
    AddressError,
    CatalogAccessError,
    CatalogCorruptError,
    CatalogError,
    DeltaSqlError,
    TableMissingError,
)
from deltalakedb.metastore.database import Database, close_all
from support.lake import child, finish, ids, ids_of

if TYPE_CHECKING:
    from collections.abc import Iterator

FILE_ENGINES = ("sqlite", "duckdb")


@pytest.fixture(params=FILE_ENGINES)
def file_engine(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def address(engine: str, path: Path) -> str:
    return f"deltasql://{engine}/{quote(str(path))}"


def filled(engine: str, folder: Path) -> Path:
    """A catalog's file with a table of some commits in it, closed."""
    path = folder / f"catalog.{engine}"
    uri = address(engine, path)
    for number in range(5):
        write_deltalake(
            f"{uri}?table=t&location={folder}/t", ids(number), mode="append", partition_by=["part"]
        )
    Database.open(parse_address(uri)).close()
    close_all()
    assert not path.with_name(path.name + "-wal").exists()
    return path


@pytest.mark.parametrize(
    "wrong",
    [
        "deltasql://",
        "deltasql://sqlite",
        "deltasql://oracle//x/y.db",
        "deltasql://postgres/onlydatabase",
        "deltasql://sqlite//x.db?tabel=t",
        "deltasql://sqlite//x.db?table=",
        "deltasql://sqlite//x.db?table=a&table=b",
    ],
)
def test_a_wrong_address_shows_the_right_form(wrong: str) -> None:
    for attempt in (Catalog, DeltaTable, open_log):
        with pytest.raises(AddressError) as caught:
            attempt(wrong)
        assert caught.value.suggestion
        assert isinstance(caught.value, ValueError)


def test_a_folder_is_no_database(file_engine: str, tmp_path: Path) -> None:
    with pytest.raises(CatalogCorruptError) as caught:
        Catalog(address(file_engine, tmp_path))
    assert "folder" in caught.value.message
    assert caught.value.suggestion


@pytest.mark.parametrize(
    "content", [b"not a database, but long enough to be looked at\n" * 400, b"x", b"PAR1" + bytes(5000)]
)
def test_a_file_of_something_else_is_refused_and_left_alone(
    file_engine: str, tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(CatalogCorruptError) as caught:
        Catalog(address(file_engine, path))
    assert caught.value.suggestion
    with pytest.raises(CatalogCorruptError):
        write_deltalake(f"{address(file_engine, path)}?table=t&location={tmp_path}/t", ids(1))
    assert path.read_bytes() == content
    assert not (tmp_path / "t").exists()


def test_another_engines_file_is_refused(tmp_path: Path) -> None:
    for made, opened in (("sqlite", "duckdb"), ("duckdb", "sqlite")):
        (tmp_path / made).mkdir()
        path = filled(made, tmp_path / made)
        before = path.read_bytes()
        with pytest.raises(CatalogError) as caught:
            Catalog(address(opened, path))
        assert caught.value.suggestion
        assert path.read_bytes() == before


def test_a_file_in_the_way_of_the_folder_is_told(file_engine: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CatalogAccessError) as caught:
        Catalog(address(file_engine, tmp_path / "file" / "catalog.db"), create=True)
    assert caught.value.suggestion


@pytest.mark.parametrize("damage", ["truncated", "garbage in the middle", "a torn header", "emptied pages"])
def test_a_damaged_catalog_is_told_and_not_made_worse(file_engine: str, tmp_path: Path, damage: str) -> None:
    path = filled(file_engine, tmp_path)
    whole = path.read_bytes()
    half = len(whole) // 2
    broken = {
        "truncated": whole[:half],
        "garbage in the middle": whole[:4096] + os.urandom(len(whole) - 4096 - 512) + whole[-512:],
        "a torn header": bytes(64) + whole[64:],
        "emptied pages": whole[:8192] + bytes(len(whole) - 8192),
    }[damage]
    path.write_bytes(broken)
    uri = f"{address(file_engine, path)}?table=t"
    seen: list[DeltaSqlError] = []
    for attempt in (
        lambda: ids_of(DeltaTable(uri)),
        lambda: DeltaTable(uri).history(),
        lambda: write_deltalake(uri, ids(9), mode="append"),
        lambda: Catalog(address(file_engine, path)).query("SELECT * FROM dl_v_files").num_rows,
    ):
        try:
            attempt()
        except DeltaSqlError as error:
            seen.append(error)
    assert any(isinstance(error, CatalogCorruptError) for error in seen), seen
    assert all(error.suggestion for error in seen), seen
    assert len(path.read_bytes()) <= len(whole) + 65536


def test_a_missing_table_is_told_without_making_one(file_engine: str, tmp_path: Path) -> None:
    path = filled(file_engine, tmp_path)
    for attempt in (DeltaTable, open_log):
        with pytest.raises(TableMissingError) as caught:
            attempt(f"{address(file_engine, path)}?table=tt")
        assert "t" in (caught.value.suggestion or "")
    with pytest.raises(AddressError):
        open_log(address(file_engine, path))


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that other users may look into, as pytest's own may not."""
    folder = Path(tempfile.mkdtemp(prefix="deltasql-rights-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


WITHOUT_RIGHTS = """
    import os, sys, tempfile
    import pyarrow as pa
    from deltalakedb import Catalog, DeltaTable, write_deltalake
    from deltalakedb.exceptions import DeltaSqlError

    engine, uri, new = sys.argv[1:]
    with tempfile.TemporaryDirectory() as warm:  # whatever is imported late, is imported while it may be
        other = f"deltasql://{engine}/{warm}/warm.db"
        write_deltalake(f"{other}?table=t&location={warm}/t", pa.table({"id": [1]}))
        DeltaTable(f"{other}?table=t").to_pyarrow_table()
        Catalog(other).close()
    if os.getuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
    for attempt in (
        lambda: write_deltalake(f"{uri}?table=t", pa.table({"id": [1], "part": ["a"]}), mode="append"),
        lambda: Catalog(new, create=True),
    ):
        try:
            attempt()
        except DeltaSqlError as error:
            print(type(error).__name__, bool(error.suggestion))
        else:
            print("no error")
"""


@pytest.mark.parametrize("rights", [(0o444, 0o555), (0o666, 0o555), (0o666, 0o000)])
def test_a_database_without_rights_is_told(
    file_engine: str, public_folder: Path, rights: tuple[int, int]
) -> None:
    path = filled(file_engine, public_folder)
    before = path.read_bytes()
    path.chmod(rights[0])
    for folder in (f for f in public_folder.rglob("*") if f.is_dir()):
        folder.chmod(0o777)  # data could be written
    public_folder.chmod(rights[1])
    new = address(file_engine, public_folder / "new.db")
    process = child(WITHOUT_RIGHTS, file_engine, address(file_engine, path), new, cwd="/")
    assert finish(process).splitlines() == ["CatalogAccessError True"] * 2
    public_folder.chmod(0o755)
    assert path.read_bytes() == before
