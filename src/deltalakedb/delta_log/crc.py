"""Version checksums, ``N.crc``: the table's state in numbers, by which readers check their replay."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from deltalakedb.delta_log.names import checksum_path
from deltalakedb.protocol.codec import encode_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deltalakedb.protocol.actions import DomainMetadata, Metadata, Protocol, Txn
    from deltalakedb.protocol.replay import Replay
    from deltalakedb.storage import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionChecksum:
    """The content of a version checksum; what is None is left out.

    Attributes:
        table_size_bytes: The bytes of all live files.
        num_files: The live files.
        metadata: The table's metadata.
        protocol: The table's protocol.
        txn_id: The transaction that made the commit.
        in_commit_timestamp: The commit's own time, if the table has it.
        set_transactions: The application transactions.
        domain_metadata: The metadata domains, without removed ones.
        num_deleted_records: The rows that deletion vectors hide.
        num_deletion_vectors: The live files that have a deletion vector.
        extra: Other fields.
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
        out: dict[str, Any] = {
            "txnId": self.txn_id,
            "tableSizeBytes": self.table_size_bytes,
            "numFiles": self.num_files,
            "numMetadata": 1,
            "numProtocol": 1,
            "inCommitTimestampOpt": self.in_commit_timestamp,
            "numDeletedRecordsOpt": self.num_deleted_records,
            "numDeletionVectorsOpt": self.num_deletion_vectors,
            "metadata": self.metadata.to_dict(),
            "protocol": self.protocol.to_dict(),
            **self.extra,
        }
        if self.set_transactions is not None:
            out["setTransactions"] = [txn.to_dict() for txn in self.set_transactions]
        if self.domain_metadata is not None:
            out["domainMetadata"] = [domain.to_dict() for domain in self.domain_metadata]
        return {name: value for name, value in out.items() if value is not None}


def write_checksum(store: Store, version: int, checksum: VersionChecksum) -> bool:
    """Write a version's checksum, after its commit; False if there is one already, which stays."""
    return store.put_new(checksum_path(version), encode_json(checksum.to_dict()).encode())
