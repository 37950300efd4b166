"""Variants that lie in pieces in their files: delta-rs would show only a part of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from deltalakedb.exceptions import UnsupportedFeatureError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from deltalakedb.protocol.actions import Add
    from deltalakedb.protocol.txn_log import Snapshot
    from deltalakedb.table.roots import Root

#: with one of these features a file may hold variants in pieces, and need not
FEATURES: Final = frozenset({"variantShredding", "variantShredding-preview"})


def refuse_shredded(snapshot: Snapshot, adds: Sequence[Add], root: Root) -> None:
    """Refuse files that really hold variants in pieces; others are read like any.

    Raises:
        UnsupportedFeatureError: A file does; the error names the feature.
    """
    named = sorted(FEATURES.intersection(snapshot.protocol.reader_features or ()))
    if not named:
        return
    import pyarrow.parquet as pq

    for add in adds:
        path = root.arrow_path(add.path)
        try:
            schema = pq.read_schema(path, filesystem=root.arrow({path: add.size}))
        except FileNotFoundError:
            continue  # whoever reads it will say so
        if any(_in_pieces(field.type) for field in schema):
            raise UnsupportedFeatureError(
                f"{add.path} holds variants in pieces ({', '.join(named)}), and delta-rs cannot join them",
                version=snapshot.version,
                suggestion="read the table with Spark 4, or rewrite its files there without shredding",
            )


def _in_pieces(kind: pa.DataType) -> bool:
    children = [kind.field(i) for i in range(kind.num_fields)]
    names = {c.name for c in children}
    return {"metadata", "typed_value"} <= names or any(_in_pieces(c.type) for c in children)
