"""The invariants that hold whatever happens, asked of a catalog, its tables and what writers were told.

I1 versions are contiguous · I2 the log equals SQL, byte for byte and replayed · I3 every acknowledged commit
is there exactly once · I4 nothing of a rejected commit is visible · I5 a transaction over several tables is
there as a whole or not at all · I6 version N is published after N-1 and never rewritten · I7 every live file
exists · I8 commit times strictly increase.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq

from deltalakedb.delta_log.names import parse_name
from deltalakedb.protocol.actions import Add, decode_commit
from deltalakedb.protocol.replay import Replay

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from deltalakedb import Catalog

#: tables with more versions are replayed at a sample of them; their bytes are compared at all
_EVERY = 24
_SAMPLE = 8


@dataclass(frozen=True)
class Checked:
    """What a check found out along the way.

    Attributes:
        versions: How many versions SQL has.
        published: How many of them lie in `_delta_log`.
        ids: The column ``id`` at the newest version, sorted.
    """

    versions: int
    published: int
    ids: list[int] = field(repr=False)


def check_table(catalog: Catalog, name: str, *, published: bool = False, since: int = 0) -> Checked:
    """Assert every invariant of one table.

    Args:
        catalog: The catalog.
        name: The table.
        published: True where nothing may be waiting to be published any more.
        since: The first version to compare with stock deltalake; bytes are compared at every version.
    """
    root = Path(catalog.describe(name).location)
    log = catalog.log(name)
    versions = list(log.versions())
    head = log.latest_version()
    assert versions == list(range(head + 1)), f"I1: versions of {name} are {versions}, its head is {head}"

    times = [c.committed_at for c in reversed(log.history())]
    assert all(a < b for a, b in pairwise(times)), f"I8: commit times of {name}: {times}"

    in_log = _log_files(root)
    assert sorted(in_log) == list(range(len(in_log))), f"I6: {name} has the log files {sorted(in_log)}"
    assert len(in_log) <= len(versions), f"I2: {name} has log files beyond its head {head}: {sorted(in_log)}"
    if published:
        assert len(in_log) == len(versions), f"{name} is published up to {len(in_log) - 1}, head is {head}"
    _check_notes(catalog, name, in_log)

    replay = Replay()
    sampled = _sampled([v for v in versions if v >= min(since, head)])
    for version in versions:
        ratified = log.commit_bytes(version)
        if version in in_log:
            assert in_log[version].read_bytes() == ratified, f"I2: other bytes in version {version} of {name}"
            modified = in_log[version].stat().st_mtime_ns // 1_000_000
            assert modified == times[version], (
                f"I8: the log file of version {version} of {name} has {modified}"
            )
        replay.commit(decode_commit(ratified))
        if version not in sampled:
            continue
        live = {a.key: a for a in log.files(version)}
        assert live == replay.files, f"I2: SQL and its own commits differ at version {version} of {name}"
        snapshot = log.snapshot(version)
        assert (snapshot.protocol, snapshot.metadata) == (replay.protocol, replay.metadata)
        for add in live.values():
            assert (root / unquote(add.path)).is_file(), f"I7: {add.path} of version {version} is gone"
        if version in in_log:
            _check_stock(root, version, list(live.values()))
    ids = _ids(root, log.files())
    return Checked(len(versions), len(in_log), ids)


def check_transactions(catalog: Catalog) -> None:
    """Assert that every transaction is there as a whole (I5)."""
    rows = catalog.query(
        "SELECT c.txn_uuid, t.num_commits, count(DISTINCT c.table_id) FROM dl_commits c "
        "LEFT JOIN dl_transactions t ON t.txn_uuid = c.txn_uuid "
        "WHERE c.origin = 'sql' GROUP BY c.txn_uuid, t.num_commits"
    ).to_pylist()
    for row in rows:
        txn, promised, found = row.values()
        assert promised is not None, f"I5: the commits of {txn} have no transaction"
        assert found <= promised, f"I5: {txn} has commits of {found} tables, and wrote {promised}"


def check_acknowledged(catalog: Catalog, name: str, acknowledged: Sequence[dict[str, Any]]) -> None:
    """Assert that what writers were told is true: each row once, in the version they were told (I3)."""
    log = catalog.log(name)
    root = Path(catalog.describe(name).location)
    counted = Counter(_ids(root, log.files()))
    by_version: dict[int, set[int]] = {}
    for ack in acknowledged:
        if ack["table"] != name:
            continue
        assert counted[ack["id"]] == 1, f"I3: the row {ack['id']} is there {counted[ack['id']]} times"
        if (version := ack.get("version")) is not None:
            added = by_version.setdefault(version, _added_ids(root, log.actions(version)))
            assert ack["id"] in added, f"I3: the row {ack['id']} is not what version {version} added"


def acknowledge(path: Path, **what: Any) -> None:
    """Note a success so that it survives the death of the process that notes it."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(handle, (json.dumps(what) + "\n").encode())
        os.fsync(handle)
    finally:
        os.close(handle)


def acknowledged(folder: Path, pattern: str = "*.acks") -> list[dict[str, Any]]:
    """Everything that was acknowledged in a folder."""
    return [
        json.loads(line) for file in sorted(folder.glob(pattern)) for line in file.read_text().splitlines()
    ]


def _log_files(root: Path) -> dict[int, Path]:
    found = {}
    for path in (root / "_delta_log").iterdir() if (root / "_delta_log").is_dir() else ():
        name = parse_name(path.name)
        if name is not None and name.kind == "commit":
            found[name.version] = path
    return found


def _check_notes(catalog: Catalog, name: str, in_log: dict[int, Path]) -> None:
    """What the catalog believes to be published is published."""
    rows = catalog.query(
        "SELECT o.version, o.state, m.published_version FROM dl_outbox o "
        "JOIN dl_tables t ON t.table_id = o.table_id JOIN dl_mirror m ON m.table_id = o.table_id "
        "WHERE t.name = ? ORDER BY o.version",
        (name,),
    ).to_pylist()
    noted = [r["version"] for r in rows if r["state"] == "published"]
    assert noted == list(range(len(noted))), f"I6: {name} is noted as published at {noted}"
    assert set(noted) <= set(in_log), f"I6: {name} has no log files for {sorted(set(noted) - set(in_log))}"
    for row in rows[:1]:
        assert row["published_version"] in ({len(noted) - 1} if noted else {-1}), f"I6: {name}: {row}"


def _sampled(versions: Sequence[int]) -> set[int]:
    if len(versions) <= _EVERY:
        return set(versions)
    step = len(versions) / _SAMPLE
    return {versions[0], versions[-1], *(versions[int(step * i)] for i in range(_SAMPLE))}


def _check_stock(root: Path, version: int, live: Sequence[Add]) -> None:
    """Stock deltalake finds the same files in the log that SQL has."""
    stock = deltalake.DeltaTable(root, version=version)
    adds = pa.table(stock.get_add_actions(flatten=True))
    theirs = dict(zip(adds["path"].to_pylist(), adds["size_bytes"].to_pylist(), strict=True))
    ours = {unquote(a.path): a.size for a in live}
    assert {unquote(p): s for p, s in theirs.items()} == ours, f"I2: deltalake differs at version {version}"


def _ids(root: Path, adds: Iterable[Add]) -> list[int]:
    out: list[int] = []
    for add in adds:
        out += pq.read_table(root / unquote(add.path), columns=["id"], partitioning=None)["id"].to_pylist()
    return sorted(out)


def _added_ids(root: Path, actions: Iterable[Any]) -> set[int]:
    return set(_ids(root, [a for a in actions if isinstance(a, Add)]))
