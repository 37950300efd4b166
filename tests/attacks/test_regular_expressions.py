"""Every regular expression of the library, and what uses it, on long texts made to slow it down."""

from __future__ import annotations

import ast
import importlib
import multiprocessing
import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import deltalakedb
from deltalakedb.address import parse_address
from deltalakedb.exceptions import DeltaSqlError
from deltalakedb.protocol import partition
from deltalakedb.protocol.predicate_parser import parse_predicate
from deltalakedb.protocol.properties import check_properties, duration_ms
from deltalakedb.protocol.schema import parse_schema
from deltalakedb.redaction import redact
from deltalakedb.storage.remote import _redacted
from deltalakedb.table.scratch import without_scratch
from support.actions import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable

SRC = Path(deltalakedb.__file__).parent
SIZE = 50_000
#: Processor time for one text. Linear work takes milliseconds, quadratic work more than a second.
#: A child counts its own processor time, so a busy machine changes nothing.
LIMIT_S = 0.6
METHODS = ("search", "match", "fullmatch", "sub", "findall", "finditer", "split")
#: patterns that read only files of this package
OWN_FILES = {"metastore.statements", "metastore.migrations"}
#: patterns whose caller cuts the text first, with the most characters that it lets through
BOUNDED = {("metastore.engines.duckdb", "_HOLDER"): 2000}
#: what is repeated: characters and words on which some pattern could begin, go on, or almost end
PIECES = (
    *"a1_ \n/:@=-.,%$`'\"([{\\",
    *("a ", "1 ", "/:", "a:", "@:", "/@", "a.", "a-", "1.", "''", '""', "``", "a`", "${", "--", "/*", "/**/"),
    *("(/*", "*/", "\n ", "a=", "1e", "%4", "\x1b[", "[a]:", "a,", ":/", "pwd", "pwd ", "token=", "token='"),
    *('token="', 'token=\\"', '\\"', "\\\\"),
    *("secret ", "sig", "bearer ", "http://", "https://a?", "held in a ", "status code: ", "deltasql-"),
    *("/deltasql-", "/_deltasql/a-", "Debug source:", "\n\nDebug source", "decimal(", "1 day", "interval "),
    *("local[", "dl_", '"dl', "\\u00", "0000-", "version "),
)


def texts() -> list[str]:
    return [piece * (SIZE // len(piece)) + end for piece in PIECES for end in ("", "\x00")]


def modules() -> dict[str, ast.Module]:
    found = {}
    for path in sorted(SRC.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if re.search(r"^import re$", source, re.MULTILINE):
            name = ".".join(path.relative_to(SRC).with_suffix("").parts)
            found[name] = ast.parse(source)
    return found


def patterns() -> list[tuple[str, str, re.Pattern[Any], frozenset[str]]]:
    """Every pattern with its module, its name and the methods it is used with."""
    found = []
    for module, tree in modules().items():
        used: dict[str, set[str]] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr in METHODS:
                used.setdefault(node.value.id, set()).add(node.attr)
        for name, value in vars(importlib.import_module(f"deltalakedb.{module}")).items():
            if isinstance(value, re.Pattern):
                found.append((module, name, value, frozenset(used.get(name, {"fullmatch"}))))
    return found


def test_every_pattern_is_a_named_constant() -> None:
    """A pattern inside of a function would escape the test below."""
    for module, tree in modules().items():
        for node in ast.walk(tree):
            inline = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
            assert not (inline and node.value.id == "re" and node.attr in METHODS), (module, node.lineno)
    assert len(patterns()) > 40


def apply_patterns(report: Any) -> None:
    attacks = texts()
    for module, name, pattern, methods in patterns():
        if module in OWN_FILES:
            continue
        for method in methods:
            for text in attacks:
                report(f"{module}.{name}.{method} on {text[:20]!r}")
                given: Any = text[: BOUNDED.get((module, name), SIZE + 1)]
                if isinstance(pattern.pattern, bytes):
                    given = given.encode()
                if method == "sub":
                    pattern.sub("", given)
                else:
                    found = getattr(pattern, method)(given)
                    for _ in found if method == "finditer" else ():
                        pass


CALLS: dict[str, Callable[[str], object]] = {
    "redact": redact,
    "parse_address": lambda text: parse_address(f"deltasql://postgres/{text[:16_000]}"),
    "parse_predicate": lambda text: parse_predicate(text[:50_000], parse_schema(SCHEMA)),
    "duration": duration_ms,
    "properties": lambda text: check_properties({"delta.checkpointInterval": text}),
    "double": lambda text: partition.canonical(text, "double"),
    "decimal": lambda text: partition.canonical(text, "decimal(10,2)"),
    "integer": lambda text: partition.canonical(text, "long"),
    "date": lambda text: partition.canonical(text, "date"),
    "timestamp": lambda text: partition.canonical(text, "timestamp"),
    "binary": lambda text: partition.canonical(text, "binary"),
    "error of a store": lambda text: _redacted(ValueError(text), ()),
    "error of delta-rs": lambda text: without_scratch(text, "/lake/t"),
}


def apply_calls(report: Any) -> None:
    for name, call in CALLS.items():
        for text in texts():
            report(f"{name} of {text[:20]!r}")
            try:
                call(text)
            except DeltaSqlError:
                continue


def compute_numbers(report: Any) -> None:
    schema = parse_schema(SCHEMA)
    for text in (
        "id > 1e999999999",
        "id = 1e-999999999",
        "id < CAST('1e999999999' AS BIGINT)",
        "id < CAST('-1e999999999' AS DECIMAL(10,2))",
        "id < CAST(1 AS DECIMAL(10,99999999999))",
        f"id < {'9' * SIZE}",
        f"id < 0.{'9' * SIZE}",
        f"id < 1e{'9' * SIZE}",
    ):
        report(text[:40])
        parse_predicate(text, schema)


def _child(work: Callable[[Any], None], begun: Any) -> None:
    def report(what: str) -> None:
        begun.value = what.encode()[:200]
        signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_S)  # without a handler, it ends the process

    work(report)


@pytest.mark.parametrize("work", [apply_patterns, apply_calls, compute_numbers])
def test_no_text_takes_more_than_linear_time(work: Callable[[Any], None]) -> None:
    context = multiprocessing.get_context("fork")
    begun = context.Array("c", 201)
    child = context.Process(target=_child, args=(work, begun), daemon=True)
    child.start()
    child.join()
    assert child.exitcode == 0, begun.value.decode(errors="replace")
