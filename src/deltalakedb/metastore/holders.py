"""Holders of leases: a name that no other process ever has, and whether its process has ended."""

from __future__ import annotations

import os
import socket
import uuid
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Self

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Holder:
    """A process as a lease remembers it.

    Attributes:
        host: Its machine's name.
        pid: Its number there.
        world: Where that number means something: the run of the kernel, and the namespaces of process
            numbers and of time. Empty where the system does not tell.
        started: When it began, in ticks of that kernel; empty where the system does not tell.
        moment: What tells two leases of one process apart.
    """

    host: str
    pid: int
    world: str
    started: str
    moment: str

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}:{self.world}-{self.started}-{self.moment}"

    @classmethod
    def me(cls) -> Self:
        """This process, at this moment."""
        pid = os.getpid()
        return cls(socket.gethostname(), pid, *_self(pid), uuid.uuid4().hex[:8])

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The holder of a lease; None for a name of another form, such as older releases gave."""
        where, _, rest = text.rpartition(":")
        host, _, pid = where.rpartition(":")
        marks = rest.split("-")
        if not pid.isdecimal() or len(marks) != 3:
            return None
        return cls(host, int(pid), *marks)

    @property
    def is_dead(self) -> bool:
        """Whether its process has ended for sure.

        Only a process of the same kernel and the same namespaces can be looked at: a container that shares no
        more than its machine's name with us has numbers of its own. Whatever is not known is alive.
        """
        world, started = _self(os.getpid())
        if not world or (self.host, self.world) != (socket.gethostname(), world) or not self.started:
            return False
        if self.pid == os.getpid():
            return self.started != started
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except OSError:
            pass  # there is one, of another user
        now = _started(str(self.pid))
        # another process may have got its number
        return bool(now) and now != self.started


@lru_cache(maxsize=4)
def _self(pid: int) -> tuple[str, str]:
    """The world and the start of the process that this is; empty where one of them is not known."""
    try:
        if str((_PROC / "self").readlink()) != str(pid):
            return "", ""  # the numbers there are of another namespace than ours
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip().replace("-", "")
        spaces = [(_PROC / "self/ns" / kind).stat().st_ino for kind in ("pid", "time")]
    except OSError:
        return "", ""
    started = _started("self")
    return (f"{boot}.{spaces[0]:x}.{spaces[1]:x}", started) if boot and started else ("", "")


# the same number may mean a child in a namespace of its own
os.register_at_fork(after_in_child=_self.cache_clear)


def _started(pid: str) -> str:
    """When a process began; empty where that is not to be seen."""
    try:
        # its program's name is in brackets and may hold anything
        return (_PROC / pid / "stat").read_bytes().rpartition(b")")[2].split()[19].decode()
    except (OSError, IndexError):
        return ""
