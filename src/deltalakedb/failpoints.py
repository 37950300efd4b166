"""Named points at which a test can kill, stop or fail the process. They cost nothing without the variable.

``DELTASQL_FAILPOINTS="commit.after=kill; publish.before_put=error@3"`` kills the process after its first
commit, and makes the third publish fail. An action is ``kill`` (SIGKILL, as a crash would), ``error`` (an
exception) or ``stop`` (SIGSTOP: paused until SIGCONT); ``@n`` means the n-th time only.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import Final

from deltalakedb.exceptions import ConfigError, DeltaSqlError

VARIABLE: Final = "DELTASQL_FAILPOINTS"

#: every failpoint, and when it is reached
POINTS: Final = {
    "data.before": "before the first data file is written",
    "data.after": "data files are under the table's root, nothing is committed",
    "commit.before_begin": "before the database transaction begins",
    "commit.locked": "heads are locked, nothing is checked yet",
    "commit.before_commit": "all rows are written, the transaction is not committed",
    "commit.after": "the transaction is committed, the caller does not know yet",
    "publish.before_put": "before a commit file is put into _delta_log",
    "publish.after_put": "the commit file is there, and not yet recorded as published",
    "publish.after_mark": "the version is recorded as published",
    "publish.before_link": "a commit file is written under a temporary name",
    "publish.manifest": "every table of a transaction is published, its manifest is not written",
    "publish.between_tables": "one table of a transaction is published, the next is not",
    "checkpoint.before_put": "a checkpoint's files are complete, none is in _delta_log",
    "checkpoint.between_files": "a part or sidecar of a checkpoint is in _delta_log, the rest may not be",
    "checkpoint.after_put": "a checkpoint is in _delta_log, _last_checkpoint does not name it",
    "import.planned": "an import is recorded, nothing of it is loaded",
    "import.batch_written": "a batch and its receipt are written, their transaction is not committed",
    "import.batch_done": "a batch is committed, the importer does not know yet",
    "import.loaded": "every batch is loaded, nothing is verified",
    "import.verified": "the load is verified, the table is not visible",
    "import.before_finalize": "the rows that make it visible are written, not committed",
    "import.finalized": "the table is visible, the caller does not know yet",
    "follow.before_bringing": "a followed log has new commits, none of them is in the copy",
    "import.undoing": "part of what an import loaded is deleted again",
    "export.before_log": "the data files of an export are there, its log is not",
    "export.verified": "an export is verified, the catalog still has the table",
    "checkpoint.after_hint": "_last_checkpoint names the checkpoint, the catalog has no record of it",
    "checkpoint.after_note": "the catalog has a record of the checkpoint, its version has no checksum file",
    "resolve.before": "a resolution knows the commits of both sides and holds its leases, nothing is begun",
    "resolve.taken_over": "our commits are undone and theirs adopted, nothing is committed",
    "resolve.rebuilt": "our commits are rebuilt on top of theirs, nothing is committed",
    "resolve.after": "a resolution is committed, nothing of it is published",
    "pack.deleted": "what a packer replaces is deleted, nothing is committed",
    "pack.written": "the new packs are written, nothing is committed",
    "vacuum.deleting": "a vacuum has announced in a commit what it deletes, part of it is deleted",
    "cleanup.between_files": "one expired file is deleted, the rest is not",
}


class FailpointError(DeltaSqlError):
    """A failure that a test requested."""


def _parse(text: str) -> dict[str, tuple[str, int | None]]:
    found: dict[str, tuple[str, int | None]] = {}
    for part in filter(None, (p.strip() for p in text.split(";"))):
        name, _, rest = part.partition("=")
        action, _, count = rest.partition("@")
        if name not in POINTS or action not in ("kill", "error", "stop") or not (count or "1").isdigit():
            raise ConfigError(
                f"{VARIABLE} holds {part!r}",
                suggestion=f"write point=kill|error|stop[@n]; the points are {', '.join(POINTS)}",
            )
        found[name] = (action, int(count) if count else None)
    return found


_active = _parse(os.environ.get(VARIABLE, ""))
_hits: dict[str, int] = {}
_lock = threading.Lock()


def is_watched(*names: str) -> bool:
    """Whether the environment requests an action at one of these points."""
    return bool(_active) and not _active.keys().isdisjoint(names)


def failpoint(name: str) -> None:
    """Do what the environment requests at this point, if anything."""
    if not _active or name not in _active:
        return
    action, only = _active[name]
    with _lock:
        _hits[name] = _hits.get(name, 0) + 1
        if only is not None and _hits[name] != only:
            return
    if action == "error":
        raise FailpointError(f"failpoint {name}")
    os.kill(os.getpid(), signal.SIGKILL if action == "kill" else signal.SIGSTOP)
