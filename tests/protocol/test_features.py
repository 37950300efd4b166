"""Table features: unknown ones of readers stop reading, unknown ones of writers stop writing only."""

from __future__ import annotations

import pytest

from deltalakedb.exceptions import ProtocolError, UnsupportedFeatureError
from deltalakedb.protocol.actions import Protocol
from deltalakedb.protocol.features import (
    READABLE,
    SCAN_DROPS,
    WRITABLE,
    check_readable,
    check_writable,
    reader_features,
    writer_features,
)
from support.golden import golden_tables


def protocol(
    reader: int, writer: int, read: tuple[str, ...] | None = None, write: tuple[str, ...] | None = None
) -> Protocol:
    return Protocol(
        min_reader_version=reader, min_writer_version=writer, reader_features=read, writer_features=write
    )


@pytest.mark.parametrize(
    ("versions", "read", "write"),
    [
        ((1, 1), set(), set()),
        ((1, 2), set(), {"appendOnly", "invariants"}),
        ((1, 3), set(), {"appendOnly", "invariants", "checkConstraints"}),
        (
            (2, 5),
            {"columnMapping"},
            {
                "appendOnly",
                "invariants",
                "checkConstraints",
                "changeDataFeed",
                "generatedColumns",
                "columnMapping",
            },
        ),
    ],
)
def test_old_versions_imply_features(versions: tuple[int, int], read: set[str], write: set[str]) -> None:
    old = protocol(*versions)
    assert (reader_features(old), writer_features(old)) == (read, write)
    check_readable(old)
    check_writable(old)


def test_with_writer_version_7_only_named_features_count() -> None:
    assert writer_features(protocol(1, 7, None, ("appendOnly",))) == {"appendOnly"}


def test_writer_version_6_means_identity_columns_and_is_not_written() -> None:
    check_readable(protocol(1, 6))
    with pytest.raises(UnsupportedFeatureError, match="identityColumns"):
        check_writable(protocol(1, 6))


@pytest.mark.parametrize("feature", sorted(READABLE))
def test_every_known_reader_feature_is_read(feature: str) -> None:
    check_readable(protocol(3, 7, (feature,), (feature,)))


@pytest.mark.parametrize("feature", sorted(WRITABLE - READABLE))
def test_every_known_writer_feature_is_written(feature: str) -> None:
    check_writable(protocol(1, 7, None, (feature,)))


def test_unknown_reader_features_are_named() -> None:
    with pytest.raises(UnsupportedFeatureError, match="catalogManaged, zeta") as caught:
        check_readable(protocol(3, 7, ("zeta", "deletionVectors", "catalogManaged"), ("zeta",)), table="t")
    assert caught.value.table == "t"
    assert caught.value.suggestion
    assert caught.value.context == {"features": ["catalogManaged", "zeta"]}


def test_an_unknown_writer_feature_stops_only_writing() -> None:
    fenced = protocol(1, 7, None, ("appendOnly", "collations"))
    check_readable(fenced)
    with pytest.raises(UnsupportedFeatureError, match="feature collations"):
        check_writable(fenced)
    check_writable(fenced, also={"collations"})


def test_a_feature_that_is_read_but_not_written_stops_writing() -> None:
    widened = protocol(3, 7, ("typeWidening",), ("typeWidening",))
    check_readable(widened)
    with pytest.raises(UnsupportedFeatureError, match="typeWidening"):
        check_writable(widened)


@pytest.mark.parametrize("versions", [(99, 7), (0, 1), (4, 7)])
def test_unknown_reader_versions_are_refused(versions: tuple[int, int]) -> None:
    with pytest.raises(UnsupportedFeatureError, match="reader version"):
        check_readable(protocol(*versions, (), ()))


def test_unknown_writer_versions_are_refused_for_writing_only() -> None:
    future = protocol(1, 8, None, ())
    check_readable(future)
    with pytest.raises(UnsupportedFeatureError, match="writer version 8"):
        check_writable(future)


@pytest.mark.parametrize("broken", [protocol(3, 7, None, ()), protocol(3, 6, (), None), protocol(1, 7)])
def test_protocols_that_contradict_themselves_are_not_written(broken: Protocol) -> None:
    with pytest.raises(ProtocolError, match="not valid"):
        check_writable(broken)


def test_what_a_scan_drops_is_readable() -> None:
    assert SCAN_DROPS <= READABLE
    assert not SCAN_DROPS & WRITABLE


@pytest.mark.golden
def test_all_real_tables_that_can_be_read_pass(golden: object) -> None:
    refused = set()
    for table in golden_tables():
        for version in table.truth.get("versions", {}).values():
            try:
                check_readable(Protocol.from_dict(version["protocol"]))
            except ProtocolError:
                refused.add((table.name, table.truth["expect"]))
    assert {expect for _, expect in refused} <= {"must_fail"}
