"""The files of a table: the only place that knows how file rows and statistics are stored.

Commits, planning, listing, imports, verification, checkpoints and Spark use the names of this module and
nothing behind it; a contract in ``pyproject.toml`` enforces that. Every function takes a `SessionSource`
(the catalog, or the caller's session) or the `Session` of the transaction that it belongs to.

- **Add and remove**: `FileChanges` applies commits. `FileBatch` has new files as columns, computed without
  the database (`batch_of_adds`, `packed`); `write_batch` writes one. `Counts` are the totals that a head
  keeps. The module `appends` has the rows of blind appends.
- **Undo**: `revert_files`, `drop_files`, `drop_range`.
- **Plan**: `scan_files` returns the files of a version that may match a predicate, as Arrow; `statistics`
  returns what some of them state, by column.
- **List** at a version: `read_adds`, `read_files`, `stream_files`, `tombstones`; `removed`, `some_live`.
- **Look up** by path or id: `find_paths`, `live_files`, `read_some`.
- **Compare** versions: `files_since`, `difference`, `removed_since`, `added_since`, `keys_added_since`.
- **Counts** at a version: `totals`, `totals_at`; `next_seq`.
- **Verify**: the module `digests` has digests and whole rows, to compare the catalog with a log.
- **Pack**: the module `packs` moves the statistics of recent files into packs: `pack_if_due`, `pack_all`,
  `rebuild`, `pack_status`.

A file is an interval: it is live at version v if it was added at or before v and not removed at or before v.
Its key is the canonical path with the id of its deletion vector. Rows of a ratified version never change, so
readers need no transaction.
"""

from deltalakedb.metastore.files.changes import (
    ConcurrentChange,
    FileChanges,
    added_since,
    drop_files,
    drop_range,
    keys_added_since,
    removed_since,
    revert_files,
)
from deltalakedb.metastore.files.listing import (
    ADD_COLUMNS,
    FILE_SCHEMA,
    STREAM_COLUMNS,
    RemovedFile,
    difference,
    files_since,
    find_paths,
    live_files,
    next_seq,
    read_adds,
    read_files,
    read_some,
    removed,
    scan_files,
    some_live,
    statistics,
    stream_files,
    tombstones,
    totals,
    totals_at,
)
from deltalakedb.metastore.files.packs import PackStatus, pack_all, pack_if_due, pack_status, rebuild
from deltalakedb.metastore.files.rows import (
    FILE_ID_BITS,
    PACK_MIN,
    Counts,
    Details,
    FileBatch,
    FileRows,
    add_from_row,
    batch_of_adds,
    live_schema,
    packed,
    readable_schema,
    write_batch,
)

__all__ = [
    "ADD_COLUMNS", "FILE_ID_BITS", "FILE_SCHEMA", "PACK_MIN", "STREAM_COLUMNS", "ConcurrentChange",
    "Counts", "Details", "FileBatch", "FileChanges", "FileRows", "PackStatus", "RemovedFile",
    "add_from_row", "added_since", "batch_of_adds", "difference", "drop_files", "drop_range",
    "files_since", "find_paths", "keys_added_since", "live_files", "live_schema", "next_seq", "pack_all",
    "pack_if_due", "pack_status", "packed", "read_adds", "read_files", "read_some",
    "readable_schema", "rebuild", "removed", "removed_since", "revert_files", "scan_files", "some_live",
    "statistics", "stream_files", "tombstones", "totals", "totals_at", "write_batch",
]  # fmt: skip
