"""Random histories of a table in a bucket that another engine writes to, restores and races with a vacuum."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from deltalakedb import Catalog, write_deltalake
from deltalakedb.exceptions import ConflictError, StorageMissingError, TableFrozenError
from deltalakedb.metastore.database import close_all
from deltalakedb.settings import Config
from deltalakedb.table.maintenance import vacuum as vacuum_module
from support.lake import ids, ids_of
from support.s3 import s3_options

if TYPE_CHECKING:
    from support.places import S3Server

NOW: dict[str, Any] = {"retention_hours": 0, "enforce_retention_duration": False}

numbers = st.integers(0, 9)


class Shared(RuleBasedStateMachine):
    """One table, a model of every version, and stock's own writer on the same log.

    Commits of stock are taken over when the table is next opened here. Where both sides have made the same
    version, the table is frozen and the run goes on with reading alone.
    """

    server: S3Server

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="foreign-"))
        self.bucket = f"lake-{uuid.uuid4().hex[:12]}"
        self.server.client.create_bucket(Bucket=self.bucket)
        self.root = f"s3://{self.bucket}/t"
        self.options = s3_options(self.server.endpoint)
        self.catalog: Catalog
        self.history: list[list[int]] = []
        self.frozen = False

    @initialize(value=numbers, looks=st.sampled_from(["always", "local"]))
    def begin(self, value: int, looks: str) -> None:
        config = Config(
            storage={f"s3://{self.bucket}/": self.options},
            publish={"look_ahead": looks, "look_at_open": True},
        )
        self.catalog = Catalog(f"deltasql://sqlite/{self.folder}/catalog.db", create=True, config=config)
        self.catalog.write("t", ids(value), location=self.root)
        self.catalog.mirror.set_policy("t", "adopt")
        write_deltalake(self.catalog.table("t"), ids(value + 10), mode="overwrite")
        self.history += [[value], [value + 10]]

    def plain(self, version: int | None = None) -> deltalake.DeltaTable:
        return deltalake.DeltaTable(self.root, version=version, storage_options=self.options)

    def stored(self) -> set[str]:
        found = self.server.client.list_objects_v2(Bucket=self.bucket, Prefix="t/").get("Contents", [])
        return {f"s3://{self.bucket}/{item['Key']}" for item in found}

    def is_readable(self, version: int) -> bool:
        return set(self.plain(version).file_uris()) <= self.stored()

    @precondition(lambda self: not self.frozen)
    @rule(value=numbers, mode=st.sampled_from(["append", "overwrite"]), foreign=st.booleans())
    def write(self, value: int, mode: Any, foreign: bool) -> None:
        if foreign:
            deltalake.write_deltalake(self.plain(), ids(value), mode=mode)
        else:
            write_deltalake(self.catalog.table("t"), ids(value), mode=mode)
        kept = self.history[-1] if mode == "append" else []
        self.history.append(sorted([*kept, value]))

    @precondition(lambda self: not self.frozen and len(self.history) > 1)
    @rule(data=st.data(), foreign=st.booleans())
    def restore(self, data: st.DataObject, foreign: bool) -> None:
        version = data.draw(st.integers(0, len(self.history) - 2))
        if not self.is_readable(version):
            with pytest.raises(StorageMissingError):
                self.catalog.table("t").restore(version)
            return
        (self.plain() if foreign else self.catalog.table("t")).restore(version)
        self.history.append(self.history[version])

    @precondition(lambda self: not self.frozen)
    @rule(full=st.booleans())
    def vacuum(self, full: bool) -> None:
        table = self.catalog.table("t")
        listed = table.vacuum(**NOW, full=full)
        before = self.stored()
        assert table.vacuum(**NOW, full=full, dry_run=False) == listed
        gone = {uri for uri in before - self.stored() if "_delta_log" not in uri}
        assert gone == {f"{self.root}/{path}" for path in listed}
        self.history += [self.history[-1]] * (2 if listed else 0)

    @precondition(lambda self: not self.frozen and len(self.history) > 1)
    @rule(data=st.data(), late=st.booleans())
    def foreign_restore_amid_vacuum(self, data: st.DataObject, late: bool) -> None:
        """Stock restores right before, or right after, the vacuum is announced: its files must stay."""
        version = data.draw(st.integers(0, len(self.history) - 2))
        if not self.is_readable(version):
            return
        table = self.catalog.table("t")
        commit = vacuum_module._commit
        announced: list[int] = []

        def beside(*arguments: Any, **options: Any) -> None:
            patched.setattr(vacuum_module, "_commit", commit)
            if late:
                commit(*arguments, **options)
            announced.append(1)
            self.plain().restore(version)
            if not late:
                commit(*arguments, **options)

        before = self.stored()
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(vacuum_module, "_commit", beside)
            try:
                table.vacuum(**NOW, dry_run=False)
            except (TableFrozenError, ConflictError):
                assert not {uri for uri in before - self.stored() if "_delta_log" not in uri}
        if not announced:
            return  # nothing was due
        if late:
            self.history.append(self.history[-1])
        self.history.append(self.history[version])
        self.frozen = self.catalog.describe("t").state == "frozen"
        # a vacuum that took the restore over before it was announced has made its two commits after it
        went_on = self.plain().version() + 1 - len(self.history)
        assert went_on == (0 if late or self.frozen else 2)
        self.history += [self.history[-1]] * went_on

    @precondition(lambda self: self.frozen)
    @rule(full=st.booleans(), dry_run=st.booleans())
    def refused(self, full: bool, dry_run: bool) -> None:
        with pytest.raises(TableFrozenError):
            self.catalog.table("t").vacuum(**NOW, full=full, dry_run=dry_run)

    @invariant()
    def every_live_file_is_there(self) -> None:
        if not self.history:
            return
        plain = self.plain()
        assert set(plain.file_uris()) <= self.stored()
        assert plain.version() == len(self.history) - 1
        assert ids_of(plain) == self.history[-1]
        if not self.frozen:
            table = self.catalog.table("t")
            assert table.version() == plain.version()
            assert ids_of(table) == self.history[-1]

    def teardown(self) -> None:
        close_all()
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.mark.filterwarnings("ignore::deltalakedb.exceptions.DivergedWarning")
def test_no_live_file_is_lost_beside_another_engine(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Shared, "server", s3_server, raising=False)
    run_state_machine_as_test(Shared, settings=settings(max_examples=8, stateful_step_count=8, deadline=None))
