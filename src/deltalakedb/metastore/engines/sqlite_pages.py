"""Rows as an image of a SQLite database, from which SQLite copies them as they are.

Binding values row by row takes several times as long. The format is documented and fixed for good
(sqlite.org/fileformat2.html); what is made here is only read, by SQLite itself, and then thrown away.
"""

from __future__ import annotations

import sqlite3
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from deltalakedb.metastore.engines.byte_rows import ByteRows, Numbers, big_endian, in_order, integers, lengths

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: the largest that there are: fewer rows need pages of their own
_PAGE = 65_536
#: what a page holds of a row at the most, before it goes on elsewhere
_MOST = _PAGE - 35
_LEAF_HEADER, _INNER_HEADER = 8, 12
_LEAF, _INNER = 0x0D, 0x05
#: serial types of the format
_NULL, _ZERO, _ONE, _TEXT = 0, 8, 9, 13
#: widths of whole numbers, and their serial types
_WIDTHS = ((1, 1), (2, 2), (3, 3), (4, 4), (6, 5), (8, 6))
#: a header of so many bytes has its length in one
_SHORT = 127


class PageMaker:
    """Makes images that hold rows of one table.

    Args:
        name: The table.
        ddl: The statement that made it.
        columns: Its columns in order.
        key: The column that is the row's id.
    """

    def __init__(self, name: str, ddl: str, columns: Sequence[str], key: str) -> None:
        self.name = name
        self._columns = columns
        self._key = key
        empty = sqlite3.connect(":memory:")
        try:
            empty.execute(f"PRAGMA page_size = {_PAGE}")
            empty.execute("PRAGMA auto_vacuum = 0")
            empty.execute(ddl)
            self._empty = empty.serialize()
        finally:
            empty.close()

    def image(self, data: pa.Table, constants: Mapping[str, int | bool | str]) -> bytes | None:
        """A database whose only table has these rows, by ascending ids; None if a row does not fit."""
        if len(self._empty) != 2 * _PAGE or not data.num_rows:
            return None
        ids, missing = integers(in_order(data, [self._key])[0])
        if missing is not None or (np.diff(ids) <= 0).any() or ids[0] < 0:
            return None
        body, header = ByteRows(data.num_rows), ByteRows(data.num_rows)
        for name, array in zip(self._columns, in_order(data, self._columns), strict=True):
            if name == self._key:
                header.constant(bytes([_NULL]))  # it stands before the row
            elif array is None:
                _constant(header, body, constants.get(name))
            elif pa.types.is_string(array.type):
                _texts(header, body, array)
            else:
                _numbers(header, body, *integers(array))
        if header.sizes.max() >= _SHORT:
            return None
        payload = header.sizes + 1 + body.sizes
        if payload.max() > _MOST:
            return None
        cells = ByteRows(data.num_rows)
        _varints(cells, payload)
        _varints(cells, ids)
        cells.fixed((header.sizes + 1).astype(np.uint8).reshape(-1, 1))
        cells.extend(header)
        cells.extend(body)
        return self._pages(ids, cells)

    def _pages(self, ids: Numbers, cells: ByteRows) -> bytes | None:
        ends = np.cumsum(cells.sizes)
        content = np.frombuffer(cells.join().buffers()[2], np.uint8)
        breaks, room = [0], np.cumsum(cells.sizes + 2)
        while breaks[-1] < len(ids):
            done = int(room[breaks[-1] - 1]) if breaks[-1] else 0
            breaks.append(int(np.searchsorted(room, done + _PAGE - _LEAF_HEADER, "right")))
        many = len(breaks) - 1
        if many == 1:
            image = np.frombuffer(bytearray(self._empty), np.uint8)
            _leaf(image[_PAGE:], content, cells.sizes, ends)
            return image.tobytes()
        image = np.zeros((2 + many) * _PAGE, np.uint8)
        image[:_PAGE] = np.frombuffer(self._empty, np.uint8, _PAGE)
        image[28:32] = list((2 + many).to_bytes(4, "big"))
        begin = 0
        for number, (first, after) in enumerate(pairwise(breaks)):
            page = image[(2 + number) * _PAGE : (3 + number) * _PAGE]
            end = int(ends[after - 1])
            _leaf(page, content[begin:end], cells.sizes[first:after], ends[first:after] - begin)
            begin = end
        root = _root(many, [int(ids[after - 1]) for after in breaks[1:]])
        if root is None:
            return None
        image[_PAGE : 2 * _PAGE] = np.frombuffer(root, np.uint8)
        return image.tobytes()


def _leaf(page: Numbers, content: Numbers, sizes: Numbers, ends: Numbers) -> None:
    """Fill a page with cells; they lie at its end in their order."""
    begin = _PAGE - len(content)
    page[begin:] = content
    many = len(sizes)
    head = bytes([_LEAF, 0, 0]) + many.to_bytes(2, "big") + begin.to_bytes(2, "big") + b"\0"
    page[:_LEAF_HEADER] = np.frombuffer(head, np.uint8)
    pointers = (begin + ends - sizes).astype(">u2").view(np.uint8)
    page[_LEAF_HEADER : _LEAF_HEADER + 2 * many] = pointers


def _root(many: int, last_ids: Sequence[int]) -> bytes | None:
    """The page above the leaves, which are the pages from the third on; None if they are too many."""
    cells = [(3 + n).to_bytes(4, "big") + _varint(last) for n, last in enumerate(last_ids[:-1])]
    begin, pointers = _PAGE, b""
    for cell in cells:
        begin -= len(cell)
        pointers += begin.to_bytes(2, "big")
    rightmost = (2 + many).to_bytes(4, "big")
    head = (
        bytes([_INNER, 0, 0]) + len(cells).to_bytes(2, "big") + begin.to_bytes(2, "big") + b"\0" + rightmost
    )
    gap = begin - len(head) - len(pointers)
    return None if gap < 0 else head + pointers + bytes(gap) + b"".join(reversed(cells))


def _constant(header: ByteRows, body: ByteRows, value: int | bool | str | None) -> None:
    if value is None:
        header.constant(bytes([_NULL]))
    elif isinstance(value, str):
        raw = value.encode()
        header.constant(_varint(_TEXT + 2 * len(raw)))
        body.constant(raw)
    elif value in (0, 1):
        header.constant(bytes([_ONE if value else _ZERO]))
    else:
        width, kind = _width(int(value), int(value))
        header.constant(bytes([kind]))
        body.constant(int(value).to_bytes(width, "big", signed=True))


def _texts(header: ByteRows, body: ByteRows, array: pa.Array) -> None:
    sizes = lengths(array)
    kinds = _TEXT + 2 * sizes
    if array.null_count:
        kinds = np.where(array.is_valid().to_numpy(zero_copy_only=False), kinds, _NULL)
        array = array.fill_null("")
    _varints(header, kinds)
    body.ragged(array.cast(pa.binary()), sizes)


def _numbers(header: ByteRows, body: ByteRows, values: Numbers, valid: Numbers | None) -> None:
    low, high = int(values.min()), int(values.max())
    if valid is None and low == high:
        _constant(header, body, low)
        return
    width, kind = _width(low, high)
    matrix = big_endian(values, width)
    if valid is None:
        header.constant(bytes([kind]))
        body.fixed(matrix)
        return
    header.fixed(np.where(valid, kind, _NULL).astype(np.uint8).reshape(-1, 1))
    body.cut(matrix, np.repeat(valid[:, None], width, axis=1))


def _width(low: int, high: int) -> tuple[int, int]:
    """The least width that holds all numbers between two, and its serial type."""
    return next(
        (width, kind)
        for width, kind in _WIDTHS
        if -(1 << (8 * width - 1)) <= low and high < 1 << (8 * width - 1)
    )


def _varint(value: int) -> bytes:
    """A number below 2 to the power of 56 in groups of seven bits, the highest first."""
    groups = [value & 0x7F]
    while value := value >> 7:
        groups.append(value & 0x7F | 0x80)
    return bytes(reversed(groups))


def _varints(rows: ByteRows, values: Numbers) -> None:
    """Add a number to each row, in groups of seven bits."""
    shortest, longest = len(_varint(int(values.min()))), len(_varint(int(values.max())))
    matrix = np.empty((len(values), longest), np.uint8)
    for place in range(longest):
        group = (values >> (7 * (longest - 1 - place))) & 0x7F
        matrix[:, place] = group | (0x80 if place < longest - 1 else 0)
    if shortest == longest:
        rows.fixed(matrix)
        return
    # the groups in front of the first that holds anything are left out
    least = np.array(
        [0 if place == longest - 1 else 1 << (7 * (longest - 1 - place)) for place in range(longest)]
    )
    rows.cut(matrix, values[:, None] >= least)


def page_maker(connection: sqlite3.Connection, table: str) -> PageMaker | None:
    """The maker of images of a table; None if this SQLite reads no images, or the table has no id."""
    if not hasattr(connection, "deserialize"):
        return None
    if connection.execute("PRAGMA main.encoding").fetchone()[0] != "UTF-8":
        return None
    found: Any = connection.execute(
        "SELECT sql FROM main.sqlite_master WHERE type = 'table' AND name = ?", (table,)
    ).fetchone()
    columns = connection.execute(f"PRAGMA main.table_info({table})").fetchall()
    keys = [c[1] for c in columns if c[5] and c[2].upper() == "INTEGER"]
    if found is None or len(keys) != 1 or sum(1 for c in columns if c[5]) != 1:
        return None
    return PageMaker(table, found[0], [c[1] for c in columns], keys[0])
