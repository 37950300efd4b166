"""Predicates never leave out a file with a row that delta-rs finds them true for."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from deltalakedb import DeltaTable, write_deltalake
from deltalakedb.exceptions import PredicateError
from deltalakedb.protocol.json_text import decode_json
from deltalakedb.table.handle import require_handle
from deltalakedb.table.read.scan import raw_table
from support.conditions import DRAWN, SEED, Draw, files

if TYPE_CHECKING:
    from collections.abc import Callable


def test_every_file_is_picked_that_holds_a_row_for_which_delta_rs_finds_a_predicate_true(
    table_uri: Callable[[str], str],
) -> None:
    uri = table_uri("fuzz")
    for data in files():
        write_deltalake(uri, data, mode="append", partition_by=["pd", "pt", "ps"])
    table: Any = DeltaTable(uri)
    # without statistics delta-rs looks into every file
    blind = [replace(add, stats=None) for add in require_handle(table).source.adds()]
    whole = raw_table(require_handle(table).source.snapshot, blind, require_handle(table).root)
    draw = Draw(SEED)
    asked = pruned = 0
    for text in [draw.condition() for _ in range(6 * DRAWN)]:
        if "NULL" in text.replace("IS NULL", "").replace("IS NOT NULL", ""):
            continue  # delta-rs's scan takes `x AND NULL` for `x`, unlike its delete
        try:
            found = pa.RecordBatchReader.from_stream(whole.raw.scan(columns=["fid"], predicate=text))
            wanted = set(found.read_all()["fid"].to_pylist())
        except Exception:
            continue
        try:
            where = require_handle(table).where(text)
        except PredicateError:
            continue  # the user is told
        asked += 1
        picked = {
            decode_json(add.stats)["minValues"]["fid"] for add in require_handle(table).source.adds(where)
        }
        pruned += len(picked) < 12
        assert wanted <= picked, (SEED, text, where, sorted(wanted - picked))
    assert asked > DRAWN
    assert pruned > 0.1 * asked
