"""Actions of every kind, with unknown fields and odd values, for property tests."""

from __future__ import annotations

from hypothesis import strategies as st

from deltalakedb.protocol.actions import (
    Add,
    Cdc,
    CheckpointMetadata,
    CommitInfo,
    DeletionVector,
    DomainMetadata,
    Format,
    Metadata,
    Protocol,
    Remove,
    Sidecar,
    Txn,
    UnknownAction,
)

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
whole = st.integers(-(2**63), 2**63 - 1)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
extra = st.dictionaries(text.map(lambda t: f"x-{t}"), json_values, max_size=2)
str_map = st.dictionaries(text, text | st.none(), max_size=3)


def optional(strategy: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.none() | strategy


vectors = st.builds(
    DeletionVector,
    storage_type=st.sampled_from("uip"),
    path_or_inline_dv=text,
    size_in_bytes=whole,
    cardinality=whole,
    offset=optional(whole),
    extra=extra,
)
actions = st.one_of(
    st.builds(
        Add,
        path=text,
        partition_values=str_map,
        size=whole,
        modification_time=whole,
        data_change=st.booleans(),
        stats=optional(text),
        tags=optional(str_map),
        deletion_vector=optional(vectors),
        base_row_id=optional(whole),
        default_row_commit_version=optional(whole),
        clustering_provider=optional(text),
        extra=extra,
    ),
    st.builds(
        Remove,
        path=text,
        deletion_timestamp=optional(whole),
        data_change=st.booleans(),
        extended_file_metadata=optional(st.booleans()),
        partition_values=optional(str_map),
        size=optional(whole),
        deletion_vector=optional(vectors),
        extra=extra,
    ),
    st.builds(
        Metadata,
        id=text,
        name=optional(text),
        description=optional(text),
        format=st.builds(Format, options=st.dictionaries(text, text, max_size=2), extra=extra),
        schema_string=text,
        partition_columns=st.lists(text, max_size=3).map(tuple),
        configuration=str_map,
        created_time=optional(whole),
        extra=extra,
    ),
    st.builds(
        Protocol,
        min_reader_version=whole,
        min_writer_version=whole,
        reader_features=optional(st.lists(text, max_size=3).map(tuple)),
        writer_features=optional(st.lists(text, max_size=3).map(tuple)),
        extra=extra,
    ),
    st.builds(Txn, app_id=text, version=whole, last_updated=optional(whole), extra=extra),
    st.builds(DomainMetadata, domain=text, configuration=text, removed=st.booleans(), extra=extra),
    st.builds(Cdc, path=text, partition_values=str_map, size=whole, tags=optional(str_map), extra=extra),
    st.builds(CommitInfo, extra=extra),
    st.builds(Sidecar, path=text, size_in_bytes=whole, modification_time=whole, extra=extra),
    st.builds(CheckpointMetadata, version=whole, tags=optional(str_map), extra=extra),
    st.builds(
        UnknownAction, kind=text.map(lambda t: f"new{t}"), value=json_values.filter(lambda v: v is not None)
    ),
)
