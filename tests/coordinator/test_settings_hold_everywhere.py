"""The settings of publishing hold for every commit: writers, the HTTP service, resolve and fence alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

import deltalake
import pytest

from deltalakedb import Catalog
from deltalakedb.exceptions import ConflictError, TableFrozenError
from deltalakedb.metastore import outbox
from deltalakedb.metastore.database import close_all
from deltalakedb.mirror.reconciler import PUBLISHER
from deltalakedb.service.ratifier import Ratifier
from deltalakedb.settings import Config
from support.callers import appended
from support.lake import ids
from support.mirrors import append, append_outside, diverge, logged

if TYPE_CHECKING:
    from pathlib import Path

    from support.stores import StoreServers

pytestmark = pytest.mark.parametrize("engine_name", ["sqlite"])


@pytest.mark.parametrize("look_ahead", ["always", "local"])
def test_the_service_looks_ahead_on_object_stores_if_the_setting_says_so(
    look_ahead: str, catalog_uri: str, store_servers: StoreServers
) -> None:
    bucket = store_servers.bucket("s3")
    location, options = f"{bucket.url}/t", bucket.options()
    config = Config(publish={"look_ahead": look_ahead}, storage={bucket.url: options})
    with Catalog(catalog_uri, config=config) as catalog:
        catalog.write("t", ids(0), location=location)
        deltalake.write_deltalake(location, ids(1), mode="append", storage_options=options)
        answer = Ratifier(catalog._database).commit(f"{location}/_delta_log/{1:020}.json", appended())
        found = catalog.describe("t")
        assert (answer.word, found.state) == ("held", "frozen")
        # one that did not look has ratified the commit, and found the foreign one when it published
        assert found.head.version == (0 if look_ahead == "always" else 1)


@pytest.mark.parametrize("mode", ["sync", "background", "off"])
def test_resolve_publishes_as_the_setting_says(mode: str, catalog_uri: str, root: Path) -> None:
    with Catalog(catalog_uri) as catalog:
        diverge(catalog, root, 1, 2)
        outbox.set_paused(catalog._database, catalog.describe("t"), paused=False)
    close_all()
    with Catalog(catalog_uri, config=Config(publish={"mode": mode})) as catalog:
        assert catalog.mirror.resolve("t").ours == {1: 2, 2: 3}
        assert PUBLISHER.flush()
        assert logged(root) == ([0, 1] if mode == "off" else [0, 1, 2, 3])
        assert catalog.mirror.status("t")[0].versions_behind == (2 if mode == "off" else 0)
        catalog.mirror.run()
        assert logged(root) == [0, 1, 2, 3]


def test_resolve_publishes_all_of_a_long_backlog(catalog_uri: str, root: Path) -> None:
    with Catalog(catalog_uri) as catalog:
        diverge(catalog, root, *range(1, 41))
        outbox.set_paused(catalog._database, catalog.describe("t"), paused=False)
        assert len(catalog.mirror.resolve("t").ours) == 40
        assert logged(root) == [*range(42)]


@pytest.mark.parametrize("mode", ["sync", "background", "off"])
def test_fence_publishes_as_the_setting_says(
    mode: str, catalog_uri: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    with Catalog(catalog_uri, config=Config(publish={"mode": mode})) as catalog:
        with monkeypatch.context() as patched:
            patched.setattr(PUBLISHER, "soon", lambda _, target: asked.append(target.table.name))
            assert catalog.mirror.fence("t") == 1
        assert asked == (["t"] if mode == "background" else [])
        assert logged(root) == ([0, 1] if mode == "sync" else [0])


def test_fence_looks_for_foreign_commits_only_if_the_setting_says_so(catalog_uri: str, root: Path) -> None:
    append_outside(root, 1)
    blind = Config(publish={"look_ahead": "off", "mode": "off"})
    with Catalog(catalog_uri, config=blind) as catalog:
        assert catalog.mirror.fence("t") == 1
        assert catalog.describe("t").state == "active"
    close_all()
    with Catalog(catalog_uri) as catalog:
        catalog.mirror.resolve("t")
        append_outside_version = len(logged(root))
        assert append_outside_version == 3, "theirs, and our fence on top"


def test_fence_takes_foreign_commits_over_or_freezes_as_every_writer_does(
    catalog_uri: str, root: Path
) -> None:
    with Catalog(catalog_uri) as catalog:
        append_outside(root, 1)
        catalog.mirror.set_policy("t", "adopt")
        assert catalog.mirror.fence("t") == 2
        assert catalog.mirror.unfence("t") == 3
        catalog.mirror.set_policy("t", "freeze")
        append_outside(root, 2)
        with pytest.raises(TableFrozenError):
            catalog.mirror.fence("t")


def test_conflicts_are_one_error_whoever_commits(catalog_uri: str, root: Path) -> None:
    with Catalog(catalog_uri) as catalog:
        older = catalog.table("t")
        append(catalog, 1)
        catalog.table("t").delete("id = 1")
        older.load_as_version(1)
        with pytest.raises(ConflictError, match=r"version 2 \(DELETE\) was first") as caught:
            older.delete("id = 1")
        assert "repeat the write" in (caught.value.suggestion or "")
