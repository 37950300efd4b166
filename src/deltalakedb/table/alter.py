"""ALTER TABLE: delta-rs decides what becomes of metadata and protocol, on a scratch table without files."""

from __future__ import annotations

import difflib
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import deltalake

from deltalakedb.exceptions import InvalidArgumentError, OperationError, UnsupportedOperationError
from deltalakedb.protocol import properties
from deltalakedb.protocol.actions import Action, Metadata, Protocol
from deltalakedb.protocol.features import (
    COMMITTER_FEATURES,
    MAX_WRITER_VERSION,
    check_writable,
    features_named,
    used_features,
    with_features,
    writer_features,
)
from deltalakedb.protocol.json_text import encode_json
from deltalakedb.protocol.read_set import EVERYTHING, NOTHING
from deltalakedb.protocol.row_tracking import with_row_columns
from deltalakedb.protocol.schema import parse_schema
from deltalakedb.table.handle import commit_info, require_handle
from deltalakedb.table.scratch import Call, ErrorContext, OpenScratchTable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from deltalakedb.protocol.txn_log import Snapshot
    from deltalakedb.table.handle import TableHandle

#: properties that are fulfilled here and not by delta-rs, with the features that they need
PROPERTIES: Final[Mapping[str, tuple[str, ...]]] = {
    properties.IN_COMMIT_TIMESTAMPS: ("inCommitTimestamp",),
    properties.ROW_TRACKING: ("domainMetadata", "rowTracking"),
}
_HINT: Final = "properties of your own need raise_if_not_exists=False"


def alter(
    table: TableHandle,
    call: Call,
    *,
    validate: bool = False,
    about: ErrorContext | None = None,
    features: Sequence[str] = (),
    **instead: Any,
) -> None:
    """Change metadata or protocol; to ``validate`` is to let delta-rs check every row, as for constraints."""
    before = table.snapshot
    adds, reads = (table.source.adds(), EVERYTHING) if validate else ((), NOTHING)
    with OpenScratchTable(table, before, adds, reads) as scratch:
        scratch.run(partial(call.on, **instead), about)
        commits = scratch.read_commits()
        steps = tuple(tuple(_completed(step, before, features)) for step in commits.steps)
        scratch.submit(call.hooks, replace(commits, steps=steps))


def set_properties(table: TableHandle, call: Call) -> None:
    wanted, must_exist = call["properties"], call["raise_if_not_exists"]
    properties.check_properties(wanted, table=table.name)
    features = features_named(wanted, also=COMMITTER_FEATURES, table=table.name)
    wanted = {k: v for k, v in properties.without_feature_names(wanted).items() if v is not None}
    ours = {k: v for k, v in wanted.items() if k in PROPERTIES}
    others = {k: v for k, v in wanted.items() if k not in PROPERTIES}
    tracks = properties.is_on(table.snapshot.metadata, properties.ROW_TRACKING)
    if ours.get(properties.ROW_TRACKING, "").lower() == "true" and not tracks:
        _refuse_rows_without_ids(table)
    about = ErrorContext.at(table)._replace(
        hint=_HINT if must_exist and properties.unknown_names(others) else None
    )
    if ours and others and must_exist:
        # delta-rs would refuse ours as unknown, so it checks only the others
        with OpenScratchTable(table, table.snapshot, (), NOTHING) as scratch:
            scratch.run(partial(call.on, properties=others), about)
    known = must_exist and not ours
    alter(table, call, about=about, features=features, properties=wanted, raise_if_not_exists=known)


def alter_all(
    table: deltalake.DeltaTable,
    *,
    add_columns: Any,
    column_comments: Mapping[str, str],
    drop_not_null: Sequence[str],
    add_constraints: Mapping[str, str],
    drop_constraints: Sequence[str],
    set_properties: Mapping[str, str],
    unset_properties: Sequence[str],
    description: str | None,
) -> None:
    """Make all changes to a table of a transaction, which makes one version of them."""
    handle = require_handle(table)
    deltas, own = split_properties(set_properties)
    if add_columns is not None:
        table.alter.add_columns(new_columns(handle, add_columns))
    check_columns(handle, [*column_comments, *drop_not_null])
    check_constraints(handle, drop_constraints)
    refuse_constraints(handle, deltas)
    for column, comment in column_comments.items():
        table.alter.set_column_metadata(column, {"comment": comment})
    for column in drop_not_null:
        table.alter.drop_column_not_null(column)
    for constraint in drop_constraints:
        table.alter.drop_constraint(constraint)
    if add_constraints:
        table.alter.add_constraint(dict(add_constraints))
    if deltas:
        with known_properties(handle.name, deltas):
            table.alter.set_table_properties(deltas)
    if own:
        table.alter.set_table_properties(own, raise_if_not_exists=False)
    if unset_properties:
        remove_properties(handle, unset_properties)
    if description is not None:
        table.alter.set_table_description(description)


def new_columns(table: TableHandle, schema: Any) -> list[deltalake.Field]:
    """The columns of a Delta schema, or of what exports an Arrow schema, that can be added to a table."""
    found = schema if isinstance(schema, deltalake.Schema) else deltalake.Schema.from_arrow(schema)
    there = {name.lower() for name in parse_schema(table.snapshot.metadata.schema_string).names}
    for column in found.fields:
        if column.name.lower() in there:
            raise InvalidArgumentError(
                f"the table already has a column {column.name}",
                table=table.name,
                suggestion="choose another name; the type of a column cannot be changed",
            )
        if not column.nullable:
            raise InvalidArgumentError(
                f"the new column {column.name} cannot be NOT NULL: existing rows have no value for it",
                table=table.name,
                suggestion="add it as nullable",
            )
    return list(found.fields)


def check_columns(table: TableHandle, names: Sequence[str]) -> None:
    """InvalidArgumentError for columns that a table does not have."""
    known = parse_schema(table.snapshot.metadata.schema_string).names
    for name in names:
        if name.partition(".")[0] not in known:
            raise _missing(table, "column", name, known, f"its columns are {', '.join(known)}")


def check_constraints(table: TableHandle, names: Sequence[str]) -> None:
    """InvalidArgumentError for constraints that a table does not have."""
    keys = table.snapshot.metadata.configuration
    prefix = properties.CONSTRAINT_PREFIX
    known = [key.removeprefix(prefix) for key in keys if key.startswith(prefix)]
    for name in names:
        if name.lower() not in {k.lower() for k in known}:
            has = f"its constraints are {', '.join(known)}" if known else "it has no constraints"
            raise _missing(table, "constraint", name, known, has)


def refuse_constraints(table: TableHandle, wanted: Mapping[str, str]) -> None:
    """InvalidArgumentError for a constraint among properties to set."""
    for name in wanted:
        if name.startswith(properties.CONSTRAINT_PREFIX):
            raise InvalidArgumentError(
                f"{name} is a constraint, which must be checked against all rows",
                table=table.name,
                suggestion="add it with Catalog.alter_table(name, add_constraints=…)",
                command=f"add it with `deltasql alter {table.name} --add-constraint NAME=SQL`",
            )


def split_properties(given: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Properties of Delta, and those of the caller's own."""
    deltas = {name: value for name, value in given.items() if name.startswith("delta.")}
    return deltas, {name: value for name, value in given.items() if name not in deltas}


@contextmanager
def known_properties(table: str | None, wanted: Mapping[str, str | None]) -> Iterator[None]:
    """Set properties of Delta; InvalidArgumentError for one that is unknown."""
    try:
        yield
    except OperationError as error:
        unknown = properties.unknown_names(properties.without_feature_names(wanted))
        if not unknown:
            raise
        hint = _near(unknown[0], properties.KNOWN, "names of your own must not begin with delta.")
        what = f"there is no property {unknown[0]}"
        raise InvalidArgumentError(what, table=table, suggestion=hint) from error


def _missing(
    table: TableHandle, what: str, name: str, known: Iterable[str], otherwise: str
) -> InvalidArgumentError:
    hint = _near(name, known, otherwise)
    return InvalidArgumentError(f"the table has no {what} {name}", table=table.name, suggestion=hint)


def _near(name: str, known: Iterable[str], otherwise: str) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {near[0]}?" if near else otherwise


#: properties that describe how the table's files are written, not how they shall be
_FIXED = ("delta.columnMapping.", "delta.rowTracking.", "delta.inCommitTimestampEnablement")


def remove_properties(table: TableHandle, names: Sequence[str]) -> None:
    """Remove properties from a table's metadata; delta-rs cannot do that."""
    before = table.snapshot
    check_writable(before.protocol, table=table.name, also=COMMITTER_FEATURES)
    known = before.metadata.configuration
    for name in names:
        if name not in known:
            raise _missing(table, "property", name, known, "`deltasql show` lists the properties")
        if name.startswith(properties.CONSTRAINT_PREFIX):
            raise InvalidArgumentError(
                f"{name} is a constraint",
                table=table.name,
                suggestion="drop it with alter.drop_constraint",
                command=f"drop it with `deltasql alter {table.name} --drop-constraint`",
            )
        if name.startswith(_FIXED):
            raise UnsupportedOperationError(
                f"{name} cannot be removed: the table's files depend on it", table=table.name
            )
    rest = {name: value for name, value in known.items() if name not in names}
    parameters = {"properties": encode_json(list(names))}
    actions = [
        *commit_info("UNSET TBLPROPERTIES", parameters, {}, None),
        replace(before.metadata, configuration=rest),
    ]
    table.submit(before, [actions], NOTHING)


def _completed(actions: Sequence[Action], before: Snapshot, features: Sequence[str]) -> list[Action]:
    """Actions with the features that the metadata needs and delta-rs does not add."""
    actions = [
        with_row_columns(a) if isinstance(a, Metadata) and properties.is_on(a, properties.ROW_TRACKING) else a
        for a in actions
    ]
    metadata = next((a for a in actions if isinstance(a, Metadata)), before.metadata)
    given = next((a for a in actions if isinstance(a, Protocol)), None)
    protocol = given or before.protocol
    needed = {f for name, named in PROPERTIES.items() if properties.is_on(metadata, name) for f in named}
    if protocol.min_writer_version >= MAX_WRITER_VERSION > before.protocol.min_writer_version:
        # once features are named, the version no longer implies them
        needed |= used_features(metadata) & writer_features(before.protocol)
    raised = with_features(protocol, (*sorted(needed), *features))
    if raised == protocol:
        return actions
    return [*(a for a in actions if a is not given), raised]


def _refuse_rows_without_ids(table: TableHandle) -> None:
    ids = table.source.scan(("base_row_id",)).column("base_row_id")
    if ids.null_count:
        raise UnsupportedOperationError(
            f"row tracking cannot be switched on: {ids.null_count} files have no row ids yet",
            table=table.name,
            suggestion="switch it on when the table is created, or with an engine that gives ids to old rows",
        )
