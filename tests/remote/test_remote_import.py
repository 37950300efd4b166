"""Tables of a bucket are taken over, and new ones find their place under a catalog's root there."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import deltalake
import pytest
from click.testing import CliRunner

from deltalakedb import Catalog, DeltaTable, write_deltalake
from deltalakedb.cli.main import cli
from deltalakedb.exceptions import CatalogNotFoundError
from deltalakedb.settings import Config
from deltalakedb.table.handle import require_handle
from support.lake import ids, ids_of
from support.s3 import SECRET

if TYPE_CHECKING:
    from pathlib import Path

    from support.places import Place

pytestmark = pytest.mark.parametrize("engine_name", ["sqlite"])


@pytest.fixture
def plain(bucket: Place) -> str:
    """A plain Delta table of three versions in the bucket."""
    for number in range(3):
        deltalake.write_deltalake(
            bucket.at("plain"), ids(number), mode="append", storage_options=bucket.options
        )
    return bucket.at("plain")


def test_the_command_takes_a_table_over_with_the_options_of_the_settings(
    catalog_uri: str, bucket: Place, plain: str, tmp_path: Path
) -> None:
    assert bucket.options is not None
    lines = [f'[storage."{bucket.base}"]', *(f'{k} = "{v}"' for k, v in bucket.options.items())]
    settings = tmp_path / "deltasql.toml"
    settings.write_text("\n".join(lines))
    before = bucket.files()
    command = ["import", plain, "t", "--catalog", catalog_uri, "--config", str(settings), "--json"]
    for words in ([*command, "--dry-run"], command):
        result = CliRunner().invoke(cli, words)
        assert result.exit_code == 0, result.output
        document = json.loads(result.stdout)
        assert (document["location"], document["num_versions"], document["num_files"]) == (plain, 3, 3)
        assert SECRET not in result.output
    assert bucket.files() == before
    table = DeltaTable(f"{catalog_uri}?table=t", storage_options=bucket.options)
    for version in range(3):
        table.load_as_version(version)
        assert ids_of(table) == list(range(version + 1))
    write_deltalake(f"{catalog_uri}?table=t", ids(7), mode="append", storage_options=bucket.options)
    assert ids_of(deltalake.DeltaTable(plain, storage_options=bucket.options)) == [0, 1, 2, 7]


def test_a_table_that_is_not_there_is_said_to_be_missing(
    catalog_uri: str, bucket: Place, tmp_path: Path
) -> None:
    for path in (bucket.at("nothing"), "s3://no-such-bucket/t"):
        with pytest.raises(
            FileNotFoundError if "no-such" in path else deltalake.exceptions.TableNotFoundError
        ):
            Catalog(catalog_uri).register("t", path, storage_options=bucket.options)
    with pytest.raises(CatalogNotFoundError):
        Catalog(catalog_uri).tables()


def test_a_registered_table_is_found_by_every_spelling_of_its_place(
    catalog_uri: str, bucket: Place, plain: str
) -> None:
    with Catalog(catalog_uri) as catalog:
        table = catalog.register("t", plain.replace("s3://", "s3a://") + "/", storage_options=bucket.options)
        stock = deltalake.DeltaTable(plain, storage_options=bucket.options)
        assert (table.table_uri, ids_of(table)) == (stock.table_uri, [0, 1, 2])
        for spelling in (plain, f"{plain}/", plain.replace("s3://", "s3n://"), plain.replace("s3", "S3", 1)):
            found = catalog.find(location=spelling)
            assert found is not None
            assert found.name == "t"


def test_new_tables_lie_under_a_root_in_the_bucket(catalog_uri: str, bucket: Place) -> None:
    config = Config(storage={bucket.base: bucket.options})
    with Catalog(catalog_uri, config=config) as catalog:
        catalog.set_root(bucket.at("some where"))
        catalog.write("sales.orders", ids(1))
        table = catalog.table("sales.orders")
        assert table.table_uri.startswith(bucket.at("some%20where/sales/orders-"))
        assert ids_of(deltalake.DeltaTable(table.table_uri, storage_options=bucket.options)) == [1]
        table.delete("id = 1")
        assert {f.split("/")[0] for f in bucket.files()} == {"some where"}
        # what a vacuum needs of a store
        store = require_handle(table).root.store
        listed = {meta.path for meta in store.list(recursive=True)}
        assert listed == {f.split("/", 3)[3] for f in bucket.files()}
        dead = [path for path in listed if path.endswith(".parquet")]
        store.delete_all(dead)
        assert {meta.path for meta in store.list(recursive=True)} == listed - set(dead)
        assert catalog.mirror.checkpoint("sales.orders").version == 1
        assert catalog.mirror.verify("sales.orders").ok
