"""Commits that are written as one batch become the same rows as those that are applied one by one."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltalakedb import Catalog, import_table, rollback_import, verify_table
from deltalakedb.metastore.files import write_batch
from deltalakedb.transfer.importing import encoding, loader, plan
from deltalakedb.transfer.importing.encoding import prepare_tail
from support.sources import contents, many_files, plain_table

if TYPE_CHECKING:
    from pathlib import Path


#: whether the files of each batch of commits were written as one
Made = list[bool]


def loaded(
    root: Path, uri: str, monkeypatch: pytest.MonkeyPatch, *, one_by_one: bool = False
) -> tuple[dict[str, list[Any]], Made]:
    """What an import makes of a log, and which batches of commits were written as one."""
    made: Made = []

    def prepared(commits: Any, layout: Any) -> Any:
        tail = prepare_tail(commits, layout)
        return replace(tail, files=None) if one_by_one else tail

    def written(session: Any, table_id: int, first: int, batch: Any) -> None:
        made.append(True)
        write_batch(session, table_id, first, batch)

    with monkeypatch.context() as patched:
        patched.setattr(loader, "prepare_tail", prepared)
        patched.setattr(encoding, "write_batch", written)
        patched.setattr(encoding, "PACK_MIN", 2)
        patched.setattr(plan, "COMMITS_PER_BATCH", 2)
        import_table(str(root), uri)
    assert verify_table(uri, "full").ok
    found = contents(uri)
    rollback_import(uri)
    return found, made


def test_every_engine_writes_them_alike(
    tmp_path: Path, catalog_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"{catalog_uri}?table=t"
    for root in (plain_table(tmp_path / "plain"), many_files(tmp_path / "many")):
        wanted, none = loaded(root, uri, monkeypatch, one_by_one=True)
        found, made = loaded(root, uri, monkeypatch)
        assert found == wanted
        assert len(none) < len(made)
        assert len(made) >= 3


SCHEMA = {"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]}
FIRST: list[dict[str, Any]] = [
    {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
    {
        "metaData": {
            "id": "1",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps(SCHEMA),
            "partitionColumns": [],
            "configuration": {},
            "createdTime": 1,
        }
    },
]


def action(kind: str, number: int, version: int, tags: bool) -> dict[str, Any]:
    path = f"part-{number}.parquet"
    if kind == "remove":
        return {"remove": {"path": path, "deletionTimestamp": version, "dataChange": bool(number % 2)}}
    if kind == "txn":
        return {"txn": {"appId": f"app{number}", "version": version}}
    stats = {"numRecords": version, "minValues": {"id": number}, "maxValues": {"id": number + version}}
    add: dict[str, Any] = {
        "path": path,
        "partitionValues": {},
        "size": 10 * version + number,
        "modificationTime": version,
        "dataChange": True,
        "stats": json.dumps(stats) if number else None,
    }
    return {"add": {**add, "tags": {"a": "b"}} if tags else add}


KINDS = st.tuples(
    st.sampled_from(["add", "add", "remove", "txn"]),
    st.integers(0, 4),
    st.integers(0, 9).map(lambda n: n == 9),
)


@settings(max_examples=15, deadline=None)
@given(commits=st.lists(st.lists(KINDS, max_size=5, unique_by=lambda k: k[:2]), min_size=3, max_size=9))
def test_whatever_commits_do_to_files_the_rows_are_the_same(
    tmp_path_factory: pytest.TempPathFactory, commits: list[list[tuple[str, int, bool]]]
) -> None:
    folder = tmp_path_factory.mktemp("tails")
    log = folder / "t" / "_delta_log"
    log.mkdir(parents=True)
    for version, kinds in enumerate(commits):
        lines = [*(FIRST if not version else []), *(action(k, n, version, tags) for k, n, tags in kinds)]
        text = "".join(json.dumps(a) + "\n" for a in [{"commitInfo": {"operation": "WRITE"}}, *lines])
        (log / f"{version:020}.json").write_text(text)
    uri = f"deltasql://sqlite/{folder}/catalog.db?table=t"
    with pytest.MonkeyPatch.context() as patched:
        wanted, _ = loaded(folder / "t", uri, patched, one_by_one=True)
        assert loaded(folder / "t", uri, patched)[0] == wanted
    Catalog(uri.partition("?")[0]).close()
