"""The store of a location: its options come from the caller, else from the catalog's settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deltalakedb import Catalog
from deltalakedb.mirror import store_at

if TYPE_CHECKING:
    from pathlib import Path


def test_every_location_has_options_of_its_own(tmp_path: Path) -> None:
    storage = {"s3://lake/": {"aws_region": "eu-west-1"}, "s3://copy/": {"aws_region": "eu-north-1"}}
    with Catalog(
        f"deltasql://sqlite/{tmp_path}/meta.db", config={"storage": storage}, create=True
    ) as catalog:

        def options(location: str, given: dict[str, str] | None = None) -> Any:
            return store_at(catalog._database, location, given).__reduce__()[1][1]

        assert options("s3://lake/t") == {"aws_region": "eu-west-1"}
        assert options("s3://copy/t") == {"aws_region": "eu-north-1"}
        assert options("s3://lake/t", {"aws_region": "us-east-1"}) == {"aws_region": "us-east-1"}
        assert options("s3://elsewhere/t", {}) == {}
        assert store_at(catalog._database, str(tmp_path)).location == str(tmp_path)
