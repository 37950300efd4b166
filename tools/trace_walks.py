"""Count the modules and functions of deltalakedb that four common operations run through.

Run ``python tools/trace_walks.py`` to print one line per operation, ``--modules append`` to list the
modules of one with their calls, and ``--tree append`` to print the calls as they nest. Each operation
runs once before it is traced, so imports and caches do not count. A generator counts each time it resumes.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa

import deltalakedb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

SOURCE = str(Path(deltalakedb.__file__).parent)


class Trace:
    """Calls of functions below `SOURCE`, in every thread."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()
        self.tree: list[tuple[int, str]] = []

    @property
    def modules(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for (module, _), calls in self.calls.items():
            found[module] += calls
        return found

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(SOURCE) or code.co_name.startswith("<"):
            return
        module = code.co_filename[len(SOURCE) + 1 :]
        self.calls[module, code.co_qualname] += 1
        depth, outer = 0, frame.f_back
        while outer is not None:
            depth += outer.f_code.co_filename.startswith(SOURCE)
            outer = outer.f_back
        self.tree.append((depth, f"{module}: {code.co_qualname}"))

    @contextlib.contextmanager
    def running(self) -> Iterator[Trace]:
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        try:
            yield self
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]


def walks(folder: Path, catalog_uri: str) -> dict[str, Callable[[], object]]:
    """The operations, ready to run any number of times."""
    rows = pa.table({"id": [1, 2, 3], "city": ["Rome", "Oslo", "Lima"]})
    catalog = deltalakedb.Catalog(catalog_uri)
    orders = f"{catalog_uri}?table=orders"
    for name in ("orders", "returns"):
        catalog.write(name, rows, location=folder / name)
    for n in range(3):
        deltalake.write_deltalake(folder / f"plain{n}", rows)
        deltalake.write_deltalake(folder / f"plain{n}", rows, mode="append")
    imports = iter(range(3))

    def append() -> None:
        deltalakedb.write_deltalake(orders, rows, mode="append")

    def merge() -> None:
        merger = deltalakedb.DeltaTable(orders).merge(rows, "t.id = s.id", source_alias="s", target_alias="t")
        merger.when_matched_update_all().when_not_matched_insert_all().execute()

    def two_tables() -> None:
        with catalog.transaction() as transaction:
            transaction.write("orders", rows)
            transaction.write("returns", rows)

    def import_() -> None:
        n = next(imports)
        deltalakedb.import_table(folder / f"plain{n}", f"{catalog_uri}?table=imported{n}")

    return {"append": append, "merge": merge, "two-table commit": two_tables, "import": import_}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--modules", metavar="WALK", help="list the modules of one operation")
    parser.add_argument("--tree", metavar="WALK", help="print the calls of one operation as they nest")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name, run in walks(Path(folder), f"deltasql://sqlite/{folder}/catalog.db").items():
            run()
            with Trace().running() as trace:
                run()
            if arguments.tree == name:
                print(*(f"{'  ' * depth}{call}" for depth, call in trace.tree), sep="\n")
            elif arguments.modules == name:
                print(*(f"{calls:6} {module}" for module, calls in trace.modules.most_common()), sep="\n")
            elif not (arguments.tree or arguments.modules):
                functions, calls = len(trace.calls), trace.calls.total()
                print(f"{name:18} {len(trace.modules):4} modules {functions:5} functions {calls:6} calls")


if __name__ == "__main__":
    main()
