"""Paths of data files: encoded, decoded, resolved, and never outside where that is forbidden."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltalakedb.exceptions import OutsidePathError, ProtocolError
from deltalakedb.protocol.paths import (
    TablePaths,
    canonical_path,
    decode_path,
    encode_path,
    is_absolute,
    is_url,
    relative_to,
)

if TYPE_CHECKING:
    from pathlib import Path

segments = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/\x00\\"), min_size=1).filter(
    lambda s: s not in (".", "..")
)
paths = st.lists(segments, min_size=1, max_size=4).map("/".join)


@given(paths)
def test_a_path_survives_a_round_trip(path: str) -> None:
    encoded = encode_path(path)
    assert encoded.isascii()
    assert " " not in encoded
    assert urlsplit(encoded).scheme == ""
    assert decode_path(encoded) == path


@given(paths.filter(lambda p: not is_url(p)))
def test_a_relative_path_lies_below_every_root(path: str) -> None:
    for root in ("/data/t", "/data/t/", "s3://bucket/t", "file:///data/t", "memory:///"):
        found = TablePaths(root).resolve(encode_path(path))
        assert found.endswith(f"/{path}")
        assert relative_to(root, encode_path(path)) == path


@given(st.text(max_size=30))
def test_no_text_escapes_the_root(path: str) -> None:
    try:
        found = TablePaths("/data/t").resolve(path)
    except ProtocolError:
        return
    assert found.startswith("/data/t/")
    assert ".." not in found.split("/")


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("a%20b/c.parquet", "a b/c.parquet"),
        ("p=a%252Fb/c", "p=a%2Fb/c"),
        ("%C3%A9", "é"),
        ("é", "é"),
        ("100%", "100%"),
        ("a%FFb", "a%FFb"),
        ("a+b", "a+b"),
        ("file:/x/y", "/x/y"),
        ("file:///x/y%20z", "/x/y z"),
        ("FILE:///x", "/x"),
        ("/x/y", "/x/y"),
        ("s3://b/k%20l", "s3://b/k l"),
        ("file-1.parquet", "file-1.parquet"),
    ],
)
def test_every_file_has_one_canonical_path(written: str, canonical: str) -> None:
    assert canonical_path(written) == canonical


@pytest.mark.parametrize(
    ("root", "path", "found"),
    [
        ("/t", "a%20b", "/t/a b"),
        ("/", "a", "/a"),
        ("/with space", "a", "/with space/a"),
        ("/with%20percent", "a", "/with%20percent/a"),
        ("file:///with%20space/", "a", "/with space/a"),
        ("s3://b/t/", "x=1/a%3Ab", "s3://b/t/x=1/a:b"),
        ("s3://b/t", "s3://b/t/a", "s3://b/t/a"),
        ("/t", "/elsewhere/a", "/elsewhere/a"),
        ("/t", "file:/elsewhere/a%20b", "/elsewhere/a b"),
        ("memory:///", "a", "memory:///a"),
        ("/t", "a..b/..c", "/t/a..b/..c"),
    ],
)
def test_paths_are_resolved_against_the_root(root: str, path: str, found: str) -> None:
    assert TablePaths(root, outside=True).resolve(path) == found


@pytest.mark.parametrize(
    "path",
    [
        "../a",
        "a/../b",
        "..",
        "%2e%2e/a",
        "a/%2E%2E/b",
        "a%2F..%2Fb",
        "a\\..\\b",
        "/t/../etc",
        "file:///t/../x",
        "",
        "a%00b",
    ],
)
def test_climbing_and_empty_paths_are_always_refused(path: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        TablePaths("/t", outside=True).resolve(path)
    assert caught.value.suggestion


@pytest.mark.parametrize(
    ("root", "path"),
    [
        ("/t", "/elsewhere/a"),
        ("/t", "/table/a"),
        ("/t", "/t"),
        ("/t", "file:///elsewhere/a"),
        ("/t", "s3://b/t/a"),
        ("s3://b/t", "s3://other/t/a"),
        ("s3://b/t", "s3://b/table/a"),
        ("s3://b/t", "/t/a"),
    ],
)
def test_files_elsewhere_are_refused_where_they_must_lie_inside(root: str, path: str) -> None:
    with pytest.raises(ProtocolError, match="outside"):
        TablePaths(root).resolve(path)
    assert relative_to(root, path) is None


@pytest.mark.parametrize(
    "path",
    [
        "\\etc\\passwd",
        "%5Cetc%5Cpasswd",
        "http:evil/x",
        "http:\\\\evil\\x",
        "https://169.254.169.254/x",
        "C:\\x",
        "http:\\\\evil\\x=1",
        "http:%2F%2Fevil=1/x",
        "s3://evil=1/x",
        "file:/etc=1/x",
        "file%3A///etc/passwd",
        "%2Fetc%2Fpasswd",
        "//host/x",
        "..",
        "a/%2e%2e/%2e%2e/x",
    ],
)
def test_no_spelling_leads_outside_unless_allowed(path: str) -> None:
    with pytest.raises(OutsidePathError) as caught:
        TablePaths("/t", table="orders").resolve(path)
    assert caught.value.table == "orders"
    assert path in str(caught.value).replace("\\\\", "\\")


@pytest.mark.parametrize("path", ["a:b=1/x.parquet", "file:=1/x.parquet", "http:x=s3:1/x.parquet"])
@pytest.mark.parametrize("root", ["/t", "s3://bucket/t"])
def test_a_partition_folder_with_a_colon_in_its_name_is_below_the_root(root: str, path: str) -> None:
    assert TablePaths(root).resolve(path) == f"{root}/{path}"
    assert TablePaths(root).resolve_all([path]) == [f"{root}/{path}"]
    assert relative_to(root, path) == path


def test_a_refused_path_names_the_setting() -> None:
    with pytest.raises(OutsidePathError, match=r"catalog\.allow_outside_paths"):
        TablePaths("/t").resolve("s3://bucket/secret")


def test_a_root_behind_a_link_is_found_in_both_spellings(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    (real / "t").mkdir(parents=True)
    link.symlink_to(real)
    for root, other in ((real, link), (link, real)):
        paths = TablePaths(str(root / "t"))
        assert paths.resolve(f"file://{other}/t/a.parquet") == f"{other}/t/a.parquet"
        with pytest.raises(OutsidePathError):
            paths.resolve(f"{other}/u/a.parquet")


@pytest.mark.parametrize(
    ("root", "path", "relative"),
    [
        ("/t", "/t/x=1/a%20b", "x=1/a b"),
        ("/t/", "file:///t/a", "a"),
        ("file:/t", "/t/a", "a"),
        ("s3a://b/t", "s3://b/t/a", "a"),
        ("s3://b/t", "s3a://b/t/a", "a"),
        ("s3://b/t", "S3://b/t/a", "a"),
        ("gs://b/t", "gcs://b/t/a", "a"),
        ("s3://b/with%20space", "s3://b/with%20space/a", "a"),
        ("abfss://c@a.dfs.core.windows.net/t", "abfs://c@a.dfs.core.windows.net/t/a", "a"),
    ],
)
def test_absolute_paths_inside_become_relative(root: str, path: str, relative: str) -> None:
    assert relative_to(root, path) == relative
    assert TablePaths(root).resolve(path)


def test_absolute_paths_are_told_from_relative_ones() -> None:
    assert [is_absolute(p) for p in ("/a", "s3://b/a", "file:/a", "a", "x=1/a", "a:b", "c:/x")] == [
        True,
        True,
        True,
        False,
        False,
        False,
        False,
    ]


def test_an_absolute_url_keeps_its_scheme() -> None:
    assert encode_path("s3://bucket/a b:c") == "s3://bucket/a%20b:c"


def test_a_path_that_is_no_unicode_is_refused() -> None:
    with pytest.raises(ProtocolError, match="Unicode"):
        encode_path("a\udcff")


def test_a_table_without_root_is_refused() -> None:
    with pytest.raises(ProtocolError, match="root"):
        TablePaths("").resolve("a")


@pytest.mark.parametrize(
    "odd", ["x=1/a%20b", "/abs/a", "file:///data/a", "s3://bucket/a", "t=12:00/a", "a..b", "//a"]
)
def test_many_paths_resolve_as_each_does_alone(odd: str) -> None:
    plain = ["x=1/a.parquet", "b.parquet"]
    for paths in (plain, [*plain, odd], [odd, *plain], []):
        allowed = TablePaths("/data/t/", outside=True)
        assert allowed.resolve_all(paths) == [allowed.resolve(p) for p in paths]


@pytest.mark.parametrize("bad", ["", "../a", "x/../a", "a\x00b", "/etc/a", "\\etc", "s3://b/a"])
def test_one_bad_path_among_many_is_refused(bad: str) -> None:
    with pytest.raises(ProtocolError):
        TablePaths("/data/t").resolve_all(["a.parquet", bad, "b.parquet"])
