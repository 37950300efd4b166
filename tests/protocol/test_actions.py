"""The log's JSON: exact, tolerant where others are, and typed errors for the rest."""

from __future__ import annotations

import contextlib
import json
import math
import pickle
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltalakedb.exceptions import LogCorruptError, ProtocolError
from deltalakedb.protocol.actions import (
    Add,
    CommitInfo,
    UnknownAction,
    action_from_dict,
    decode_commit,
    decode_line,
    encode_action,
    encode_commit,
    kind_of,
)
from deltalakedb.protocol.json_text import ExactFloat, decode_json, encode_json
from support.action_strategies import actions, json_values

if TYPE_CHECKING:
    from decimal import Decimal

ADD = b'{"add":{"path":"a","partitionValues":{},"size":1,"modificationTime":2,"dataChange":true}}'


@given(st.lists(actions, min_size=1, max_size=4))
def test_every_action_with_unknown_fields_survives_a_round_trip(written: list[object]) -> None:
    data = encode_commit(written)  # type: ignore[arg-type]
    assert decode_commit(data) == written
    assert encode_commit(decode_commit(data)) == data
    assert data.count(b"\n") == len(written)
    assert data.endswith(b"\n")


@given(json_values)
def test_values_are_those_of_the_standard_parser(value: object) -> None:
    assert decode_json(json.dumps(value)) == value
    assert json.loads(encode_json(value)) == value


@given(st.decimals(allow_nan=False, allow_infinity=False), st.sampled_from(["f", "e", "E"]))
def test_a_number_keeps_its_spelling(number: Decimal, form: str) -> None:
    literal = format(number, form if abs(number.adjusted()) < 300 else "e")
    number_back = encode_json(decode_json(f"[{literal}]"))
    assert number_back == ("[0]" if literal == "-0" else f"[{literal}]")


@pytest.mark.parametrize(
    "literal",
    [
        "1.10",
        "1e400",
        "-0.0",
        "1E5",
        "1e-7",
        "0.1",
        "123456789012345678901234567890",
        "1.0e+2",
        "-9" * 1,
        "9" * 300,
    ],
)
def test_odd_numbers_keep_their_spelling(literal: str) -> None:
    assert encode_json(decode_json(literal)) == literal


def test_long_integers_stay_integers() -> None:
    assert decode_json("123456789012345678901234567890") == 123456789012345678901234567890


def test_an_exact_float_computes_and_pickles() -> None:
    number = decode_json("1.10")
    assert isinstance(number, ExactFloat)
    assert number == 1.1
    assert math.isinf(decode_json("1e400"))
    assert encode_json(pickle.loads(pickle.dumps(number))) == "1.10"


def test_text_stays_utf8() -> None:
    line = encode_action(UnknownAction(kind="é", value={"k": "日本 😀 \x00"}))
    assert "日本 😀".encode() in line
    assert b" :" not in line
    assert decode_line(line) == UnknownAction(kind="é", value={"k": "日本 😀 \x00"})


@pytest.mark.parametrize(
    "data",
    [
        b"\xef\xbb\xbf" + ADD + b"\n",
        ADD + b"\r\n",
        b"\n\n" + ADD + b"\n  \n",
        b"{}\n" + ADD,
        b'{"add":null,"remove":null}\n' + ADD,
    ],
    ids=["byte order mark", "crlf", "blank lines", "empty object", "only nulls"],
)
def test_harmless_oddities_are_tolerated(data: bytes) -> None:
    assert decode_commit(data) == decode_commit(ADD)


@pytest.mark.parametrize(
    "line",
    [
        ADD[:-10],
        b"[]",
        b"7",
        b'"add"',
        b"null",
        b'{"add":7}',
        b'{"add":{}}',
        b'{"add":{"path":"a"}}',
        b'{"add":{"path":7,"size":1}}',
        b'{"add":{"path":"a","size":"1"}}',
        b'{"add":{"path":"a","size":1.5}}',
        b'{"add":{"path":"a","size":true}}',
        b'{"add":{"path":"a","size":9223372036854775808}}',
        b'{"add":{"path":"a","size":1,"dataChange":1}}',
        b'{"add":{"path":"a","size":1,"partitionValues":7}}',
        b'{"add":{"path":"a","size":1,"partitionValues":{"p":[]}}}',
        b'{"add":{"path":"a","size":1,"deletionVector":"x"}}',
        b'{"protocol":{"minReaderVersion":1,"minWriterVersion":2,"readerFeatures":"x"}}',
        b'{"metaData":{"schemaString":"{}"}}',
        b'{"add":{"path":"a","size":1},"remove":{"path":"b"}}',
        b'{"add":{"path":"\xff","size":1}}',
        b'{"add":{"path":"\\ud800","size":1}}',
        b'{"commitInfo":NaN}',
        b'{"commitInfo":{"n":' + b"9" * 5000 + b"}}",
        b'{"commitInfo":' + b"[" * 100_000,
        b'{"commitInfo":{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}}",
        b"\x00",
        b"PAR1",
    ],
)
def test_a_broken_line_is_named_by_source_and_number(line: bytes) -> None:
    with pytest.raises(LogCorruptError, match=r"7\.json, line 2: ") as caught:
        decode_commit(ADD + b"\n" + line + b"\n", source="7.json")
    assert caught.value.suggestion


@pytest.mark.parametrize("data", [b"", b"\n", b"{}\n", b"\xef\xbb\xbf"])
def test_a_commit_without_any_action_is_broken(data: bytes) -> None:
    with pytest.raises(LogCorruptError, match=r"3\.json holds no action"):
        decode_commit(data, source="3.json")


@given(st.binary(max_size=60))
def test_garbage_gives_a_typed_error_or_actions(data: bytes) -> None:
    with contextlib.suppress(LogCorruptError):
        assert decode_commit(data)


@given(st.integers(0, len(ADD) - 1))
def test_a_cut_line_is_never_accepted(length: int) -> None:
    with pytest.raises(LogCorruptError):
        decode_commit(ADD[:length])


def test_of_equal_keys_the_last_one_counts() -> None:
    assert decode_json('{"a":1,"a":2}') == {"a": 2}


@pytest.mark.parametrize(
    "value", ["\ud800", object(), {"a": {1, 2, object()}}], ids=["surrogate", "object", "set"]
)
def test_what_has_no_json_form_is_refused(value: object) -> None:
    with pytest.raises(ProtocolError):
        encode_json(value)


def test_a_value_nested_beyond_reason_is_refused() -> None:
    value: list[object] = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(ProtocolError, match="nested"):
        encode_json(value)


def test_fields_that_old_writers_leave_out_are_assumed() -> None:
    add = action_from_dict({"add": {"path": "a", "size": 1, "dataChange": None}})
    assert isinstance(add, Add)
    assert (add.data_change, add.modification_time, add.partition_values) == (True, 0, {})


def test_rows_of_a_parquet_checkpoint_are_understood() -> None:
    row = {
        "txn": None,
        "add": {
            "path": "a",
            "size": 1.0,
            "partitionValues": [("p", "1"), ("q", None)],
            "tags": None,
            "deletionVector": {"storageType": None, "pathOrInlineDv": None},
        },
    }
    add = action_from_dict(row)
    assert isinstance(add, Add)
    assert add.partition_values == {"p": "1", "q": None}
    assert add.deletion_vector is None
    assert add.size == 1
    assert kind_of(add) == "add"


def test_partition_values_written_as_json_scalars_become_text() -> None:
    data = b'{"add":{"path":"a","size":1,"partitionValues":{"i":1,"b":true,"d":1.10,"n":null}}}'
    (add,) = decode_commit(data)
    assert isinstance(add, Add)
    assert add.partition_values == {"i": "1", "b": "true", "d": "1.10", "n": None}


def test_commit_info_of_a_strange_shape_is_read_carefully() -> None:
    info = CommitInfo(extra={"operation": 7, "timestamp": "now", "inCommitTimestamp": True})
    assert (info.operation, info.timestamp, info.in_commit_timestamp) == (None, None, None)


def test_actions_pickle() -> None:
    action = Add(path="a", size=1, modification_time=2, data_change=True, extra={"x": 1})
    assert pickle.loads(pickle.dumps(action)) == action
