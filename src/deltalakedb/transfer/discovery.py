"""Finding tables: every folder below a place that holds a ``_delta_log``."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from deltalakedb.delta_log.names import LOG_FOLDER, parse_name
from deltalakedb.exceptions import AddressError, DeltaSqlError, InvalidArgumentError
from deltalakedb.storage.store import RealPlaces, local_path, open_store
from deltalakedb.table.places import SAFE_IN_URLS, normal_location
from deltalakedb.uri import validate_table_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


@dataclass(frozen=True, slots=True)
class Found:
    """A table that was found, and the name it gets; or why it cannot get one."""

    path: str
    name: str
    error: DeltaSqlError | None = None


def discover(
    root: str,
    *,
    namespace: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    known: Iterable[Found] = (),
) -> list[Found]:
    """Every Delta table below a folder or a bucket's prefix, by name.

    A table's name is its path below the root, with dots for slashes; none is looked for inside another. Those
    whose folders make no name, or the name of another one, come with an error.

    Args:
        root: A folder, or the URL of an object store.
        namespace: Put before every name.
        storage_options: Options for the object store.
        known: Tables that a catalog has: they keep their names.

    Raises:
        InvalidArgumentError: There is nothing at the root.
    """
    if namespace is not None:
        validate_table_name(namespace)
    place = normal_location(root)
    local = local_path(place)
    below = _walk(local) if local is not None else _listed(place, storage_options)
    real = RealPlaces()
    there = {real.of(k.path): k for k in known}
    found, taken = [], {k.name: k.path for k in there.values()}
    for part in sorted(below):
        # an object's name is spelled in a URL as the catalog keeps it
        spelled = part if local is not None else quote(part, safe=SAFE_IN_URLS)
        path = f"{place}/{spelled}" if part else place
        if (kept := there.get(real.of(path))) is not None:
            found.append(kept)
        else:
            found.append(_named(path, place, part, namespace))
    owners = Counter(one.name for one in found)
    return [_alone(one, owners, taken) for one in found]


def _named(path: str, root: str, below: str, namespace: str | None) -> Found:
    own = below.replace("/", ".") if below else root.rstrip("/").rpartition("/")[2]
    name = f"{namespace}.{own}" if namespace else own
    try:
        return Found(path, validate_table_name(name))
    except AddressError as error:
        return Found(path, name, _refused(path, f"its folder makes no name: {error.message}"))


def _alone(found: Found, owners: Mapping[str, int], taken: Mapping[str, str]) -> Found:
    """A table, with an error where its name would be another's too."""
    owner = taken.get(found.name)
    if found.error is not None or owner == found.path:
        return found
    if owner is not None:
        message = f"its folder makes the name {found.name}, which the table at {owner} has"
    elif owners[found.name] > 1:
        message = f"its folder makes the name {found.name}, as another one does"
    else:
        return found
    return Found(found.path, found.name, _refused(found.path, message))


def _refused(path: str, message: str) -> DeltaSqlError:
    return InvalidArgumentError(
        f"{path}: {message}",
        suggestion="import it alone under a name of its own, which it keeps: "
        f"`deltasql import {shlex.quote(path)} NAME`",
    )


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
    try:
        return any(parse_name(entry.name) is not None for entry in os.scandir(folder))
    except OSError:
        return True  # whoever reads it is told why it cannot be read


def _listed(root: str, storage_options: Mapping[str, str] | None) -> set[str]:
    marker, found, is_there = f"{LOG_FOLDER}/", set(), False
    for meta in open_store(root, storage_options).list(recursive=True):
        is_there = True
        before, mark, after = f"/{meta.path}".partition(f"/{marker}")
        if mark and parse_name(after) is not None:
            found.add(before.strip("/"))
    if not is_there:
        raise InvalidArgumentError(f"there is nothing below {root}", suggestion="check the URL")
    return {p for p in found if not any(p != o and (not o or p.startswith(f"{o}/")) for o in found)}
