"""Opening and planning beside stock ``deltalake``: one run, every system in turn, medians and spread.

Example:
    python benchmarks/plan.py --files 980 --commits 100 --rounds 2
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from catalogs import Catalogs, run_worker
from generated_log import Shape, ensure_log

HERE: Final = Path(__file__).resolve().parent
SYSTEMS: Final = ("stock", "sqlite", "postgres", "duckdb")
#: rows of the table, in order, with what they mean
FIGURES: Final = {
    "cold partition": "open + first plan by partition",
    "cold range": "open + first plan by 0.1 % of a clustered column's range",
    "cold unclustered": "open + first plan by 0.1 % of an unclustered column's range",
    "cold string": "open + first plan by a text",
    "cold open": "open",
    "warm open": "open again",
    "warm partition": "plan by partition",
    "warm range": "plan by a clustered range",
    "warm unclustered": "plan by an unclustered range",
    "warm string": "plan by a text",
    "list": "list all files",
    "add actions": "get_add_actions(flatten=True)",
    "travel": "open the middle version + plan by partition",
    "history": "history(10)",
    "imports": "import the package (in no other figure)",
}
#: how many times faster than stock the first plan of a fresh process has to be
GOALS_FROM: Final = 98_000
GOALS: Final = {"sqlite": 25.0, "postgres": 25.0, "duckdb": 5.0}


def main() -> int:
    """Measure, print a table, write JSON."""
    asked = _options()
    shape = Shape(asked.files, asked.commits, asked.checkpoint_every)
    log = asked.data / shape.name
    print(f"{shape.files:,} live files in {shape.commits:,} commits, below {asked.data}", flush=True)
    truth = ensure_log(log, shape)
    catalogs = Catalogs(asked.data, log)
    imports = {s: catalogs.ensure(s, fresh=asked.fresh) for s in asked.systems}
    before = os.getloadavg()
    raw: dict[str, dict[str, list[float]]] = {s: {} for s in asked.systems}
    peaks: dict[str, list[float]] = {s: [] for s in asked.systems}
    for number in range(asked.rounds):
        for system in asked.systems:
            cold = [(plan, 0) for plan in ("range", "unclustered", "string", "partition")] * asked.cold
            for task, repeats in (*cold[:-1], ("partition", asked.repeats)):
                note = [f"--repeats={repeats}"]
                done = run_worker(task, system, catalogs.address(system), str(log / "truth.json"), note)
                for name, values in done["figures"].items():
                    raw[system].setdefault(name, []).extend(values)
                peaks[system].append(done["peak_mb"])
        print(f"round {number + 1} of {asked.rounds} done", file=sys.stderr, flush=True)
    result = {
        "machine": _machine(),
        "load": {"before": _load(before), "after": _load(os.getloadavg())},
        "shape": {"files": shape.files, "commits": shape.commits, "versions": truth.version + 1},
        "rounds": asked.rounds,
        "milliseconds": {s: {k: _summary(v) for k, v in raw[s].items()} for s in asked.systems},
        "faster_than_stock": _ratios(raw),
        "peak_mb": {s: max(v) for s, v in peaks.items()},
        "import": {s: i for s, i in imports.items() if i},
    }
    _print(result, asked.systems)
    if asked.json:
        asked.json.parent.mkdir(parents=True, exist_ok=True)
        asked.json.write_text(json.dumps(result, indent=1) + "\n")
        print(f"\nwritten to {asked.json}")
    return 0


def _options() -> argparse.Namespace:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--files", type=int, default=98_000, help="live files at the newest version")
    options.add_argument("--commits", type=int, default=10_000)
    options.add_argument("--checkpoint-every", type=int, default=100)
    options.add_argument("--rounds", type=int, default=5, help="turns of every system")
    options.add_argument("--cold", type=int, default=3, help="fresh processes of each kind in a round")
    options.add_argument("--repeats", type=int, default=5, help="warm repeats in each process")
    options.add_argument("--systems", type=lambda t: tuple(t.split(",")), default=SYSTEMS)
    options.add_argument("--fresh", action="store_true", help="import again, to measure it")
    options.add_argument("--data", type=Path, default=HERE / "data")
    options.add_argument("--json", type=Path, help="where to write all figures")
    asked = options.parse_args()
    if unknown := set(asked.systems) - set(SYSTEMS):
        options.error(f"unknown systems {', '.join(sorted(unknown))}: choose from {', '.join(SYSTEMS)}")
    asked.data = asked.data.resolve()
    return asked


def _load(averages: tuple[float, ...]) -> list[float]:
    return [round(x, 2) for x in averages]


def _machine() -> dict[str, Any]:
    packages = ("deltalake", "pyarrow", "duckdb", "psycopg")
    return {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": {p: version(p) for p in packages},
    }


def _summary(values: list[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(values), 3),
        "min": min(values),
        "max": max(values),
        "n": len(values),
    }


def _ratios(raw: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, float]]:
    stock = raw.get("stock", {})
    return {
        system: {
            name: round(statistics.median(stock[name]) / statistics.median(values), 2)
            for name, values in figures.items()
            if name in stock
        }
        for system, figures in raw.items()
        if system != "stock" and stock
    }


def _print(result: dict[str, Any], systems: tuple[str, ...]) -> None:
    head = ["milliseconds: median [min .. max]", *systems, *(f"{s} x" for s in systems if s != "stock")]
    rows = [head, ["---"] * len(head)]
    for name, meaning in FIGURES.items():
        cells = [_cell(result["milliseconds"][s].get(name)) for s in systems]
        ratios = result["faster_than_stock"]
        times = [_times(ratios.get(s, {}).get(name)) for s in systems if s != "stock"]
        rows.append([meaning, *cells, *times])
    rows.append(["peak memory, MB", *(f"{result['peak_mb'][s]:.0f}" for s in systems)])
    rows[-1] += [""] * (len(head) - len(rows[-1]))
    widths = [max(len(r[i]) for r in rows) for i in range(len(head))]
    print()
    for row in rows:
        print("| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |")
    cores, load = result["machine"]["cores"], result["load"]
    print(f"\nload average of {cores} cores: before {load['before']}, after {load['after']}")
    for system, done in result["import"].items():
        seconds = done["figures"]["import"][0] / 1000
        versions = int(done["figures"]["versions"][0])
        print(
            f"import into {system}: {seconds:.1f} s for {versions:,} versions, peak {done['peak_mb']:.0f} MB"
        )
    if result["shape"]["files"] < GOALS_FROM:
        print(f"the goals are meant for {GOALS_FROM:,} files and more")
        return
    for system, goal in GOALS.items():
        found = result["faster_than_stock"].get(system, {})
        for name in ("cold partition", "cold range"):
            if name in found:
                verdict = "reached" if found[name] >= goal else "MISSED"
                print(f"goal {system}, {name}: at least {goal:g} times, found {found[name]:.1f}: {verdict}")


def _cell(found: dict[str, float] | None) -> str:
    if found is None:
        return "-"
    return f"{_short(found['median'])} [{_short(found['min'])} .. {_short(found['max'])}]"


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _times(ratio: float | None) -> str:
    if ratio is None:
        return ""
    return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.1f}" if ratio >= 1 else f"{ratio:.2f}"


if __name__ == "__main__":
    raise SystemExit(main())
