"""The golden tables imported into SQL on each engine, and asked with their log hidden."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from deltalakedb import Catalog, DeltaTable, import_table, open_log
from deltalakedb.exceptions import DeltaSqlError
from deltalakedb.protocol.paths import canonical_path
from support.golden import golden_params_on_engines, golden_root
from support.golden_truth import check_version

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.golden import GoldenTable


def contents() -> Any:
    """The module beside the truth by which its digests of rows were made."""
    root = golden_root()
    assert root is not None
    spec = importlib.util.spec_from_file_location("golden_contents", root / "contents.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def copy_of(table: GoldenTable, folder: Path) -> Path:
    """The table with links to its files, so that its log can be taken away."""
    root = folder / table.path.name
    shutil.copytree(table.path, root, copy_function=os.symlink)
    return root


def check_rows(table: DeltaTable, truth: dict[str, Any], version: int) -> None:
    """Rows and file lists of the table itself, where stock can tell them too."""
    wanted = truth["versions"][str(version)]
    assert len(table.file_uris()) == wanted["n_files"]
    adds = pa.table(table.get_add_actions(flatten=True))
    assert sum(adds["size_bytes"].to_pylist()) == wanted["bytes"]
    assert sorted(canonical_path(p) for p in adds["path"].to_pylist()) == sorted(
        f[0] for f in wanted["files"]
    )
    assert json.loads(table.schema().to_json())["type"] == "struct"
    if not truth["stock"].get("reads") or wanted["rows"] is None:
        return
    rows = contents()
    if version == truth["latest"] and truth.get("content_sha256"):
        assert rows.digest(rows.rows_of(table)) == truth["content_sha256"]
        if truth["stock"].get("to_pyarrow_table") == "same rows":
            assert rows.digest(rows.rows_of(table.to_pyarrow_table())) == truth["content_sha256"]
    elif wanted["rows"] <= 20_000:
        assert rows.rows_of(table, limit=None) == wanted["rows"]


@pytest.mark.parametrize(("engine", "table"), golden_params_on_engines())
def test_an_imported_table_agrees_with_the_truth(
    engine: str, table: GoldenTable, shared_catalog: Callable[[str], Catalog], tmp_path: Path
) -> None:
    catalog = shared_catalog(engine)  # of all golden tables: they must not disturb each other either
    truth = table.truth
    root = copy_of(table, tmp_path)
    name = table.name.replace(".", "_")
    uri = catalog.table_uri(name)
    if truth["expect"] == "must_fail":
        with pytest.raises(DeltaSqlError):
            import_table(str(root), uri)
        assert catalog.find(name) is None
        return
    try:
        report = import_table(str(root), uri, verify="full")
    except DeltaSqlError:
        if truth["expect"] != "may_refuse":
            raise
        return
    checked = report.verification
    assert checked is not None
    assert (checked.ok, checked.level, checked.versions_checked) == (True, "full", report.num_versions)
    assert checked.digest == checked.log_digest or checked.respelled
    (root / "_delta_log").rename(tmp_path / "hidden_log")
    log = open_log(uri)
    assert report.version == log.latest_version() == truth["latest"]
    assert list(log.versions()) == list(range(report.first_version, truth["latest"] + 1))
    for version in truth["versions_reachable"]:
        wanted = truth["versions"][str(version)]
        if wanted["metadata"]["schemaString"] is None or version < report.first_version:
            continue
        check_version(log, version, wanted)
        check_rows(DeltaTable(uri, version=version), truth, version)
    with pytest.raises(DeltaSqlError):
        DeltaTable(uri, version=truth["latest"] + 1)
    operations = {h["version"]: h.get("operation") for h in DeltaTable(uri).history()}
    for number, wanted in truth["versions"].items():
        if (info := wanted.get("commit_info")) is not None and int(number) in operations:
            assert operations[int(number)] == info["operation"]
