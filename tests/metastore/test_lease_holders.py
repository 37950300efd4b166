"""Who holds a lease: a dead process is known as dead, and nobody who may live ever is."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import replace

import pytest

from deltalakedb.metastore import holders
from deltalakedb.metastore.holders import Holder


def test_a_name_is_read_back_and_no_two_are_the_same() -> None:
    me = Holder.me()
    assert Holder.parse(str(me)) == me
    assert (me.host, me.pid) == (socket.gethostname(), os.getpid())
    assert Holder.me() != me
    assert (Holder.me().world, Holder.me().started) == (me.world, me.started)
    assert str(me).startswith(f"{me.host}:{me.pid}:")


def test_a_process_is_dead_when_it_ended_and_not_before() -> None:
    me = Holder.me()
    assert me.world, "this system tells where a number means something"
    assert not me.is_dead
    code = "from deltalakedb.metastore.holders import Holder; print(Holder.me(), flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        other = Holder.parse(child.stdout.readline().strip())
        assert other is not None
        assert (other.pid, other.world) == (child.pid, me.world)
        assert not other.is_dead
        # its number was another's before
        assert replace(other, started="1").is_dead
        child.kill()
        child.wait()
    assert other.is_dead


def test_our_own_number_in_an_earlier_life_is_dead() -> None:
    assert replace(Holder.me(), started="1").is_dead


@pytest.mark.parametrize(
    "text", ["elsewhere:7:abc", f"{socket.gethostname()}:999999999:abcdef01", "nonsense", "a:b:c-d-e"]
)
def test_a_name_of_another_form_is_not_dead(text: str) -> None:
    holder = Holder.parse(text)
    assert holder is None


def test_what_cannot_be_known_is_alive(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    gone = replace(Holder.me(), pid=999_999_999)
    assert gone.is_dead
    boot, *spaces = gone.world.split(".")
    for unknown in (
        replace(gone, host="elsewhere"),
        replace(gone, world=".".join(["0" * 32, *spaces])),  # the same name, another machine or run
        replace(gone, world=f"{boot}.1.{spaces[1]}"),  # the same machine, another container
        replace(gone, world=""),
        replace(gone, started=""),
    ):
        assert not unknown.is_dead, unknown
    monkeypatch.setattr(holders, "_PROC", tmp_path)
    holders._self.cache_clear()
    try:
        assert (Holder.me().world, Holder.me().started) == ("", "")
        assert not gone.is_dead
        assert not replace(gone, world="", started="").is_dead
    finally:
        holders._self.cache_clear()
