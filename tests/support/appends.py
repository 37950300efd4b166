"""Stock tables to append to, by delta-rs and by the direct writer."""

from __future__ import annotations

import json
import math
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa

from deltalakedb.protocol.actions import Action, Add, Metadata, Protocol, decode_commit, encode_commit
from deltalakedb.protocol.txn_log import Snapshot
from deltalakedb.table.roots import root_at
from deltalakedb.table.write.parquet import arrow_source, plan_append, write_files

if TYPE_CHECKING:
    from pathlib import Path


def log_file(root: Path, version: int) -> Path:
    return root / "_delta_log" / f"{version:020}.json"


def actions_of(root: Path, version: int) -> list[Action]:
    return decode_commit(log_file(root, version).read_bytes())


def empty_table(root: Path, schema: pa.Schema, **options: Any) -> Snapshot:
    """A new stock table and what a writer must know of it."""
    options.setdefault("raise_if_key_not_exists", False)
    deltalake.DeltaTable.create(root, schema, **options)
    actions = actions_of(root, 0)
    protocol = next(a for a in actions if isinstance(a, Protocol))
    metadata = next(a for a in actions if isinstance(a, Metadata))
    return Snapshot(0, 0, protocol, metadata)


def stock_append(root: Path, data: Any, **options: Any) -> list[Add]:
    """Append by delta-rs to a table at version 0."""
    deltalake.write_deltalake(root, data, mode="append", **options)
    return [a for a in actions_of(root, 1) if isinstance(a, Add)]


def write(data: Any, root: Path, snapshot: Snapshot, *, fsync: bool = True, **options: Any) -> list[Add]:
    """Write data by the direct writer, and commit nothing."""
    source = arrow_source(data)
    plan = plan_append(snapshot, source.schema, options)
    return write_files(source, plan, root_at(str(root)), fsync=fsync)


def direct_append(root: Path, snapshot: Snapshot, data: Any, **options: Any) -> list[Add]:
    """Append by the direct writer, and publish the adds as version 1."""
    adds = write(data, root, snapshot, fsync=False, **options)
    if adds:
        log_file(root, 1).write_bytes(encode_commit(adds))
    return adds


def data_files(root: Path) -> list[Path]:
    """Everything beside the log, hidden files too."""
    return sorted(p for p in root.rglob("*") if p.is_file() and "_delta_log" not in p.parts)


def stats_of(adds: list[Add]) -> Any:
    """The statistics of the only file."""
    (add,) = adds
    return json.loads(add.stats or "{}")


def rows_of(root: Path) -> list[str]:
    """All rows as delta-rs reads them, in an order that any two equal tables share."""
    query = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(root))
    rows = pa.table(query.execute("select * from t").read_all()).to_pylist()
    return sorted(repr(plain(row)) for row in rows)


def plain(value: Any) -> Any:
    """A value without what readers may differ in: view types, time zone objects."""
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in sorted(value.items())}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat()
    return value


def trimmed(value: Any) -> Any:
    """Statistics without nulls and empty objects, which say nothing."""
    if not isinstance(value, dict):
        return value
    inner = {name: trimmed(part) for name, part in sorted(value.items())}
    return {name: part for name, part in inner.items() if part not in (None, {})}


def same_bound(ours: Any, theirs: Any) -> bool:
    """Whether two bounds are the same, up to what delta-rs rounds away."""
    if isinstance(ours, dict):
        return (
            isinstance(theirs, dict)
            and ours.keys() == theirs.keys()
            and all(same_bound(ours[name], theirs[name]) for name in ours)
        )
    if isinstance(ours, str) and isinstance(theirs, str):
        return ours == theirs or _milliseconds(ours) == _milliseconds(theirs) is not None
    if isinstance(ours, int | float) and not isinstance(ours, bool):
        if abs(int(ours)) >= 2**63:  # whole decimals are clamped there
            return bool(abs(theirs) >= 2**63 - 1)
        return math.isclose(ours, theirs, rel_tol=1e-15)
    return bool(ours == theirs)


def _milliseconds(text: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment - timedelta(microseconds=moment.microsecond % 1000)
