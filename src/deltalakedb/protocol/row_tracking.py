"""Row tracking: base row ids for new files, above the table's high-water mark."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from deltalakedb.exceptions import ProtocolError
from deltalakedb.protocol.actions import Action, Add, DomainMetadata, Metadata
from deltalakedb.protocol.json_text import decode_json, encode_json
from deltalakedb.protocol.stats import parse_stats

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


ROW_TRACKING_DOMAIN = "delta.rowTracking"
#: properties that name the columns in which writers that move rows keep their ids
_ROW_COLUMNS = {
    "delta.rowTracking.materializedRowIdColumnName": "_row-id-col-",
    "delta.rowTracking.materializedRowCommitVersionColumnName": "_row-commit-version-col-",
}


def with_row_columns(metadata: Metadata) -> Metadata:
    """Metadata of a table whose rows have ids, with names for the columns that keep them in moved rows."""
    names = {
        key: f"{start}{uuid.uuid4()}"
        for key, start in _ROW_COLUMNS.items()
        if key not in metadata.configuration
    }
    return replace(metadata, configuration={**metadata.configuration, **names}) if names else metadata


def assign_row_ids(
    actions: Sequence[Action], *, version: int, domain: Mapping[str, Any] | None, table: str
) -> list[Action]:
    """Give files without base row ids such ids, and record the new high-water mark."""
    before = _mark(domain)
    mark, out = max([before, *map(_last_id, actions)]), []
    for action in actions:
        if isinstance(action, DomainMetadata) and action.domain == ROW_TRACKING_DOMAIN:
            continue
        if isinstance(action, Add) and action.default_row_commit_version is None:
            action = replace(action, default_row_commit_version=version)
        if isinstance(action, Add) and action.base_row_id is None:
            if (num_records := _num_records(action)) is None:
                what = f"the file {action.path} has no numRecords statistic, which row tracking needs"
                raise ProtocolError(what, table=table, version=version)
            action = replace(action, base_row_id=mark + 1)
            mark += num_records
        out.append(action)
    if mark != before or domain is None:
        text = encode_json({"rowIdHighWaterMark": mark})
        out.append(DomainMetadata(domain=ROW_TRACKING_DOMAIN, configuration=text, removed=False))
    return out


def _last_id(action: Action) -> int:
    """The highest row id that a file has already; -1 for everything else."""
    if not isinstance(action, Add) or action.base_row_id is None:
        return -1
    return action.base_row_id + (_num_records(action) or 1) - 1


def _num_records(add: Add) -> int | None:
    stats = parse_stats(add.stats)
    return None if stats is None else stats.num_records


def _mark(domain: Mapping[str, Any] | None) -> int:
    if domain is None:
        return -1
    found = decode_json(domain.get("configuration") or "{}")
    mark = found.get("rowIdHighWaterMark", -1) if isinstance(found, dict) else None
    if type(mark) is not int or not -1 <= mark < 2**63:
        raise ProtocolError(
            f"the metadata domain {ROW_TRACKING_DOMAIN} holds no high-water mark of row ids",
            suggestion="have the writer of the table repair its metadata domain",
        )
    return mark
