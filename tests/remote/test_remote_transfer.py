"""Many tables of a bucket at once, followed ones, and tables that are given away from and to buckets."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import deltalake
import pytest
from click.testing import CliRunner

from deltalakedb import (
    DeltaTable,
    export_table,
    follow_table,
    import_table,
    import_tables,
    rollback_import,
    verify_table,
)
from deltalakedb.cli.main import cli
from deltalakedb.exceptions import InvalidArgumentError
from support.lake import ids, ids_of
from support.s3 import SECRET

if TYPE_CHECKING:
    from pathlib import Path

    from support.places import Place

pytestmark = pytest.mark.parametrize("engine_name", ["sqlite"])


def settings_for(bucket: Place, folder: Path) -> str:
    lines = [f'[storage."{bucket.base}"]', *(f'{k} = "{v}"' for k, v in (bucket.options or {}).items())]
    file = folder / "deltasql.toml"
    file.write_text("\n".join(lines))
    return str(file)


def test_every_table_below_a_prefix_is_found_and_failures_are_kept_apart(
    catalog_uri: str, bucket: Place, tmp_path: Path
) -> None:
    for name in ("lake/a", "lake/deep/er/b", "lake/part=1/c ü", "elsewhere/d"):
        for n in range(2):
            data = ids(n)
            deltalake.write_deltalake(bucket.at(name), data, mode="append", storage_options=bucket.options)
    torn = bucket.at("lake/torn/_delta_log/00000000000000000000.json").removeprefix(f"{bucket.base}/")
    bucket.client.put_object(Bucket=bucket.base.removeprefix("s3://"), Key=torn, Body=b'{"add":')
    before = bucket.files()
    command = ["import-all", bucket.at("lake"), "--namespace", "raw", "--catalog", catalog_uri]
    command += ["--config", settings_for(bucket, tmp_path), "--json"]
    planned = CliRunner().invoke(cli, [*command, "--dry-run"])
    result = CliRunner().invoke(cli, command)
    assert planned.exit_code == result.exit_code == 1, result.output
    assert SECRET not in result.output
    outcomes = {t["table"]: t["outcome"] for t in json.loads(result.stdout)["tables"]}
    assert outcomes == {
        "raw.a": "imported",
        "raw.deep.er.b": "imported",
        "raw.part=1.c ü": "imported",
        "raw.torn": "failed",
    }
    assert bucket.files() == before
    deltalake.write_deltalake(bucket.at("lake/a"), ids(9), mode="append", storage_options=bucket.options)
    with pytest.raises(InvalidArgumentError, match="nothing below"):
        import_tables(bucket.at("lakes"), catalog_uri, storage_options=bucket.options)
    again = import_tables(bucket.at("lake/"), catalog_uri, namespace="raw", storage_options=bucket.options)
    assert {t.table: t.outcome for t in again.tables} == {
        "raw.a": "caught up",
        "raw.deep.er.b": "unchanged",
        "raw.part=1.c ü": "unchanged",
        "raw.torn": "failed",
    }
    uri = f"{catalog_uri}?table=raw.a"
    assert ids_of(DeltaTable(uri, storage_options=bucket.options)) == [0, 1, 9]
    assert verify_table(uri, "full", storage_options=bucket.options).ok
    assert rollback_import(uri, storage_options=bucket.options).action == "released"


def test_tables_are_given_away_from_and_to_buckets(catalog_uri: str, bucket: Place, tmp_path: Path) -> None:
    uri, options = f"{catalog_uri}?table=t", bucket.options
    for n in range(3):
        deltalake.write_deltalake(bucket.at("here"), ids(n), mode="append", storage_options=options)
    deltalake.DeltaTable(bucket.at("here"), storage_options=options).delete("id = 1")
    import_table(bucket.at("here"), uri, storage_options=options)
    folder = tmp_path / "there"
    report = export_table(uri, str(folder), verify="full", storage_options=options)
    assert (report.version, report.num_files) == (3, 3)
    assert ids_of(deltalake.DeltaTable(folder)) == [0, 2]
    assert ids_of(deltalake.DeltaTable(folder, version=1)) == [0, 1]
    report = export_table(uri, bucket.at("copy"), verify="data", storage_options=options)
    copy = deltalake.DeltaTable(bucket.at("copy"), storage_options=options)
    assert (copy.version(), ids_of(copy)) == (3, [0, 2])
    # from a folder to a bucket, by the command
    local = tmp_path / "local"
    deltalake.write_deltalake(local, ids(5, 6))
    import_table(str(local), f"{catalog_uri}?table=local")
    words = ["export", "local", bucket.at("new"), "--history", "newest", "--catalog", catalog_uri]
    words += ["--config", settings_for(bucket, tmp_path)]
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 0, result.output
    assert ids_of(deltalake.DeltaTable(bucket.at("new"), storage_options=options)) == [5, 6]
    with pytest.raises(InvalidArgumentError, match="is not empty"):
        export_table(uri, bucket.at("new"), storage_options=options)
    # in place: the catalog forgets it, the bucket keeps all of it
    export_table(uri, storage_options=options)
    assert ids_of(deltalake.DeltaTable(bucket.at("here"), storage_options=options)) == [0, 2]


def test_a_table_in_a_bucket_is_followed(catalog_uri: str, bucket: Place) -> None:
    uri, options = f"{catalog_uri}?table=t", bucket.options
    deltalake.write_deltalake(bucket.at("theirs"), ids(0), storage_options=options)
    assert follow_table(bucket.at("theirs"), uri, once=True, storage_options=options).action == "imported"
    deltalake.write_deltalake(bucket.at("theirs"), ids(1), mode="append", storage_options=options)
    before = bucket.files()
    assert follow_table(bucket.at("theirs"), uri, once=True, storage_options=options).brought == 1
    assert bucket.files() == before
    assert ids_of(DeltaTable(uri, storage_options=options)) == [0, 1]
