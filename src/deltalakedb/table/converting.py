"""``convert_to_deltalake``: a folder of Parquet files becomes a SQL-backed table where it lies."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote

import deltalake
from deltalake._util import deprecate_positional_commit_args

from deltalakedb.catalog import registry
from deltalakedb.catalog.database import Database
from deltalakedb.commit.changes import NewTable
from deltalakedb.exceptions import InvalidArgumentError, StorageMissingError, TableExistsError
from deltalakedb.log.names import LOG_FOLDER
from deltalakedb.protocol.actions import Add
from deltalakedb.protocol.paths import decode_path, encode_path
from deltalakedb.protocol.reads import NOTHING
from deltalakedb.table.operations import call
from deltalakedb.table.places import local_root, normal_location
from deltalakedb.table.staging import WORK_FOLDER, Scratch
from deltalakedb.table.work import AutoCommit, Work
from deltalakedb.table.writer import open_existing, refuse_plain_table
from deltalakedb.uri import is_deltasql, parse_uri

if TYPE_CHECKING:
    from collections.abc import Mapping


def convert_to_deltalake(
    uri: str | Path,
    mode: Literal["error", "ignore"] = "error",
    partition_by: deltalake.Schema | None = None,
    partition_strategy: Literal["hive", "directory"] | None = None,
    name: str | None = None,
    description: str | None = None,
    configuration: Mapping[str, str | None] | None = None,
    storage_options: dict[str, str] | None = None,
    *args: Any,
    collect_stats: bool = True,
    commit_properties: deltalake.CommitProperties | None = None,
    post_commithook_properties: deltalake.PostCommitHookProperties | None = None,
) -> None:
    """Make a Delta table of a folder of Parquet files, without touching them.

    Plain paths and URLs go to ``deltalake`` untouched. A ``deltasql://`` address names the folder by
    ``location=``, and the table is committed in SQL and published to the folder's `_delta_log`.

    Args:
        uri: The folder, or the address of a table that does not exist yet.
        mode: What to do where the table exists.
        partition_by: The partition columns, with their types.
        partition_strategy: ``"hive"`` for folders like ``year=2020``, ``"directory"`` for bare values.
        name: The new table's name in its metadata.
        description: The new table's description.
        configuration: The new table's properties.
        storage_options: Options for the object store.
        collect_stats: Read statistics from the files' footers.
        commit_properties: Custom metadata and application transactions.
        post_commithook_properties: Accepted; the mirror does these jobs.

    Example:
        >>> convert_to_deltalake("deltasql://sqlite//lake/meta.db?table=events&location=/lake/events")
    """
    commit_properties, post_commithook_properties = deprecate_positional_commit_args(
        "convert_to_deltalake", args, commit_properties, post_commithook_properties
    )
    options: dict[str, Any] = {
        "partition_by": partition_by,
        "partition_strategy": partition_strategy,
        "name": name,
        "description": description,
        "configuration": configuration,
        "collect_stats": collect_stats,
        "commit_properties": commit_properties,
    }
    if not is_deltasql(uri):
        deltalake.convert_to_deltalake(
            uri,
            mode,
            storage_options=storage_options,
            post_commithook_properties=post_commithook_properties,
            **options,
        )
        return
    _convert(str(uri), mode, options)


def _convert(uri: str, mode: str, options: dict[str, Any]) -> None:
    if mode not in ("error", "ignore"):
        raise InvalidArgumentError(f"unknown mode {mode!r}", suggestion="use error or ignore")
    address = parse_uri(uri)
    if (table := open_existing(address)) is not None:
        if mode == "ignore":
            return
        raise TableExistsError(
            f"the table {table.name!r} exists at {table.table_uri}",
            table=table.name,
            suggestion="choose another name, or mode='ignore'",
        )
    title = address.table or ""
    if address.location is None:
        raise InvalidArgumentError(
            "convert_to_deltalake needs to know where the Parquet files lie",
            table=title,
            suggestion="add &location=/the/folder to the address",
        )
    root = local_root(normal_location(address.location), table=title)
    database = Database.open(address)
    registry.refuse_taken(database, title, root)
    refuse_plain_table(root, title)
    if not Path(root).is_dir():
        raise StorageMissingError(
            f"there is no folder {root}", table=title, suggestion="check location= in the address"
        )
    with Scratch.for_writing(root, table=title) as scratch:
        # delta-rs must see paths as the table will have them: each entry gets a link of its own
        for entry in Path(root).iterdir():
            if entry.name not in (WORK_FOLDER, LOG_FOLDER):
                (scratch.folder / entry.name).symlink_to(entry)
        (scratch.folder / LOG_FOLDER).rmdir()
        call(lambda target: deltalake.convert_to_deltalake(target, **options), str(scratch.folder))
        actions = scratch.harvest(after=-1).actions
    real = _real_names(root, title)
    named = [
        replace(a, path=encode_path(real[decode_path(a.path)])) if isinstance(a, Add) else a for a in actions
    ]
    AutoCommit(database).submit(Work(NewTable(title, root), named, None, NOTHING))


def _real_names(root: str, table: str) -> dict[str, str]:
    """The Parquet files below a folder, by the names that delta-rs's conversion gives them.

    It undoes percent-encoding, which file names may hold for their own reasons: hive escapes values so.
    """
    found: dict[str, str] = {}
    for folder, _, files in os.walk(root, followlinks=True):
        for file in files:
            name = os.path.relpath(os.path.join(folder, file), root)  # noqa: PTH118
            other = found.setdefault(unquote(name), name)
            if other != name and file.endswith(".parquet"):
                raise InvalidArgumentError(
                    f"the files {other} and {name} cannot be told apart",
                    table=table,
                    suggestion="rename one of them",
                )
    return found
