"""Attacks on the service for commits, over raw sockets against a real server: framing, floods, commits."""

from __future__ import annotations

import json
import re
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import deltalake
import pytest

from deltalakedb.protocol.actions import encode_action
from deltalakedb.service import server as server_module
from support.actions import add, info, metadata, protocol, remove
from support.callers import TOKEN, Caller, appended, first
from support.mirrors import commit_file, logged

if TYPE_CHECKING:
    from pathlib import Path

    from deltalakedb import Catalog
    from deltalakedb.service.server import CommitServer

one_engine = pytest.mark.parametrize("engine_name", ["sqlite"])


def connect(url: str) -> socket.socket:
    parts = urlsplit(url)
    return socket.create_connection((parts.hostname, parts.port), timeout=60)


def rest(connection: socket.socket) -> bytes:
    """Everything until the service closes the connection."""
    found = b""
    with suppress(ConnectionResetError):  # closed with bytes of ours unread, as it should be
        while piece := connection.recv(65536):
            found += piece
    return found


def exchange(url: str, data: bytes) -> bytes:
    """What the service answers to some bytes until it closes the connection by itself."""
    with connect(url) as connection:
        with suppress(OSError):  # it has seen enough
            connection.sendall(data)
        return rest(connection)


def head(
    *lines: str, method: str = "POST", target: str = "/publish?path=x", host: str = "localhost"
) -> bytes:
    """The head of a request by somebody who knows the token, so that only its form can be wrong."""
    words = (f"{method} {target} HTTP/1.1", f"Host: {host}", f"Authorization: Bearer {TOKEN}", *lines)
    return "\r\n".join((*words, "", "")).encode("latin-1")


# --- framing: what two parsers could read in two ways

#: a request that must never be answered: a body or a second message that hides it is not a message of its own
SMUGGLED = head("Connection: close", method="GET", target="/health")

FRAMING = {
    "two lengths": head("Content-Length: 0", f"Content-Length: {len(SMUGGLED)}"),
    "two equal lengths": head("Content-Length: 0", "Content-Length: 0"),
    "a list of lengths": head("Content-Length: 0, 0"),
    "length and encoding": head("Content-Length: 0", "Transfer-Encoding: chunked"),
    "encoding and length": head("Transfer-Encoding: identity", "Content-Length: 0"),
    "a signed length": head("Content-Length: +0"),
    "a negative length": head("Content-Length: -1"),
    "a hexadecimal length": head("Content-Length: 0x0"),
    "a length with an underscore": head("Content-Length: 0_0"),
    "a length with an exponent": head("Content-Length: 1e3"),
    "a length of other digits": head("Content-Length: \xb2"),
    "an empty length": head("Content-Length: "),
    "a huge length": head(f"Content-Length: {'9' * 5000}"),
    "a space before the colon": head("Content-Length : 5"),
    "a folded header": head("X-Folded: a", " Content-Length: 5"),
    "a header without a name": head(": value"),
    "a header without a colon": head("nonsense", "Content-Length: 5"),
    "a bare carriage return": head("X-Odd: a\rContent-Length: 5"),
    "a NUL in a header": head("X-Odd: a\x00b"),
    "bare line feeds": head("Content-Length: 0").replace(b"\r\n", b"\n"),
    "two hosts": head("Host: localhost", "Content-Length: 0"),
    "two tokens": head(f"Authorization: Bearer {TOKEN}", "Content-Length: 0"),
    "no host": head("Content-Length: 0").replace(b"Host: localhost\r\n", b""),
    "an absolute target": head("Content-Length: 0", target="http://localhost/publish?path=x"),
    "a target with a space": head("Content-Length: 0", target="/publish path"),
    "a target of bytes": head("Content-Length: 0", target="/publish?path=\xff"),
    "an old version": head("Content-Length: 0").replace(b"HTTP/1.1", b"HTTP/0.9"),
    "a new version": head("Content-Length: 0").replace(b"HTTP/1.1", b"HTTP/2.0"),
    "no version": b"GET /health\r\n\r\n",
    "a lower-case method": head("Content-Length: 0", method="post"),
    "too many headers": head(*(f"X-{n}: a" for n in range(200))),
    "a long header": head(f"X-Long: {'a' * 100_000}"),
    "a long target": head(method="GET", target=f"/{'pwd' * 30_000}"),
    "garbage": b"\x16\x03\x01\x02\x00garbage\r\n\r\n",
}


@one_engine
@pytest.mark.parametrize("name", FRAMING)
def test_an_ambiguous_request_is_refused_once_and_the_connection_closed(
    server: CommitServer, name: str
) -> None:
    said = exchange(server.url, FRAMING[name] + SMUGGLED)
    status = said.partition(b"\r\n")[0].split(b" ")[1] if said else b"(closed)"
    # a refusal may be lost where the sender was not done: then the connection is closed all the same
    assert status in (b"400", b"414", b"421", b"431", b"(closed)"), said
    assert said.count(b"HTTP/1.1 ") <= 1, said
    assert b'"status": "ok"' not in said
    assert Caller(server.url).request("GET", "/health").status == 200


@one_engine
def test_the_body_of_a_get_is_not_the_next_request(server: CommitServer) -> None:
    for lines in ([f"Content-Length: {len(SMUGGLED)}"], ["Transfer-Encoding: chunked"]):
        said = exchange(server.url, head(*lines, method="GET", target="/health") + SMUGGLED)
        assert said.count(b"HTTP/1.1 ") == 1, said
        said = exchange(server.url, head(*lines, method="DELETE", target="/health") + SMUGGLED)
        assert said.count(b"HTTP/1.1 ") <= 1, said


@one_engine
def test_sound_requests_follow_each_other_on_one_connection(server: CommitServer) -> None:
    plain = head(method="GET", target="/health")
    said = exchange(server.url, plain + head("Content-Length: 3") + b"abc" + SMUGGLED)
    assert re.findall(rb"HTTP/1\.1 (\d+)", said) == [b"200", b"422", b"200"]
    waiting = head("Content-Length: 3", "Expect: 100-continue", "Connection: close")
    said = exchange(server.url, waiting + b"abc")
    assert said.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 422 ")
    # nobody is told to send what would be refused
    stranger = waiting.replace(TOKEN.encode(), b"no")
    assert exchange(server.url, stranger + b"abc").startswith(b"HTTP/1.1 401 ")


@one_engine
@pytest.mark.parametrize("settings", [{"allowed_hosts": "Lake.example.com, proxy"}])
def test_only_hosts_that_mean_the_service_are_served(server: CommitServer) -> None:
    port = urlsplit(server.url).port
    for host in ("localhost", f"LOCALHOST:{port}", "127.0.0.1", f"[::1]:{port}", "10.1.2.3", "proxy"):
        for spelled in (host, "lake.EXAMPLE.com.:443"):
            said = exchange(
                server.url, head("Connection: close", method="GET", target="/health", host=spelled)
            )
            assert said.startswith(b"HTTP/1.1 200 "), spelled
    for host in (
        "evil.example",
        "lake.example.com.evil.example",
        "localhost.evil.example",
        "a b",
        "@",
        "[x]",
    ):
        said = exchange(server.url, head(method="GET", target="/health", host=host) + SMUGGLED)
        assert said.startswith(b"HTTP/1.1 421 "), host
        assert said.count(b"HTTP/1.1 ") == 1


# --- floods: many connections, slow ones, costly ones


@one_engine
@pytest.mark.parametrize("settings", [{"max_connections": 3}])
def test_connections_beyond_the_limit_are_told_to_ask_again(server: CommitServer) -> None:
    held = [connect(server.url) for _ in range(3)]
    said = exchange(server.url, b"")
    assert said.startswith(b"HTTP/1.1 503 ")
    assert b"Deltasql-Answer: later\r\n" in said
    for connection in held:
        connection.sendall(SMUGGLED)
        assert rest(connection).startswith(b"HTTP/1.1 200 ")
        connection.close()
    assert Caller(server.url).request("GET", "/health").status == 200


@one_engine
@pytest.mark.parametrize(
    "begun", [b"", b"GET /hea", head()[:-2], head("Content-Length: 1000").replace(TOKEN.encode(), b"no")]
)
def test_a_trickling_caller_is_sent_away(
    server: CommitServer, monkeypatch: pytest.MonkeyPatch, begun: bytes
) -> None:
    for limit in ("_STRANGER_S", "_HEAD_S"):
        monkeypatch.setattr(server_module, limit, 0.5)
    with connect(server.url) as connection:
        connection.sendall(begun)
        connection.settimeout(0.05)
        for _ in range(1000):  # one byte at a time is still not a request
            try:
                assert connection.recv(65536) == b""
                break
            except TimeoutError:
                if begun:
                    try:
                        connection.sendall(b"a")
                    except OSError:
                        break
            except ConnectionResetError:
                break
        else:
            pytest.fail("the connection stays open")
    assert Caller(server.url).request("GET", "/health").status == 200


@one_engine
def test_a_body_that_trickles_in_has_a_deadline(
    server: CommitServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "_BODY_S", 0.3)
    with connect(server.url) as connection:
        connection.sendall(head("Content-Length: 1000") + b"a")
        assert rest(connection) == b""


@one_engine
def test_a_request_line_is_redacted_only_if_it_is_logged(
    server: CommitServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(server_module, "redact", lambda text: seen.append(text) or text)
    target = f"/?{'pwd' * 15_000}"
    caplog.set_level("INFO", logger="deltalakedb.service")
    assert Caller(server.url).request("GET", target).status == 404
    assert [text for text in seen if "pwd" in text] == []
    caplog.set_level("DEBUG", logger="deltalakedb.service")
    assert Caller(server.url).request("GET", target).status == 404
    assert [len(text) for text in seen if "pwd" in text] == [1000]


# --- targets

TARGETS = {
    "a NUL": "file:/x%00/_delta_log/00000000000000000001.json",
    "a line feed": "file:/x%0A/_delta_log/00000000000000000001.json",
    "an encoded NUL": "file:/x%2500/_delta_log/00000000000000000001.json",
    "half a surrogate": "file:/x%ED%A0%80/_delta_log/00000000000000000001.json",
    "bytes that are no text": "file:/%FF/_delta_log/00000000000000000001.json",
    "a version beyond 64 bits": "file:/x/_delta_log/99999999999999999999.json",
    "a bracket": "http://[/_delta_log/00000000000000000001.json",
    "a long name": f"file:/{'x' * 9000}/_delta_log/00000000000000000001.json",
    "a deep place": f"file:{'/x' * 9000}/_delta_log/00000000000000000001.json",
    "many fields": "&a=1" * 5000,
}


@one_engine
@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("what", ["commit", "publish"])
def test_an_odd_target_is_a_refusal_and_no_failure(
    caller: Caller, catalog: Catalog, what: str, name: str
) -> None:
    said = caller.post(f"/{what}?path={TARGETS[name]}", appended())
    assert said.status in (400, 404, 422), said
    assert catalog.tables() == []


# --- commits that would break readers once they are published


def lines(*objects: object) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in objects)


def added(**fields: Any) -> dict[str, Any]:
    """An add as plain data, some fields changed or, by None, left out."""
    plain = {**json.loads(encode_action(add("a.parquet")))["add"], **fields}
    return {"add": {key: value for key, value in plain.items() if value is not None}}


def created(*, protocol_: dict[str, Any] | None = None, **fields: Any) -> bytes:
    plain = {**json.loads(encode_action(metadata()))["metaData"], **fields}
    about = {"protocol": protocol_ or {"minReaderVersion": 1, "minWriterVersion": 2}}
    return lines(about, {"metaData": {key: value for key, value in plain.items() if value is not None}})


def schema(*fields: Any) -> str:
    return json.dumps({"type": "struct", "fields": list(fields)})


def column(name: str, kind: Any = "long", **fields: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}, **fields}


def mapped(name: str, number: int, kind: str) -> dict[str, Any]:
    known = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": f"col-{number}"}
    return column(name, kind, metadata=known)


def vector(**fields: Any) -> dict[str, Any]:
    return {"storageType": "u", "pathOrInlineDv": "x" * 20, "sizeInBytes": 1, "cardinality": 1, **fields}


DAY = column("day", "string")
SMALL = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
CREATED = {
    "a byte order mark": b"\xef\xbb\xbf" + first(),
    "a blank line": first().replace(b"\n", b"\n\n"),
    "an empty object": first() + b"{}\n",
    "carriage returns alone": first().replace(b"\n", b"\r"),
    "no schema": created(schemaString=None),
    "an empty schema": created(schemaString=""),
    "a schema that is no JSON": created(schemaString="{"),
    "a schema that is no struct": created(schemaString='"long"'),
    "a schema of nulls": created(schemaString="null"),
    "a column without a type": created(schemaString=schema({"name": "id"}, DAY)),
    "an unknown type": created(schemaString=schema(column("id", "quaternion"), DAY)),
    "an unknown nested type": created(
        schemaString=schema(column("id", {"type": "array", "elementType": "x", "containsNull": True}), DAY)
    ),
    "two columns of one name": created(schemaString=schema(column("id"), column("ID"), DAY)),
    "a column without a name": created(schemaString=schema(column(""), DAY)),
    "a NUL in a column's name": created(schemaString=schema(column("i\x00d"), DAY)),
    "half a surrogate in a column's name": created(schemaString=schema(column("i\ud800"), DAY)),
    "a key twice in the schema": created(schemaString='{"type":"struct","type":"struct","fields":[]}'),
    "a missing partition column": created(partitionColumns=["nowhere"]),
    "a partition column twice": created(partitionColumns=["day", "day"]),
    "a nested partition column": created(
        schemaString=schema(column("day", {"type": "struct", "fields": []}))
    ),
    "another format": created(format={"provider": "orc", "options": {}}),
    "a time beyond all years": created(createdTime=2**62),
    "two metaData": created() + lines({"metaData": json.loads(encode_action(metadata()))["metaData"]}),
    "two protocols": lines(SMALL) + created(),
    "no protocol": lines(json.loads(encode_action(metadata()))),
    "features of an old protocol": created(
        protocol_={"minReaderVersion": 1, "minWriterVersion": 2, "writerFeatures": ["appendOnly"]}
    ),
    "a feature for readers that only writers are told of": created(
        protocol_={"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["deletionVectors"]}
    ),
    "a reader feature that writers lack": created(
        protocol_={
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": ["deletionVectors"],
            "writerFeatures": [],
        }
    ),
    "a mapping that nobody knows": created(configuration={"delta.columnMapping.mode": "magic"}),
    "mapped columns without their names": created(
        protocol_={"minReaderVersion": 2, "minWriterVersion": 5},
        configuration={"delta.columnMapping.mode": "name"},
    ),
    "a mapping that the protocol lacks": created(
        schemaString=schema(mapped("id", 1, "long"), mapped("day", 2, "string")),
        configuration={"delta.columnMapping.mode": "name"},
    ),
    "a type that the protocol lacks": created(schemaString=schema(column("id", "timestamp_ntz"), DAY)),
    "a version 7 without features": created(protocol_={"minReaderVersion": 1, "minWriterVersion": 7}),
    "a version below all": created(protocol_={"minReaderVersion": 0, "minWriterVersion": -1}),
    "a version beyond all": created(protocol_={"minReaderVersion": 1, "minWriterVersion": 2**40}),
}


@one_engine
@pytest.mark.parametrize("name", CREATED)
def test_a_first_commit_that_breaks_readers_is_refused(
    caller: Caller, catalog: Catalog, root: Path, name: str
) -> None:
    said = caller.commit(root / "t", 0, CREATED[name])
    assert (said.status, said.word) == (422, "refused"), said
    assert not (root / "t").exists()
    assert catalog.tables() == []


LATER = {
    "a byte order mark": b"\xef\xbb\xbf" + appended(),
    "a blank line": b"\n" + appended(),
    "two actions in a line": lines({**added(), **json.loads(encode_action(remove("b")))}),
    "a key twice": lines(added()).replace(b'"path"', b'"path": "b", "path"'),
    "an action twice in a line": lines(added()).replace(b'{"add"', b'{"add":null,"add"'),
    "an unknown action": lines(added(), {"upsert": {"path": "a"}}),
    "an action of checkpoints": lines(added(), {"checkpointMetadata": {"version": 1}}),
    "a sidecar": lines({"sidecar": {"path": "a", "sizeInBytes": 1, "modificationTime": 1}}),
    "two commitInfo": lines({"commitInfo": {}}, {"commitInfo": {}}, added()),
    **{
        f"{depth} levels": b'{"commitInfo":{"a":' + b"[" * depth + b"]" * depth + b"}}\n" + lines(added())
        for depth in (101, 500, 900, 950, 990, 1000, 50_000)
    },
    "text that is no UTF-8": lines(added()).replace(b"a.parquet", b"a\xff.parquet"),
    "text that is no JSON": lines(added()).replace(b"a.parquet", b'a"b'),
    "no number": lines(added()).replace(b'"size": 100', b'"size": NaN'),
    "another schema that is none": lines(
        {"metaData": {**json.loads(encode_action(metadata()))["metaData"], "schemaString": "{"}}
    ),
    "a number of 5000 digits": lines(added()).replace(b'"size": 100', b'"size": ' + b"9" * 5000),
    "a text as size": lines(added(size="1")),
    "no size": lines(added(size=None)),
    "a negative size": lines(added(size=-1)),
    "a size near 2^63": lines(added(size=2**63 - 1)),
    "a size beyond 2^63": lines(added(size=2**63)),
    "sizes that add up beyond 2^63": lines(*(added(path=f"{n}", size=2**59) for n in range(20))),
    "a time beyond all years": lines(added(modificationTime=2**63 - 1)),
    "an empty path": lines(added(path="")),
    "a path that climbs": lines(added(path="../a.parquet")),
    "an encoded path that climbs": lines(added(path="%2e%2e/a.parquet")),
    "a removed path that climbs": lines(json.loads(encode_action(remove("../../etc/passwd")))),
    "an encoded NUL in a path": lines(added(path="a%00.parquet")),
    "no partition values": lines(added(partitionValues={})),
    "values of other columns": lines(added(partitionValues={"month": "1"})),
    "statistics that are no JSON": lines(added(stats="{")),
    "statistics that are no object": lines(added(stats="[]")),
    "empty statistics": lines(added(stats="")),
    "a negative number of rows": lines(added(stats='{"numRecords":-1}')),
    "an impossible number of rows": lines(added(stats=f'{{"numRecords":{2**63}}}')),
    "bounds that are no object": lines(added(stats='{"numRecords":1,"minValues":[1]}')),
    "a deletion vector that the protocol lacks": lines(added(deletionVector=vector())),
    "an unknown deletion vector": lines(added(deletionVector=vector(storageType="z"))),
    "a deletion vector before its file": lines(added(deletionVector=vector(offset=-1))),
    "a deletion vector of 2^62 rows": lines(added(deletionVector=vector(cardinality=2**62))),
    "half a surrogate in a path": lines(added()).replace(b"a.parquet", rb"a\ud800.parquet"),
}
#: what a database may refuse where the library did not
STORED = {
    "a NUL in a path": lines(added(path="a\x00.parquet")),
    "a NUL in a partition value": lines(added(partitionValues={"day": "a\x00"})),
    "a NUL in a tag": lines(added(tags={"a": "\x00"})),
    "a NUL in an application": lines({"txn": {"appId": "a\x00", "version": 1}}),
    "a NUL in a domain": lines({"domainMetadata": {"domain": "\x00", "configuration": "", "removed": False}}),
    "a NUL in an operation": lines({"commitInfo": {"operation": "WRITE\x00"}}, added()),
    "a NUL in a key": lines({"commitInfo": {"\x00": 1}}, added()),
    "a size near 2^63": lines(added(size=2**63 - 1)),
    "a version of an application beyond 2^63": lines({"txn": {"appId": "a", "version": 2**63}}),
    "half a surrogate in an application": lines({"txn": {"appId": "\ud800", "version": 1}}),
}


def check_refused(caller: Caller, catalog: Catalog, table: Path, data: bytes) -> None:
    assert caller.commit(table, 0, first(add("0.parquet"))).word == "committed"
    said = caller.commit(table, 1, data)
    assert (said.status, said.word) == (422, "refused"), said
    assert "\n" not in said.text
    assert len(said.text) <= 4000
    assert logged(table) == [0]
    # others go on, and every reader agrees
    sound = appended("1.parquet")
    assert caller.commit(table, 1, sound).word == "committed"
    assert commit_file(table, 1).read_bytes() == sound
    assert deltalake.DeltaTable(table).version() == 1
    assert sorted(f.path for f in catalog.files("t")) == ["0.parquet", "1.parquet"]


@one_engine
@pytest.mark.parametrize("name", LATER)
def test_a_commit_that_breaks_readers_is_refused(
    caller: Caller, catalog: Catalog, root: Path, name: str
) -> None:
    check_refused(caller, catalog, root / "t", LATER[name])


@pytest.mark.parametrize("name", STORED)
def test_a_commit_that_a_database_cannot_keep_is_refused(
    caller: Caller, catalog: Catalog, root: Path, name: str
) -> None:
    check_refused(caller, catalog, root / "t", STORED[name])


def test_sizes_that_add_up_beyond_64_bits_over_many_commits_are_refused(
    caller: Caller, catalog: Catalog, root: Path
) -> None:
    assert caller.commit(root / "t", 0, first()).word == "committed"
    for version in range(1, 8):
        data = lines(added(path=f"{version}", size=2**60))
        assert caller.commit(root / "t", version, data).word == "committed"
    said = caller.commit(root / "t", 8, lines(added(path="8", size=2**60)))
    assert (said.status, said.word) == (422, "refused"), said
    assert caller.commit(root / "t", 8, lines(added(path="8", size=1))).word == "committed"


def test_values_that_only_look_odd_are_committed(caller: Caller, catalog: Catalog, root: Path) -> None:
    """Texts of any script, NUL inside of statistics, long numbers: data may be so."""
    assert caller.commit(root / "t", 0, first()).word == "committed"
    stats = json.dumps({"numRecords": 2, "minValues": {"id": 1, "day": "\x00"}, "maxValues": {"id": 2**62}})
    about = {"commitInfo": {"operation": "WRITE", "engineInfo": "Ünï 😀", "big": 10**30}}
    data = lines(about, added(path="a%20%F0%9F%98%80.parquet", stats=stats, tags={"k": ""}))
    said = caller.commit(root / "t", 1, data)
    assert said.word == "committed", said
    assert commit_file(root / "t", 1).read_bytes() == data
    assert deltalake.DeltaTable(root / "t").version() == 1


@one_engine
def test_a_table_whose_features_agree_is_committed(caller: Caller, catalog: Catalog, root: Path) -> None:
    features = ["columnMapping", "deletionVectors", "timestampNtz"]
    zero = created(
        protocol_={
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": features,
            "writerFeatures": features,
        },
        schemaString=schema(mapped("id", 1, "timestamp_ntz"), mapped("day", 2, "string")),
        configuration={"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "2"},
    )
    assert caller.commit(root / "t", 0, zero).word == "committed"
    physical = added(partitionValues={"col-2": "x"}, stats='{"numRecords":1}', deletionVector=vector())
    said = caller.commit(root / "t", 1, lines(physical))
    assert said.word == "committed", said
    assert caller.commit(root / "t", 2, lines(added(partitionValues={"day": "x"}))).status == 422


@one_engine
def test_a_time_in_a_commit_cannot_stop_later_commits(caller: Caller, catalog: Catalog, root: Path) -> None:
    timed = protocol(min_reader_version=1, min_writer_version=7, writer_features=("inCommitTimestamp",))
    on = metadata(configuration={"delta.enableInCommitTimestamps": "true"})
    start = [json.loads(encode_action(a)) for a in (info("CREATE", inCommitTimestamp=5), timed, on)]
    assert caller.commit(root / "t", 0, lines(*start)).word == "committed"
    for time in (2**63 - 1, 2**63, 2**60, -1):
        late = json.loads(encode_action(info("WRITE", inCommitTimestamp=time)))
        said = caller.commit(root / "t", 1, lines(late, added()))
        assert (said.status, said.word) == (422, "refused"), said


@one_engine
def test_many_actions_in_one_commit_are_taken(caller: Caller, catalog: Catalog, root: Path) -> None:
    assert caller.commit(root / "t", 0, first()).word == "committed"
    many = appended(*(f"{n}.parquet" for n in range(5000)))
    assert caller.commit(root / "t", 1, many).word == "committed"
    assert len(list(catalog.files("t"))) == 5000
