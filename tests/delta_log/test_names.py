"""Names of log files, there and back."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltalakedb.delta_log import names
from deltalakedb.delta_log.names import LogName, parse_name
from support.checkpoints import part_path

versions = st.integers(0, 2**63 - 1)


def parsed(path: str) -> LogName | None:
    folder, _, name = path.rpartition("/")
    assert folder == "_delta_log"
    return parse_name(name)


@given(version=versions, more=st.integers(0, 10**6), parts=st.integers(1, 10**6))
def test_every_name_is_read_back(version: int, more: int, parts: int) -> None:
    assert parsed(names.commit_path(version)) == LogName("commit", version)
    assert parsed(names.checksum_path(version)) == LogName("checksum", version)
    assert parsed(names.checkpoint_path(version)) == LogName("checkpoint", version)
    part = 1 + more % parts
    assert parsed(part_path(version, part, parts)) == LogName("part", version, part=part, parts=parts)
    for kind in ("json", "parquet"):
        assert parsed(
            names.v2_checkpoint_path(version, str(uuid.UUID(int=more))).replace("parquet", kind)
        ) == LogName("v2", version)
    end = min(version + more, 2**63 - 1)
    assert parsed(names.compacted_path(version, end)) == LogName("compacted", version, end=end)


def test_names_sort_like_versions() -> None:
    assert names.commit_path(9) < names.commit_path(10) < names.commit_path(10**15)


@pytest.mark.parametrize(
    "name",
    [
        "0.json",
        "0000000000000000000.json",
        "000000000000000000001.json",
        "00000000000000000001.json.tmp",
        ".00000000000000000001.json.crc",
        "_last_checkpoint",
        "00000000000000000001.checkpoint",
        "00000000000000000001.checkpoint.parquet#1",
        "00000000000000000001.checkpoint.0000000000.0000000002.parquet",
        "00000000000000000001.checkpoint.0000000003.0000000002.parquet",
        "00000000000000000005.00000000000000000003.compacted.json",
        "99999999999999999999.json",
        "0000000000000000000\u0661.json",
        "00000000000000000001.a5cba53f-76ca-42b1-8b9a-ba81cce2d1dd.json",
    ],
)
def test_other_files_are_none_of_the_log(name: str) -> None:
    assert parse_name(name) is None
