"""What a commit's writer says about it, found without decoding the rest of the commit."""

from __future__ import annotations

from deltalakedb.protocol.actions import CommitInfo
from deltalakedb.protocol.codec import decode_line

_BOM = b"\xef\xbb\xbf"


def find_commit_info(data: bytes, *, source: str) -> CommitInfo | None:
    """The commitInfo in a commit's bytes, or None; only lines that may hold it are decoded.

    Raises:
        LogCorruptError: Such a line is torn.
    """
    for number, line in enumerate(data.removeprefix(_BOM).split(b"\n"), start=1):
        if b'"commitInfo"' in line:
            action = decode_line(line, source=source, number=number)
            if isinstance(action, CommitInfo):
                return action
    return None
