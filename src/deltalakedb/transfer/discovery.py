"""Finding tables: every folder below a place that holds a ``_delta_log``."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from deltalakedb.exceptions import InvalidArgumentError
from deltalakedb.log.names import LOG_FOLDER, parse_name
from deltalakedb.storage.store import local_path, open_store
from deltalakedb.table.places import normal_location
from deltalakedb.uri import validate_table_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@dataclass(frozen=True, slots=True)
class Found:
    """A table that was found, and the name it gets."""

    path: str
    name: str


def discover(
    root: str, *, namespace: str | None = None, storage_options: Mapping[str, str] | None = None
) -> list[Found]:
    """Every Delta table below a folder or a bucket's prefix, by name.

    A table's name is its path below the root, with dots for slashes; none is looked for inside another.

    Args:
        root: A folder, or the URL of an object store.
        namespace: Put before every name.
        storage_options: Options for the object store.

    Raises:
        InvalidArgumentError: Two tables would get the same name.
    """
    place = normal_location(root)
    local = local_path(place)
    below = _walk(local) if local is not None else _listed(place, storage_options)
    found = [Found(place if not p else f"{place}/{p}", _name(place, p, namespace)) for p in sorted(below)]
    names: dict[str, str] = {}
    for one in found:
        if (other := names.setdefault(one.name, one.path)) != one.path:
            raise InvalidArgumentError(
                f"{other} and {one.path} would both be called {one.name}",
                suggestion="import one of them under a name of its own first",
            )
    return found


def _walk(root: Path) -> Iterator[str]:
    if not root.is_dir():
        raise InvalidArgumentError(f"there is no folder {root}", suggestion="check the path")
    for folder, names, _ in os.walk(root):
        if LOG_FOLDER in names and _is_log(Path(folder) / LOG_FOLDER):
            inside = Path(folder).relative_to(root).as_posix()
            yield "" if inside == "." else inside
            names.clear()  # what lies below a table is its own
        else:
            names[:] = sorted(n for n in names if not n.startswith(("_", ".")))


def _is_log(folder: Path) -> bool:
    return any(parse_name(entry.name) is not None for entry in os.scandir(folder))


def _listed(root: str, storage_options: Mapping[str, str] | None) -> set[str]:
    marker, found = f"{LOG_FOLDER}/", set()
    for meta in open_store(root, storage_options).list(recursive=True):
        before, mark, after = f"/{meta.path}".partition(f"/{marker}")
        if mark and parse_name(after) is not None:
            found.add(before.strip("/"))
    return {p for p in found if not any(p != o and (not o or p.startswith(f"{o}/")) for o in found)}


def _name(root: str, below: str, namespace: str | None) -> str:
    own = below.replace("/", ".") if below else root.rstrip("/").rpartition("/")[2]
    return validate_table_name(f"{namespace}.{own}" if namespace else own)
