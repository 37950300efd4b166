"""The frozen values of ``deltalakedb.models``: plain data and JSON, there and back."""

from __future__ import annotations

import dataclasses
import inspect
import pickle
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltalakedb import Catalog, models, open_log
from deltalakedb.exceptions import LogCorruptError, ProtocolError
from deltalakedb.models import (
    Add,
    Commit,
    CommitInfo,
    File,
    Head,
    Metadata,
    Protocol,
    Snapshot,
    Table,
    UnknownAction,
    action_from_dict,
    action_to_dict,
)
from support import actions as made
from support.action_strategies import actions, extra, json_values, optional, str_map, text, whole

if TYPE_CHECKING:
    from pathlib import Path

tables = st.builds(
    Table,
    table_id=whole,
    name=text,
    location=text,
    state=text,
    state_reason=optional(text),
    comment=optional(text),
    tags=st.dictionaries(text, text, max_size=2),
    settings=st.dictionaries(text, json_values, max_size=2),
    created_at=whole,
    updated_at=whole,
    head=st.builds(Head, *[whole] * 7),
    published_version=whole,
)
adds = st.builds(
    Add, path=text, partition_values=str_map, size=whole, modification_time=whole, data_change=st.booleans()
)
values = st.one_of(
    tables,
    st.builds(File, add=adds, add_version=whole, num_records=optional(whole)),
    st.builds(Commit, whole, whole, optional(st.builds(CommitInfo, extra=extra))),
    st.builds(
        Snapshot,
        whole,
        whole,
        st.builds(Protocol, min_reader_version=whole, min_writer_version=whole),
        st.builds(Metadata, id=text, schema_string=text, configuration=str_map),
    ),
    actions,
)


@given(values)
def test_every_value_comes_back_equal_from_data_and_from_json(value: Any) -> None:
    kind = type(value)
    assert kind.from_dict(value.to_dict()) == value
    assert kind.from_json(value.to_json()) == value
    assert kind.from_json(value.to_json().encode()) == value
    assert pickle.loads(pickle.dumps(value)) == value


@given(actions)
def test_every_action_comes_back_from_its_line(action: Any) -> None:
    assert action_from_dict(action_to_dict(action)) == action


CLASSES = [c for c in vars(models).values() if inspect.isclass(c)]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda c: c.__name__)
def test_every_value_is_frozen(kind: Any) -> None:
    assert dataclasses.is_dataclass(kind)
    assert kind.__dataclass_params__.frozen  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", [Table, File, Commit, Snapshot, Add])
def test_data_that_lacks_something_is_refused_by_name(kind: Any) -> None:
    with pytest.raises(ProtocolError, match=f"{kind.__name__} lacks"):
        kind.from_dict({})
    with pytest.raises(ProtocolError, match=f"{kind.__name__} is a JSON object, not list"):
        kind.from_json("[]")
    with pytest.raises(LogCorruptError):
        kind.from_json("{")


def test_an_unknown_action_keeps_its_kind() -> None:
    action = UnknownAction(kind="invented", value={"a": 1})
    assert action.to_json() == '{"invented":{"a":1}}'
    with pytest.raises(ProtocolError, match="one action, not 2"):
        UnknownAction.from_dict({"a": 1, "b": 2})


def test_a_table_that_does_not_know_its_rows_stays_so() -> None:
    head = Head(3, 1, 0, 2, 100, 7, 1)
    table = Table(1, "a.b", "/t", "active", None, None, {}, {}, 1, 1, head)
    assert table.to_dict()["num_records"] is None
    assert Table.from_dict(table.to_dict()).head.rows is None
    assert table.namespace == "a"


def test_a_catalog_hands_out_values(catalog_uri: str, tmp_path: Path) -> None:
    with Catalog(catalog_uri) as catalog:
        catalog.set_root(tmp_path)
        for numbers in ([1, 2], [30, 40, 50]):
            catalog.write("t", pa.table({"id": pa.array(numbers, pa.int64())}), mode="append")
        (table,) = catalog.tables()
        assert (table.name, table.head.version, table.head.rows) == ("t", 1, 5)
        found = sorted(catalog.files("t"), key=lambda f: f.add_version)
        assert [(f.add_version, f.num_records) for f in found] == [(0, 2), (1, 3)]
        assert {f.path for f in found} == {a.path for a in catalog.log("t").files()}
        assert [f.add_version for f in catalog.files("t", where="id > 10")] == [1]
        assert [f.add_version for f in catalog.files("t", where=[("id", "<", 10)])] == [0]
        assert [f.add_version for f in catalog.files("t", version=0)] == [0]
        commits = catalog.commits("t")
        assert [(c.version, c.operation) for c in commits] == [(1, "WRITE"), (0, "WRITE")]
        assert [c.version for c in catalog.commits("t", limit=1)] == [1]
        for value in (table, *found, *commits, catalog.log("t").snapshot()):
            assert type(value).from_json(value.to_json()) == value
        log = open_log(catalog.table_uri("t"))
        kept = [a for a in log.actions(1) if isinstance(a, Add)]
        assert [Add.from_json(a.to_json()) for a in kept] == [f.add for f in found[1:]]


def test_a_file_shows_what_its_action_says() -> None:
    file = File(made.add("a.parquet"), 3, 7)
    assert (file.path, file.size, file.partition_values) == ("a.parquet", 100, {"day": "2024-01-01"})
