"""Logs with an unusual spelling that say nothing wrong: what stock reads is imported and verified."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deltalakedb import Catalog, DeltaTable, import_table, verify_table
from deltalakedb.protocol import actions
from support.lake import ids, ids_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def table_at(root: Path, *, checkpoint: bool = True) -> Path:
    """A table of three versions, its checkpoint at version 1."""
    for n in range(3):
        once = deltalake.CommitProperties(app_transactions=[deltalake.Transaction("app", n)])
        deltalake.write_deltalake(
            root,
            ids(n, part="ab"[n % 2]),
            mode="append",
            partition_by=["part"],
            configuration={
                "delta.deletedFileRetentionDuration": "interval 8 days",
                "delta.logRetentionDuration": "interval 40 days",
            },
            commit_properties=once,
        )
        if n == 1 and checkpoint:
            deltalake.DeltaTable(root).create_checkpoint()
    return root


def commit(root: Path, version: int) -> Path:
    return root / "_delta_log" / f"{version:020}.json"


def lines(root: Path, version: int, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Change every action of a commit."""
    file = commit(root, version)
    actions = [json.loads(line) for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps(change(action)) + "\n" for action in actions))


def checkpointed(root: Path, change: Callable[[str, dict[str, Any]], None]) -> None:
    """Change every action of the checkpoint."""
    file = next((root / "_delta_log").glob("*.checkpoint.parquet"))
    table = pq.read_table(file)
    rows = table.to_pylist()
    for row in rows:
        for kind, value in row.items():
            if value is not None:
                change(kind, value)
    pq.write_table(pa.Table.from_pylist(rows, table.schema), file)


def respelled_schema(text: str) -> str:
    """The same schema with other white space, and keys in another order."""

    def turned(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: turned(value[key]) for key in reversed(value)}
        return [turned(item) for item in value] if isinstance(value, list) else value

    return json.dumps(turned(json.loads(text)), indent=2)


def schema_in_checkpoint(root: Path) -> None:
    def change(kind: str, value: dict[str, Any]) -> None:
        if kind == "metaData":
            value["schemaString"] = respelled_schema(value["schemaString"])

    checkpointed(root, change)


def configuration_in_checkpoint(root: Path) -> None:
    def change(kind: str, value: dict[str, Any]) -> None:
        if kind == "metaData":
            value["configuration"] = value["configuration"][::-1]

    checkpointed(root, change)


def no_stats_in_checkpoint(root: Path) -> None:
    def change(kind: str, value: dict[str, Any]) -> None:
        if kind == "add":
            value["stats"] = None
            value["stats_parsed"] = None

    checkpointed(root, change)


def features(*, turned: bool) -> dict[str, Any]:
    names = ["appendOnly", "invariants", "timestampNtz"]
    return {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["timestampNtz"],
        "writerFeatures": names[::-1] if turned else names,
    }


def features_in_another_order(root: Path) -> None:
    lines(root, 0, lambda a: {"protocol": features(turned=False)} if "protocol" in a else a)
    (next((root / "_delta_log").glob("*.checkpoint.parquet"))).unlink()
    (root / "_delta_log" / "_last_checkpoint").unlink(missing_ok=True)
    third = commit(root, 2).read_bytes()
    commit(root, 2).unlink()
    deltalake.DeltaTable(root).create_checkpoint()
    commit(root, 2).write_bytes(third)

    def change(kind: str, value: dict[str, Any]) -> None:
        if kind == "protocol":
            value |= features(turned=True)

    checkpointed(root, change)


def unknown_key(root: Path) -> None:
    lines(root, 2, lambda a: {**a, "unknownThing": {"x": 1}} if "add" in a else a)


def unknown_field(root: Path) -> None:
    def change(action: dict[str, Any]) -> dict[str, Any]:
        for kind in ("add", "metaData"):
            if kind in action:
                action[kind]["unknownField"] = 1
        return action

    lines(root, 0, change)


def no_commit_info(root: Path) -> None:
    kept = [line for line in commit(root, 2).read_text().splitlines() if '"commitInfo"' not in line]
    commit(root, 2).write_text("\n".join(kept))


def windows_lines(root: Path) -> None:
    data = commit(root, 2).read_bytes()
    commit(root, 2).write_bytes(data.replace(b"\n", b"\r\n") + b"\r\n\r\n")


def nulls(root: Path) -> None:
    def change(action: dict[str, Any]) -> dict[str, Any]:
        if "add" in action:
            action["add"] |= {"tags": None, "deletionVector": None, "baseRowId": None}
        if "txn" in action:
            action["txn"]["lastUpdated"] = None
        return {**action, "remove": None}

    lines(root, 2, change)


def empty_sidecars(root: Path) -> None:
    (root / "_delta_log" / "_sidecars").mkdir()


def compacted(root: Path) -> None:
    text = commit(root, 1).read_text() + commit(root, 2).read_text()
    kept = [line for line in text.splitlines() if '"commitInfo"' not in line and '"txn"' not in line]
    kept.append(next(line for line in commit(root, 2).read_text().splitlines() if '"txn"' in line))
    (root / "_delta_log" / f"{1:020}.{2:020}.compacted.json").write_text("\n".join(kept))


HARMLESS = [
    schema_in_checkpoint,
    configuration_in_checkpoint,
    no_stats_in_checkpoint,
    features_in_another_order,
    unknown_key,
    unknown_field,
    no_commit_info,
    windows_lines,
    nulls,
    empty_sidecars,
    compacted,
]


@pytest.mark.parametrize("history", ["full", "checkpoint"])
@pytest.mark.parametrize("spell", HARMLESS, ids=lambda change: change.__name__)
def test_a_sound_log_is_imported_and_verified(
    spell: Callable[[Path], None], history: Any, tmp_path: Path, catalog_uri: str
) -> None:
    root, uri = table_at(tmp_path / "t"), f"{catalog_uri}?table=t"
    spell(root)
    assert ids_of(deltalake.DeltaTable(root)) == [0, 1, 2]
    before = commit(root, 2).read_bytes()
    assert import_table(str(root), uri, history=history, verify="full").verification.ok
    assert ids_of(DeltaTable(uri)) == [0, 1, 2]
    assert verify_table(uri, "full").ok
    with Catalog(catalog_uri) as catalog:
        assert catalog.mirror.verify("t").differences == ()
        assert catalog.log("t").commit_bytes(2) == before


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_unknown_keys_beside_an_action_are_warned_of_once(
    tmp_path: Path, catalog_uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    root = table_at(tmp_path / "t")
    unknown_key(root)
    actions._warn_of_unknown_keys.cache_clear()
    with caplog.at_level(logging.WARNING):
        import_table(str(root), f"{catalog_uri}?table=t", verify="full")
    told = [record.getMessage() for record in caplog.records if "unknownThing" in record.getMessage()]
    assert len(told) == 1


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_a_schema_that_really_differs_is_still_found(tmp_path: Path, catalog_uri: str) -> None:
    root, uri = table_at(tmp_path / "t"), f"{catalog_uri}?table=t"
    import_table(str(root), uri)

    def change(kind: str, value: dict[str, Any]) -> None:
        if kind == "metaData":
            value["schemaString"] = value["schemaString"].replace('"long"', '"string"')

    checkpointed(root, change)
    with Catalog(catalog_uri) as catalog:
        assert [f.detail for f in catalog.mirror.verify("t").differences][:1] == ["the metadata differs"]
    assert not verify_table(uri).ok
