"""Publishing in the background: a write returns first, and nothing is left behind when the process ends."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from deltalakedb import Catalog
from deltalakedb.mirror.reconciler import PUBLISHER
from deltalakedb.settings import Config
from support.lake import child, finish, ids
from support.mirrors import append, blocked, logged, outside_ids, same_everywhere
from support.processes import Child

if TYPE_CHECKING:
    from pathlib import Path

BACKGROUND = Config(publish={"mode": "background"})


def test_what_was_written_is_published_soon(catalog_uri: str, root: Path) -> None:
    with Catalog(catalog_uri, config=BACKGROUND) as catalog:
        append(catalog, *range(1, 8))
        assert PUBLISHER.flush()
        same_everywhere(catalog, root)
    assert outside_ids(root) == list(range(8))


def test_a_failure_in_the_background_leaves_the_rest_to_a_reconciler(
    catalog_uri: str, catalog: Catalog, root: Path
) -> None:
    with blocked(root):
        behind = Catalog(catalog_uri, config=BACKGROUND)
        append(behind, 1, 2)
        assert PUBLISHER.flush()
    (status,) = catalog.mirror.status()
    assert status.versions_behind == 2
    assert status.attempts >= 1
    assert catalog.mirror.publish("t").published == 2
    same_everywhere(catalog, root)


def test_a_dropped_table_does_not_trouble_the_publisher(catalog_uri: str, root: Path) -> None:
    with Catalog(catalog_uri, config=BACKGROUND) as catalog:
        append(catalog, 1)
        catalog.drop_table("t", force=True)
        assert PUBLISHER.flush()
        catalog.write("u", ids(1), location=root.parent / "u")
        assert PUBLISHER.flush()
    assert logged(root.parent / "u") == [0]


def append_behind(uri: str, *numbers: int) -> None:
    append(Catalog(uri, config=BACKGROUND), *numbers)


def test_the_end_of_a_child_process_waits_too(
    catalog_uri: str, catalog: Catalog, root: Path, tmp_path: Path
) -> None:
    catalog.close()
    Child(append_behind, catalog_uri, 1, 2, 3, folder=tmp_path).result()
    assert logged(root) == [0, 1, 2, 3]
    assert catalog.mirror.status()[0].versions_behind == 0


def test_the_end_of_a_process_waits_for_its_publisher(catalog_uri: str, catalog: Catalog, root: Path) -> None:
    script = """
        import sys
        import pyarrow as pa
        from deltalakedb import Catalog
        catalog = Catalog(sys.argv[1])
        for number in range(1, 6):
            data = pa.table({"id": pa.array([number], pa.int64()), "part": ["a"]})
            catalog.write("t", data, mode="append")
        print(catalog.table("t").version())
    """
    environment = {**os.environ, "DELTASQL_PUBLISH__MODE": "background"}
    catalog.close()
    assert finish(child(script, catalog_uri, env=environment)).strip() == "5"
    assert logged(root) == [0, 1, 2, 3, 4, 5]
    same_everywhere(catalog, root)
    assert catalog.mirror.status()[0].versions_behind == 0
