"""Properties as values: what they may be, and which features they stand for."""

from __future__ import annotations

import pytest

from deltalakedb.exceptions import InvalidArgumentError, UnsupportedFeatureError
from deltalakedb.protocol.actions import Protocol
from deltalakedb.protocol.features import check_writable, features_named, with_features
from deltalakedb.protocol.properties import check_properties, duration_ms

BAD = {
    "delta.appendOnly": ["yes", "1", ""],
    "delta.checkpoint.writeStatsAsJson": ["x"],
    "delta.checkpointInterval": ["abc", "0", "-3", "1.5", "٣"],
    "delta.checkpointPolicy": ["v3", "V 2"],
    "delta.columnMapping.mode": ["names"],
    "delta.dataSkippingNumIndexedCols": ["-2", "all"],
    "delta.deletedFileRetentionDuration": ["forever", "interval", "interval 3 moons"],
    "delta.enableExpiredLogCleanup": ["maybe"],
    "delta.feature.v2Checkpoint": ["true"],
    "delta.isolationLevel": ["serializable"],
    "delta.logRetentionDuration": ["foo", "7"],
    "delta.minWriterVersion": ["8"],
    "delta.targetFileSize": ["100mb", "0"],
}
GOOD = {
    "delta.appendOnly": ["true", "FALSE", None],
    "delta.checkpointInterval": ["1", "1000"],
    "delta.checkpointPolicy": ["classic", "v2"],
    "delta.dataSkippingNumIndexedCols": ["-1", "0", "32"],
    "delta.feature.v2Checkpoint": ["supported", "enabled"],
    "delta.isolationLevel": ["Serializable", "WriteSerializable"],
    "delta.logRetentionDuration": ["interval 30 days", "2 weeks 1 hour", "interval 0 seconds"],
    "delta.unknownToEverybody": ["anything"],
    "owner": [""],
}


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, values in BAD.items() for v in values])
def test_a_value_that_delta_does_not_allow_is_named_with_what_is(name: str, value: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        check_properties({"owner": "me", name: value}, table="t")
    assert name in caught.value.message
    assert repr(value) in caught.value.message
    assert (caught.value.suggestion or "").startswith("use ")


def test_values_that_delta_allows_pass() -> None:
    for name, values in GOOD.items():
        for value in values:
            check_properties({name: value})
    assert duration_ms("interval 1 week 2 hours") == 7 * 86_400_000 + 2 * 3_600_000


def test_features_come_from_their_names_and_from_the_checkpoint_policy() -> None:
    given = {"delta.feature.appendOnly": "supported", "delta.checkpointPolicy": "v2", "owner": "me"}
    assert features_named(given) == ("appendOnly", "v2Checkpoint")
    assert features_named({"delta.checkpointPolicy": "classic"}) == ()
    assert features_named({"delta.feature.rowTracking": "supported"}, also=("rowTracking",)) == (
        "rowTracking",
    )
    with pytest.raises(InvalidArgumentError, match="nonsense"):
        features_named({"delta.feature.nonsense": "supported"})
    with pytest.raises(UnsupportedFeatureError, match="typeWidening") as caught:
        features_named({"delta.feature.typeWidening": "supported"})
    assert "read" in (caught.value.suggestion or "")


def test_a_protocol_is_raised_only_as_far_as_a_feature_asks() -> None:
    old = Protocol(min_reader_version=1, min_writer_version=2)
    assert with_features(old, ["appendOnly"]) == old, "version 2 implies it"
    writer = with_features(old, ["rowTracking"])
    assert (writer.min_reader_version, writer.min_writer_version) == (1, 7)
    assert writer.writer_features == ("appendOnly", "invariants", "domainMetadata", "rowTracking")
    assert writer.reader_features is None
    both = with_features(writer, ["v2Checkpoint"])
    assert (both.min_reader_version, both.reader_features) == (3, ("v2Checkpoint",))
    assert with_features(both, ["v2Checkpoint", "rowTracking"]) == both
    mapped = with_features(Protocol(min_reader_version=2, min_writer_version=5), ["deletionVectors"])
    assert mapped.reader_features == ("columnMapping", "deletionVectors")
    check_writable(mapped)
