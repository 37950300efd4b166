"""The files of a table: the only place that knows how file rows and statistics are stored.

Commits, planning, listing, imports, verification, checkpoints and Spark use the names of this module and
nothing behind it; a contract in ``pyproject.toml`` enforces that. Every function takes a `SessionSource`
(the catalog, or the caller's session) or the `Session` of the transaction that it belongs to.

- **Add and remove**: `FileChanges` applies commits. `FileRows` writes single rows and `write_columns` Arrow
  columns, for imports. `Counts` are the totals that a head keeps. `assign_slots`, `slot_encoder` and
  `slot_vectors` prepare statistics for storage. The module `appends` has the rows of blind appends.
- **Undo**: `revert_files`, `drop_files`, `drop_range`.
- **Plan**: `scan_files` returns the files of a version that may match a predicate, as Arrow.
- **List** at a version: `read_adds`, `read_files`, `stream_files`, `tombstones`; `removed`, `some_live`.
- **Look up** by path or id: `live_files`, `read_some`, `path_hash`, `plain_path_hashes`, `hash_parts`.
- **Compare** versions: `files_since`, `difference`, `removed_since`, `added_since`, `keys_added_since`.
- **Counts** at a version: `totals`, `totals_at`; `next_seq`, `has_other_files`.
- **Verify**: the module `digests` has digests and whole rows, to compare the catalog with a log.
- **Indexes**: `drop_indexes`, `build_indexes`.

A file is an interval: it is live at version v if it was added at or before v and not removed at or before v.
Its key is the canonical path with the id of its deletion vector. Rows of a ratified version never change, so
readers need no transaction.
"""

from deltalakedb.metastore.files.changes import (
    ConcurrentChange,
    Counts,
    FileChanges,
    added_since,
    drop_files,
    drop_range,
    has_other_files,
    hash_parts,
    keys_added_since,
    removed_since,
    revert_files,
)
from deltalakedb.metastore.files.indexes import build_indexes, drop_indexes
from deltalakedb.metastore.files.listing import (
    ADD_COLUMNS,
    FILE_SCHEMA,
    STREAM_COLUMNS,
    RemovedFile,
    add_from_row,
    difference,
    files_since,
    next_seq,
    read_adds,
    read_files,
    read_some,
    removed,
    scan_files,
    some_live,
    stream_files,
    tombstones,
    totals,
    totals_at,
)
from deltalakedb.metastore.files.rows import (
    FILE_ID_BITS,
    SIDE_COLUMNS,
    FileRows,
    live_files,
    path_hash,
    plain_path_hashes,
    write_columns,
)
from deltalakedb.metastore.files.slots import assign_slots, remember_shape, slot_encoder, slot_vectors

__all__ = [
    "ADD_COLUMNS", "FILE_ID_BITS", "FILE_SCHEMA", "SIDE_COLUMNS", "STREAM_COLUMNS", "ConcurrentChange",
    "Counts", "FileChanges", "FileRows", "RemovedFile", "add_from_row", "added_since", "assign_slots",
    "build_indexes", "difference", "drop_files", "drop_indexes", "drop_range", "files_since",
    "has_other_files", "hash_parts", "keys_added_since", "live_files", "next_seq", "path_hash",
    "plain_path_hashes", "read_adds", "read_files", "read_some", "remember_shape", "removed",
    "removed_since", "revert_files", "scan_files", "slot_encoder", "slot_vectors", "some_live",
    "stream_files", "tombstones", "totals", "totals_at", "write_columns",
]  # fmt: skip
