"""What importing costs beside stock ``deltalake``: fresh processes in turn, several rounds, ratios.

Each process imports one thing and reports the time of the import alone. Compare processor time on a busy
machine; wall-clock time is shown beside it, and so is the processor time of the whole process.

    python benchmarks/imports_cost.py --rounds 20
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys

STOCK = "from deltalake import DeltaTable, write_deltalake"
OURS = "from deltalakedb import DeltaTable, write_deltalake"
CASES = {
    "stock: DeltaTable, write_deltalake": STOCK,
    "ours: DeltaTable, write_deltalake": OURS,
    "ours: import deltalakedb": "import deltalakedb",
    "ours: Catalog": "from deltalakedb import Catalog",
    "deltasql --help": "import runpy, sys, io, contextlib; sys.argv = ['deltasql', '--help']\n"
    "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n"
    "    runpy.run_module('deltalakedb.cli.main', run_name='__main__')",
    "pyarrow alone": "import pyarrow",
}
PROGRAM = """
import json, time
began = time.perf_counter(), time.process_time()
{code}
ended = time.perf_counter(), time.process_time()
print(json.dumps({{"wall": ended[0] - began[0], "cpu": ended[1] - began[1], "process": ended[1]}}))
"""


def measure(code: str) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(code=code)], capture_output=True, text=True, check=True
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="What importing costs beside stock deltalake.")
    parser.add_argument("--rounds", type=int, default=10, help="fresh processes of each kind (default: 10)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    for code in CASES.values():
        measure(code)  # compiled files and the disk's cache are warm for all
    times: dict[str, list[dict[str, float]]] = {name: [] for name in CASES}
    for _ in range(options.rounds):
        for name, code in CASES.items():
            times[name].append(measure(code))
    medians = {
        name: {key: 1000 * statistics.median(t[key] for t in found) for key in found[0]}
        for name, found in times.items()
    }
    if options.json:
        print(json.dumps(medians, indent=2))
        return
    stock = next(iter(medians.values()))
    print(f"{options.rounds} fresh processes each, in turn; medians in ms")
    print("| import | processor | wall clock | process, processor | times stock |")
    print("|---|---|---|---|---|")
    for name, found in medians.items():
        row = (found["cpu"], found["wall"], found["process"], found["cpu"] / stock["cpu"])
        print(f"| {name} | {row[0]:.0f} | {row[1]:.0f} | {row[2]:.0f} | {row[3]:.2f} |")


if __name__ == "__main__":
    main()
