"""Version checksums, ``N.crc``: what a version holds in numbers, so that a changed log shows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from deltalakedb.delta_log.names import checksum_path
from deltalakedb.exceptions import LogCorruptError, ProtocolError, StorageMissingError
from deltalakedb.protocol.actions import DomainMetadata, Metadata, Protocol, Txn
from deltalakedb.protocol.codec import decode_json, encode_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deltalakedb.protocol.replay import Replay
    from deltalakedb.storage import Store

#: what must be there, beside metadata and protocol
_NUMBERS = {"table_size_bytes": "tableSizeBytes", "num_files": "numFiles"}
_OPTIONS = {
    "in_commit_timestamp": "inCommitTimestampOpt",
    "num_deleted_records": "numDeletedRecordsOpt",
    "num_deletion_vectors": "numDeletionVectorsOpt",
}
_ADVICE = "delete the checksum: it is optional, and the log is right without it"


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionChecksum:
    """What a version checksum tells; lists are None where it does not tell.

    Attributes:
        table_size_bytes: The bytes of all live files.
        num_files: The live files.
        metadata: The table's metadata.
        protocol: The table's protocol.
        txn_id: Who made the commit.
        in_commit_timestamp: The commit's own time, where the table keeps it.
        set_transactions: The application transactions.
        domain_metadata: The metadata domains, without removed ones.
        num_deleted_records: The rows that deletion vectors hide.
        num_deletion_vectors: The live files that have a deletion vector.
        extra: Fields that nobody here knows.
    """

    table_size_bytes: int
    num_files: int
    metadata: Metadata
    protocol: Protocol
    txn_id: str | None = None
    in_commit_timestamp: int | None = None
    set_transactions: tuple[Txn, ...] | None = None
    domain_metadata: tuple[DomainMetadata, ...] | None = None
    num_deleted_records: int | None = None
    num_deletion_vectors: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls, state: Replay, *, txn_id: str | None = None, in_commit_timestamp: int | None = None
    ) -> VersionChecksum:
        """The checksum of a replayed state.

        Raises:
            ProtocolError: The state lacks protocol or metadata.
        """
        protocol, metadata = state.require()
        vectors = [a.deletion_vector for a in state.files.values() if a.deletion_vector is not None]
        return cls(
            table_size_bytes=sum(add.size for add in state.files.values()),
            num_files=len(state.files),
            metadata=metadata,
            protocol=protocol,
            txn_id=txn_id,
            in_commit_timestamp=in_commit_timestamp,
            set_transactions=tuple(state.txns.values()),
            domain_metadata=tuple(state.domains.values()),
            num_deleted_records=sum(vector.cardinality for vector in vectors),
            num_deletion_vectors=len(vectors),
        )

    def to_dict(self) -> dict[str, Any]:
        """The checksum as its file has it."""
        out: dict[str, Any] = {} if self.txn_id is None else {"txnId": self.txn_id}
        out |= {name: getattr(self, attr) for attr, name in _NUMBERS.items()}
        out |= {"numMetadata": 1, "numProtocol": 1}
        out |= {n: v for a, n in _OPTIONS.items() if (v := getattr(self, a)) is not None}
        if self.set_transactions is not None:
            out["setTransactions"] = [txn.to_dict() for txn in self.set_transactions]
        if self.domain_metadata is not None:
            out["domainMetadata"] = [domain.to_dict() for domain in self.domain_metadata]
        out |= {"metadata": self.metadata.to_dict(), "protocol": self.protocol.to_dict()}
        return {**out, **self.extra}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> VersionChecksum:
        """The checksum in a file's JSON object.

        Raises:
            ProtocolError: A required field is missing, or a field has the wrong type.
        """
        rest = dict(data)
        for name in ("numMetadata", "numProtocol"):
            if rest.pop(name, None) != 1:
                raise ProtocolError(f"{name} of a version checksum must be 1")
        known: dict[str, Any] = {}
        for attr, name in (_NUMBERS | _OPTIONS).items():
            value = rest.pop(name, None)
            if type(value) is int or (value is None and attr in _OPTIONS):
                known[attr] = value
            else:
                raise ProtocolError(f"{name} of a version checksum must be a whole number")
        txn_id = rest.pop("txnId", None)
        return cls(
            **known,
            metadata=Metadata.from_dict(_objects([rest.pop("metadata", None)], "metadata")[0]),
            protocol=Protocol.from_dict(_objects([rest.pop("protocol", None)], "protocol")[0]),
            txn_id=txn_id if isinstance(txn_id, str) else None,
            set_transactions=_each(rest.pop("setTransactions", None), Txn, "setTransactions"),
            domain_metadata=_each(rest.pop("domainMetadata", None), DomainMetadata, "domainMetadata"),
            extra=rest,
        )

    def differences(self, other: VersionChecksum) -> tuple[str, ...]:
        """The fields, by their names in the file, in which both tell something and tell it differently."""
        found = []
        for name in (*_NUMBERS, *_OPTIONS, "metadata", "protocol"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine is not None and theirs is not None and mine != theirs:
                found.append((_NUMBERS | _OPTIONS).get(name, name))
        for attr, name, key in (
            ("set_transactions", "setTransactions", "app_id"),
            ("domain_metadata", "domainMetadata", "domain"),
        ):
            mine, theirs = getattr(self, attr), getattr(other, attr)
            if mine is None or theirs is None:
                continue
            if {getattr(x, key): x for x in mine} != {getattr(x, key): x for x in theirs}:
                found.append(name)
        return tuple(found)


def write_checksum(store: Store, version: int, checksum: VersionChecksum) -> bool:
    """Write a version's checksum, after its commit; False where there is one already, which stays."""
    return store.put_new(checksum_path(version), encode_json(checksum.to_dict()).encode())


def read_checksum(store: Store, version: int) -> VersionChecksum | None:
    """A version's checksum, or None where it has none.

    Raises:
        LogCorruptError: The file is no checksum.
    """
    path = checksum_path(version)
    try:
        data = decode_json(store.get(path))
        if not isinstance(data, dict):
            raise ProtocolError("a version checksum must be an object")
        return VersionChecksum.from_dict(data)
    except StorageMissingError:
        return None
    except (LogCorruptError, ProtocolError) as e:
        raise LogCorruptError(f"{path}: {e.message}", version=version, suggestion=_ADVICE) from e


def _objects(values: Any, name: str) -> list[Mapping[str, Any]]:
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise ProtocolError(f"{name} of a version checksum is missing or no object")
    return values


def _each(values: Any, kind: Any, name: str) -> Any:
    return None if values is None else tuple(kind.from_dict(value) for value in _objects(values, name))
