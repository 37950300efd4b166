"""Leases: one holder at a time by the database's clock; whoever lost one changes nothing."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from deltalakedb import Catalog
from deltalakedb.exceptions import CatalogBusyError, DeltaSqlError
from deltalakedb.metastore import imports, leases
from deltalakedb.mirror.checkpointer import checkpoint_lease
from support.mirrors import append
from support.processes import Child, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.leases import Lease

AFTER_PUT = "checkpoint.after_put=stop"
#: a paused process cannot let go of DuckDB's file, so it must have let go before
NIMBLE = {"DELTASQL_DUCKDB__IDLE_RELEASE_S": "0"}


def held(database: Database, lease: Lease) -> bool:
    with database.read() as session:
        return leases.still_held(session, lease)


def expire(database: Database, name: str) -> None:
    """Let a lease run out, as if its time had passed."""
    with database.write() as session:
        session.run("UPDATE dl_leases SET expires_at = 1 WHERE name = ?", (name,))


def test_a_lease_has_one_holder_at_a_time(database: Database) -> None:
    mine = leases.acquire(database, "x")
    assert mine is not None
    assert leases.acquire(database, "x") is None
    assert leases.acquire(database, "y") is not None, "another name is another right"
    leases.release(database, mine)
    theirs = leases.acquire(database, "x")
    assert theirs is not None
    assert theirs.token > mine.token
    assert (held(database, mine), held(database, theirs)) == (False, True)


def test_an_expired_lease_is_free_and_its_holder_has_lost_it(database: Database) -> None:
    late = leases.acquire(database, "x", ttl_ms=0)
    assert late is not None
    assert not held(database, late)
    next_ = leases.acquire(database, "x")
    assert next_ is not None
    assert next_.token == late.token + 1
    assert leases.renew(database, late) is None
    leases.release(database, late)
    assert held(database, next_), "what the late one gives back is not its own any more"


def test_a_lease_runs_by_the_databases_clock(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = leases.acquire(database, "x", ttl_ms=60_000)
    assert lease is not None
    with database.read() as session:
        now = session.now_ms()
    assert now < lease.expires_at <= now + 60_000


def test_renewing_holds_it_for_longer_under_the_same_token(database: Database) -> None:
    lease = leases.acquire(database, "x", ttl_ms=1_000)
    assert lease is not None
    longer = leases.renew(database, lease, ttl_ms=600_000)
    assert longer is not None
    assert (longer.token, longer.holder) == (lease.token, lease.holder)
    assert longer.expires_at > lease.expires_at
    assert held(database, longer)


def test_work_under_a_lease_gives_it_back_also_after_an_error(database: Database) -> None:
    def broken() -> None:
        with leases.leased(database, "x", work="x", table="t"):
            with pytest.raises(CatalogBusyError) as caught, leases.leased(database, "x", work="x", table="t"):
                pass
            assert caught.value.transient
            raise DeltaSqlError("trouble")

    with pytest.raises(DeltaSqlError, match="trouble"):
        broken()
    with leases.leased(database, "x", work="x", table="t"):
        pass


def test_a_lease_is_renewed_for_as_long_as_the_work_takes(database: Database) -> None:
    def deadline() -> int:
        with database.read() as session:
            row = session.row(database.sql("leases", "one"), ("x",))
        assert row is not None
        return int(row[2])

    with leases.leased(database, "x", work="x", table="t", ttl_ms=900) as lease:
        until(lambda: deadline() > lease.expires_at)
        assert held(database, lease)
        expire(database, "x")
        until(lambda: not any(t.name == "deltasql-lease" for t in threading.enumerate()))
        assert not held(database, lease), "what was lost is not taken back"
    assert deadline() <= 1


def test_a_lease_of_a_crashed_process_can_be_taken_over(database: Database) -> None:
    old = leases.acquire(database, "x")
    assert old is not None
    assert old.holder.startswith(f"{socket.gethostname()}:{os.getpid()}:")
    with pytest.raises(CatalogBusyError) as caught, leases.leased(database, "x", work="the work"):
        pass
    assert caught.value.message == f"the work is already in progress on {socket.gethostname()}:{os.getpid()}"
    assert "--take-over" in (caught.value.suggestion or "")
    with leases.taking_over(), leases.leased(database, "x", work="the work") as mine:
        assert (mine.token, held(database, mine), held(database, old)) == (old.token + 1, True, False)
        assert mine.holder != old.holder
        assert leases.acquire(database, "x") is None, "this process is at work under it"
        late = leases._acquire(database, "x", "a:1:b", 1000, over=old.token)
        assert late is None, "a rival that saw the crashed one comes late"
        assert held(database, mine)
    assert leases.holding(database, "x") is None
    rival = leases.acquire(database, "x")
    assert rival is not None
    assert leases.acquire(database, "x") is None, "taking over has ended"


def rename(database: Database, old: str, new: str) -> None:
    with database.write() as session:
        session.run(f"ALTER TABLE {old} RENAME TO {new}")


def test_a_process_takes_a_lease_again_that_it_could_not_release(
    catalog: Catalog, database: Database
) -> None:
    append(catalog, 1)
    table = catalog.describe("t")
    with checkpoint_lease(database, table) as lost:
        rename(database, "dl_leases", "away")  # as if the server were gone
    rename(database, "away", "dl_leases")
    assert held(database, lost), "the database knows nothing of it"
    assert catalog.mirror.checkpoint("t").version == 1
    with checkpoint_lease(database, table), pytest.raises(CatalogBusyError):
        catalog.mirror.checkpoint("t")


def test_an_interrupt_while_a_lease_is_released_blocks_nobody_here(
    catalog: Catalog, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(leases, "release", interrupted)
        with pytest.raises(KeyboardInterrupt):
            catalog.mirror.checkpoint("t")
    assert catalog.mirror.checkpoint("t").version == 0


def test_an_interrupt_while_a_lease_is_taken_blocks_nobody_here(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        # the answer of the commit is lost to a Ctrl-C
        patch.setattr(type(database), "write", answered_by_an_interrupt(type(database).write))
        with pytest.raises(KeyboardInterrupt):
            leases.acquire(database, "x")
    lost = leases.holding(database, "x")
    assert lost is not None
    assert lost.is_abandoned
    assert leases.acquire(database, "x") is not None
    assert leases.acquire(database, "x") is None


def answered_by_an_interrupt(write: Any) -> Any:
    @contextmanager
    def committed(*arguments: Any, **options: Any) -> Iterator[Any]:
        with write(*arguments, **options) as session:
            yield session
        raise KeyboardInterrupt

    return committed


def test_of_many_contenders_one_wins(database: Database) -> None:
    won: list[Lease] = []
    start = threading.Barrier(8)

    def contend() -> None:
        start.wait()
        lease = leases.acquire(database, "x")
        if lease is not None:
            won.append(lease)

    threads = [threading.Thread(target=contend) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1


def test_a_lease_that_a_transaction_extended_is_not_taken_over_before_its_end(database: Database) -> None:
    mine = leases.acquire(database, "x")
    assert mine is not None
    taken: list[Lease | None] = []

    def take() -> None:
        with leases.taking_over():
            taken.append(leases.acquire(database, "x"))

    thread = threading.Thread(target=take)
    with database.write() as session:
        imports.require(session, mine)
        thread.start()
        thread.join(0.5)
        assert not taken, "the batch that relies on the lease is not committed yet"
    thread.join()
    assert taken[0] is not None
    assert taken[0].token > mine.token
    with pytest.raises(CatalogBusyError, match="the lease was lost"), database.write() as session:
        imports.require(session, mine)


def test_a_lease_that_is_lost_between_the_check_and_the_extension_is_lost(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = leases.acquire(database, "x", ttl_ms=0)
    theirs = leases.acquire(database, "x")
    assert mine is not None
    assert theirs is not None
    monkeypatch.setattr(leases, "still_held", lambda *_: True)
    assert leases.renew(database, mine) is None
    with pytest.raises(CatalogBusyError, match="the lease was lost"), database.write() as session:
        imports.require(session, mine)


def write_checkpoint(uri: str) -> int:
    return Catalog(uri).mirror.checkpoint("t").version


def test_a_checkpointer_that_was_paused_past_its_lease_moves_no_hint(
    catalog_uri: str, catalog: Catalog, root: Path, tmp_path: Path
) -> None:
    append(catalog, 1, 2)
    database = catalog.log("t").database
    name = f"checkpoint:{catalog.describe('t').table_id}"
    catalog.close()
    paused = Child(
        write_checkpoint, catalog_uri, folder=tmp_path, points="checkpoint.after_put=stop", **NIMBLE
    )
    paused.pause()
    with pytest.raises(CatalogBusyError):
        catalog.mirror.checkpoint("t")
    expire(database, name)
    successor = leases.acquire(database, name)
    assert successor is not None
    catalog.close()
    paused.resume()
    assert paused.result() == 2
    assert not (root / "_delta_log" / "_last_checkpoint").exists()
    assert catalog.mirror.status()[0].checkpoint_version == -1
    assert held(database, successor), "the late one gave back what was not its own"
    leases.release(database, successor)
    assert catalog.mirror.checkpoint("t").version == 2
    assert (root / "_delta_log" / "_last_checkpoint").exists()
    assert catalog.mirror.verify("t").ok


def test_a_checkpointer_in_time_does_move_the_hint(
    catalog_uri: str, catalog: Catalog, root: Path, tmp_path: Path
) -> None:
    append(catalog, 1)
    catalog.close()
    paused = Child(
        write_checkpoint, catalog_uri, folder=tmp_path, points="checkpoint.after_put=stop", **NIMBLE
    )
    paused.pause()
    paused.resume()
    assert paused.result() == 1
    assert (root / "_delta_log" / "_last_checkpoint").exists()
    assert catalog.mirror.status()[0].checkpoint_version == 1
