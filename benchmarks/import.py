"""Importing a large log beside stock ``deltalake``'s own load of it: one run, every system in turn.

Example:
    python benchmarks/import.py --files 49000 --commits 100 --checkpoint-every 45 --rounds 1
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from pathlib import Path
from typing import Any, Final

from catalogs import Catalogs, run_worker
from generated_log import Shape, ensure_log

HERE: Final = Path(__file__).resolve().parent
SYSTEMS: Final = ("sqlite", "postgres", "duckdb")
PHASES: Final = ("plan", "load", "verify", "finalize")
#: what an import may take at the most: times of stock's load, and memory
GOAL_TIMES: Final = 2.0
GOAL_MB: Final = 600
GOALS: Final = ("sqlite", "postgres")


def main() -> int:
    """Measure, print a table, write JSON."""
    asked = _options()
    shape = Shape(asked.files, asked.commits, asked.checkpoint_every)
    log = asked.data / shape.name
    truth = ensure_log(log, shape)
    catalogs = Catalogs(asked.data, log)
    options = [f"--history={asked.history}", f"--verify={asked.verify}"]
    before = os.getloadavg()
    raw: dict[str, list[dict[str, Any]]] = {s: [] for s in ("stock", *asked.systems)}
    for _ in range(asked.rounds):
        raw["stock"].append(run_worker("load", "stock", str(log / "table"), str(log / "table")))
        for system in asked.systems:
            raw[system].append(catalogs.imported(system, options))
    for system, runs in raw.items():
        for run in runs:
            if run["figures"]["files"] != [truth.files]:
                raise SystemExit(
                    f"{system} found {run['figures']['files']} files, the truth is {truth.files}"
                )
    result = {
        "shape": {"files": shape.files, "commits": shape.commits, "checkpoint_every": shape.checkpoint_every},
        "history": asked.history,
        "verify": asked.verify,
        "rounds": asked.rounds,
        "cores": os.cpu_count(),
        "load": {"before": before, "after": os.getloadavg()},
        "seconds": {s: _seconds(runs) for s, runs in raw.items()},
        "peak_mb": {s: max(r["peak_mb"] for r in runs) for s, runs in raw.items()},
    }
    _print(result)
    if asked.json:
        asked.json.parent.mkdir(parents=True, exist_ok=True)
        asked.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


def _options() -> argparse.Namespace:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--files", type=int, default=1_000_000, help="live files at the newest version")
    options.add_argument("--commits", type=int, default=1_000)
    options.add_argument("--checkpoint-every", type=int, default=495)
    options.add_argument("--history", default="checkpoint", choices=("auto", "checkpoint", "full"))
    options.add_argument("--verify", default="digest", choices=("counts", "digest", "full"))
    options.add_argument("--rounds", type=int, default=1, help="turns of every system")
    options.add_argument("--systems", type=lambda t: tuple(t.split(",")), default=SYSTEMS)
    options.add_argument("--data", type=Path, default=HERE / "data")
    options.add_argument("--json", type=Path, help="where to write all figures")
    asked = options.parse_args()
    asked.data = asked.data.resolve()
    return asked


def _seconds(runs: list[dict[str, Any]]) -> dict[str, float]:
    names = [n for n in runs[0]["figures"] if n not in ("files", "versions")]
    return {n: round(statistics.median(r["figures"][n][0] for r in runs) / 1000, 2) for n in names}


def _print(result: dict[str, Any]) -> None:
    stock = result["seconds"]["stock"]["load"]
    print(f"load average of {result['cores']} cores: {result['load']}")
    print(f"stock deltalake: {stock:.1f} s, peak {result['peak_mb']['stock']:.0f} MB")
    print("| system | seconds | times stock | plan | load | verify | finalize | peak MB |")
    print("|---|---|---|---|---|---|---|---|")
    for system, seconds in result["seconds"].items():
        if system == "stock":
            continue
        phases = " | ".join(f"{seconds[p]:.1f}" if p in seconds else "-" for p in PHASES)
        whole, peak = seconds["import"], result["peak_mb"][system]
        print(f"| {system} | {whole:.1f} | {whole / stock:.1f} | {phases} | {peak:.0f} |")
    for system in GOALS:
        if system in result["seconds"]:
            times, peak = result["seconds"][system]["import"] / stock, result["peak_mb"][system]
            print(
                f"goal {system}: at most {GOAL_TIMES:g} times stock, found {times:.1f}: "
                f"{'reached' if times <= GOAL_TIMES else 'MISSED'}; below {GOAL_MB} MB, found {peak:.0f}: "
                f"{'reached' if peak < GOAL_MB else 'MISSED'}"
            )


if __name__ == "__main__":
    raise SystemExit(main())
