"""How much memory this process holds, and how much a part of an import may take."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

from deltalakedb.config import get_config

_STATUS = Path("/proc/self/status")


def peak_bytes() -> int:
    """The most that this process ever held."""
    if _STATUS.exists():  # getrusage counts what the parent held before it became this program
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def memory_bound() -> int:
    """The memory that a verification keeps to, above what the process has anyway."""
    return get_config().import_.memory_mb * 1024 * 1024 // 2
