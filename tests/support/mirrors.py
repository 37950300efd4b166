"""Questions about a table's log folder, and troubles for it."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pytest

from support.lake import ids, ids_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from deltalakedb import Catalog
    from deltalakedb.metastore.engines.base import Session


def commit_file(root: Path, version: int) -> Path:
    """The file of a commit."""
    return root / "_delta_log" / f"{version:020}.json"


def logged(root: Path) -> list[int]:
    """The versions whose commit files are in the log."""
    return sorted(int(p.stem) for p in (root / "_delta_log").glob("*.json") if p.stem.isdigit())


def append(catalog: Catalog, *numbers: int, name: str = "t") -> None:
    """One commit for each number."""
    for number in numbers:
        catalog.write(name, ids(number), mode="append")


def append_outside(root: Path, *numbers: int) -> None:
    """One commit for each number, by somebody who does not know the catalog."""
    for number in numbers:
        deltalake.write_deltalake(root, ids(number), mode="append")


def outside_ids(root: Path, **where: Any) -> list[int]:
    """The rows that a reader of the folder sees."""
    return ids_of(deltalake.DeltaTable(root, **where))


@contextmanager
def blocked(root: Path) -> Iterator[None]:
    """A log folder into which nothing can be put, whoever tries: a plain file stands in its place."""
    log, aside = root / "_delta_log", root.parent / f"{root.name}.aside"
    log.rename(aside)
    log.write_text("in the way")
    try:
        yield
    finally:
        log.unlink()
        aside.rename(log)


def same_everywhere(catalog: Catalog, root: Path, name: str = "t", *, since: int = 0) -> None:
    """Assert that the log has every version byte for byte, and that stock reads the same of each."""
    log = catalog.log(name)
    versions = [version for version in log.versions() if version >= since]
    assert logged(root) == versions
    for version in versions:
        assert commit_file(root, version).read_bytes() == log.commit_bytes(version)
        stock = deltalake.DeltaTable(root, version=version)
        assert ids_of(stock) == ids_of(catalog.table(name, version=version)), f"version {version}"


def diverge(catalog: Catalog, root: Path, *numbers: int, outside: tuple[int, ...] = (77,)) -> None:
    """Commit on both sides: ours wait while the mirror is paused, theirs land in the folder."""
    catalog.mirror.pause("t")
    append(catalog, *numbers)
    append_outside(root, *outside)


def resume_diverged(catalog: Catalog) -> None:
    with pytest.warns(UserWarning, match="frozen"):
        assert catalog.mirror.resume("t").diverged == ("t",)


def back_up(catalog: Catalog, folder: Path) -> Callable[[], None]:
    """Copy a catalog's database as it is now; what is returned puts that copy back."""
    catalog.close()
    engine = catalog.uri.removeprefix("deltasql://").partition("/")[0]
    if engine == "postgres":
        return _back_up_rows(catalog)
    place = Path("/" + catalog.uri.split("//", 2)[2]).parent
    folder.mkdir()
    for file in place.glob("catalog.*"):
        shutil.copyfile(file, folder / file.name)

    def restore() -> None:
        catalog.close()
        for file in place.glob("catalog.*"):
            file.unlink()
        for file in folder.iterdir():
            shutil.copyfile(file, place / file.name)

    return restore


def _back_up_rows(catalog: Catalog) -> Callable[[], None]:
    listed = (
        "SELECT table_name FROM information_schema.tables "
        "WHERE table_schema = current_schema() AND table_type = 'BASE TABLE' AND table_name LIKE 'dl\\_%'"
    )

    def tables(session: Session) -> list[str]:
        return [row[0] for row in session.rows(listed)]

    database = catalog._database
    with database.write() as session:
        for table in tables(session):
            session.run(f"CREATE TABLE backup_{table} AS TABLE {table}")

    def restore() -> None:
        with database.write() as session:
            for table in tables(session):
                session.run(f"DELETE FROM {table}")
                session.run(f"INSERT INTO {table} OVERRIDING SYSTEM VALUE TABLE backup_{table}")
        catalog.close()

    return restore
