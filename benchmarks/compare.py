"""Compare the working tree with an older revision: the benchmarks of both run in turns, in one sitting.

Each revision runs its own benchmarks, so both must have them. If the older one needs packages that are not
installed, put them on PYTHONPATH.

Example:
    python benchmarks/compare.py v0.1 --rounds 5 --benchmarks commits
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

HERE: Final = Path(__file__).resolve().parent
SYSTEMS: Final = "sqlite,postgres,duckdb"
#: the options of one round
OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "commits": ("--scenarios=one,atomic", "--commits=60", "--rounds=1"),
    "plan": ("--commits=1000", "--rounds=1", "--cold=2", "--repeats=3"),
    "import": ("--files=196000", "--commits=200", "--checkpoint-every=95"),
}
#: a figure that is this many times the older one is marked
LIMIT: Final = 1.05


def main() -> int:
    """Measure, and print medians and ratios; 1 if a figure is beyond the limit."""
    asked = _options()
    trees = {"before": _checkout(asked.revision, asked.data), "now": HERE.parent}
    found: dict[str, dict[str, list[float]]] = {}
    for number in range(asked.rounds):
        for benchmark in asked.benchmarks:
            for name, tree in trees.items():
                for figure, value in _run(benchmark, tree, asked.data / name, asked.systems):
                    found.setdefault(figure, {t: [] for t in trees})[name].append(value)
        print(f"round {number + 1} of {asked.rounds} done", file=sys.stderr, flush=True)
    print(f"load average after {os.getloadavg()[0]:.1f}; milliseconds, medians of {asked.rounds} rounds\n")
    print("| figure | before | now | now / before | of the rounds |\n|---|---|---|---|---|")
    slower = 0
    for figure, values in found.items():
        before, now = (statistics.median(values[t]) for t in trees)
        ratios = [n / b for b, n in zip(values["before"], values["now"], strict=True)]
        mark = " slower" if now / before > LIMIT else ""
        slower += bool(mark)
        spread = f"{min(ratios):.2f} .. {max(ratios):.2f}"
        print(f"| {figure} | {before:.2f} | {now:.2f} | {now / before:.2f}{mark} | {spread} |")
    return min(slower, 1)


def _options() -> argparse.Namespace:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("revision", help="the older revision, as git knows it")
    options.add_argument("--benchmarks", type=lambda t: t.split(","), default=list(OPTIONS))
    options.add_argument("--systems", default=SYSTEMS)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--data", type=Path, default=HERE / "data")
    asked = options.parse_args()
    if unknown := set(asked.benchmarks) - set(OPTIONS):
        options.error(f"unknown: {', '.join(sorted(unknown))}: choose from {', '.join(OPTIONS)}")
    asked.data = asked.data.resolve() / "compare"
    return asked


def _checkout(revision: str, data: Path) -> Path:
    """A worktree of the revision."""
    git = ["git", "-C", str(HERE.parent)]
    commit = subprocess.run(
        [*git, "rev-parse", "--short", f"{revision}^{{commit}}"], check=True, capture_output=True, text=True
    ).stdout.strip()
    tree = data / f"tree-{commit}"
    if not tree.exists():
        subprocess.run([*git, "worktree", "prune"], check=True)
        subprocess.run([*git, "worktree", "add", "--quiet", "--detach", str(tree), commit], check=True)
    return tree


def _run(benchmark: str, tree: Path, data: Path, systems: str) -> Iterator[tuple[str, float]]:
    """One round of a benchmark of a revision; its figures in milliseconds."""
    data.mkdir(parents=True, exist_ok=True)
    figures = data / f"{benchmark}.json"
    path = os.pathsep.join(filter(None, (str(tree / "src"), os.environ.get("PYTHONPATH"))))
    script = [sys.executable, str(tree / "benchmarks" / f"{benchmark}.py")]
    where = [f"--systems={systems}", f"--data={data}", f"--json={figures}"]
    done = subprocess.run(
        [*script, *OPTIONS[benchmark], *where],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{tree}: {benchmark}: {done.stderr.strip()[-2000:]}")
    result: dict[str, Any] = json.loads(figures.read_text())
    for system in systems.split(","):
        if benchmark == "commits":
            yield f"append, {system}", result["one"][system]["p50"]
            for tables, rates in result["atomic"][system].items():
                yield f"commit of {tables} tables, {system}", 1000 / statistics.median(rates)
        elif benchmark == "plan":
            for name, summary in result["milliseconds"][system].items():
                yield f"{name}, {system}", summary["median"]
        else:
            yield f"import, {system}", result["seconds"][system]["import"] * 1000


if __name__ == "__main__":
    raise SystemExit(main())
