"""Which column of a table has which slot of `dl_files`, as rows of `dl_slots`."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from deltalakedb.exceptions import ProtocolError
from deltalakedb.protocol import slots as slot_rules
from deltalakedb.protocol.actions import Metadata
from deltalakedb.protocol.codec import decode_json, encode_json
from deltalakedb.protocol.schema import StructType, parse_schema
from deltalakedb.protocol.slots import Level, Slot, SlotEncoder, column_types

if TYPE_CHECKING:
    from deltalakedb.metastore.engines.base import Engine, Row, Session
    from deltalakedb.protocol.slot_vectors import SlotVectors

_COLUMNS = ("table_id", "kind", "slot", "field", "encoding", "encoding_arg", "since_version")


def read_slots(session: Session, table_id: int) -> list[Slot]:
    """All slots the table ever had, those given up too."""
    return [_slot(r) for r in session.rows(session.sql("files", "slots"), (table_id,))]


def read_plan_facts(session: Session, table_id: int) -> tuple[list[Slot], list[Level]]:
    """Slots and width levels, in one round trip."""
    slots, levels = [], []
    for tag, *row in session.rows(session.sql("files", "slots and levels"), (table_id, table_id)):
        if tag == 0:
            slots.append(_slot((*row[:6], None)))
        else:
            levels.append(Level(row[1], *row[6:]))
    return slots, levels


def slot_encoder(session: Session, table_id: int, shape: str = "") -> SlotEncoder:
    """An encoder for the table as it is now.

    Args:
        session: Any session that sees the table.
        table_id: The table.
        shape: The id of its slots, where it is known: an encoder for the same is used again.
    """
    if (known := _encoders.get(shape)) is not None:
        return known
    row = session.row(session.sql("snapshots", "live metadata"), (table_id,))
    if row is None:
        return SlotEncoder((), {})
    metadata = Metadata.from_dict(decode_json(row[0]))
    made = SlotEncoder(read_slots(session, table_id), column_types(_schema(metadata)))
    if shape:
        if len(_encoders) >= _KEPT:
            for oldest in list(_encoders)[: max(1, _KEPT // 4)]:
                _encoders.pop(oldest, None)
        _encoders[shape] = made
    return made


def slot_vectors(session: Session, table_id: int) -> SlotVectors:
    """The same for many files at once."""
    from deltalakedb.protocol.slot_vectors import SlotVectors  # Arrow's functions cost time to import

    row = session.row(session.sql("snapshots", "live metadata"), (table_id,))
    if row is None:
        return SlotVectors((), {})
    schema = _schema(Metadata.from_dict(decode_json(row[0])))
    return SlotVectors(read_slots(session, table_id), column_types(schema))


#: encoders by the id of the assignment of slots
_encoders: dict[str, SlotEncoder] = {}
#: the assignment that each table of a catalog had when its head was last held
_shapes: WeakKeyDictionary[Engine, dict[int, str]] = WeakKeyDictionary()
_KEPT = 256


def remember_shape(engine: Engine, table_id: int, shape: str) -> None:
    """Note which assignment of slots a table has; the next commit may try it, and check it."""
    _shapes.setdefault(engine, {})[table_id] = shape


def known_shape(engine: Engine, table_id: int) -> str | None:
    """The assignment that a table had last, where its encoder is at hand."""
    shape = _shapes.get(engine, {}).get(table_id)
    return shape if shape in _encoders else None


def known_encoder(shape: str) -> SlotEncoder | None:
    """The encoder of an assignment, where it is at hand."""
    return _encoders.get(shape)


def assign_slots(session: Session, table_id: int, version: int, metadata: Metadata) -> SlotEncoder:
    """Give slots to the columns of new metadata, keeping those that stay, and return the encoder for them."""
    before = read_slots(session, table_id)
    schema = _schema(metadata)
    after = slot_rules.assign_slots(
        schema, metadata.partition_columns, metadata.configuration, before, version=version
    )
    for slot in before:
        if slot.dropped is None and slot not in after:
            session.run(session.sql("files", "close slot"), (version, table_id, slot.kind, slot.slot))
    fresh = [
        (table_id, s.kind, s.slot, encode_json(list(s.field)), s.encoding, s.arg, s.since)
        for s in after
        if s not in before
    ]
    if fresh:
        session.insert("dl_slots", _COLUMNS, fresh)
    return SlotEncoder(after, column_types(schema))


def _schema(metadata: Metadata) -> StructType:
    """The schema, or none where it cannot be read: such a table is kept whole but never pruned."""
    try:
        return parse_schema(metadata.schema_string)
    except ProtocolError:
        return StructType(())


def _slot(row: Row) -> Slot:
    kind, slot, field, encoding, arg, since, dropped = row
    return Slot(kind, slot, tuple(decode_json(field)), encoding, arg, since, dropped)
