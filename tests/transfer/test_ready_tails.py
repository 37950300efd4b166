"""Commits that were made ready as columns become the same rows as those that are read file by file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltalakedb import Catalog, import_table, rollback_import, verify_table
from deltalakedb.transfer.importing import loader, plan
from deltalakedb.transfer.importing.encoding import Encoders, ready_tail
from deltalakedb.transfer.importing.loader import LocalEngine
from support.sources import contents, many_files, plain_table

if TYPE_CHECKING:
    from pathlib import Path

    from deltalakedb.transfer.importing.loader import LoadTask


class ReadyEngine(LocalEngine):
    """Loads what another process would have made ready."""

    made = 0

    def load(self, task: LoadTask, tails: Any = None) -> None:
        def ready(versions: range) -> Any:
            with task.database.read() as session:
                encoders = Encoders.of(session, task.row.table_id, task.paths)
            made = ready_tail(task.reader.store, versions, encoders)
            ReadyEngine.made += made is not None
            return made

        super().load(task, ready)


def loaded(root: Path, uri: str, engine: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Any]]:
    ReadyEngine.made = 0
    with monkeypatch.context() as patched:
        patched.setattr(loader, "LocalEngine", engine)
        patched.setattr(plan, "COMMITS_PER_BATCH", 2)
        import_table(str(root), uri)
    assert verify_table(uri, "full").ok
    found = contents(uri)
    rollback_import(uri)
    return found


def test_every_engine_writes_them_alike(
    tmp_path: Path, catalog_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"{catalog_uri}?table=t"
    for root in (plain_table(tmp_path / "plain"), many_files(tmp_path / "many")):
        wanted = loaded(root, uri, LocalEngine, monkeypatch)
        assert loaded(root, uri, ReadyEngine, monkeypatch) == wanted
        assert ReadyEngine.made >= 3  # all but the first batch, which sets the schema


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
        wanted = loaded(folder / "t", uri, LocalEngine, patched)
        assert loaded(folder / "t", uri, ReadyEngine, patched) == wanted
    Catalog(uri.partition("?")[0]).close()
