"""Commits beside delta-rs and DuckLake: one run, every system in turn, every result checked.

Example:
    python benchmarks/commits.py --scenarios one,atomic --commits 50 --rounds 2
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import ducklake_env
import server

HERE: Final = Path(__file__).resolve().parent
WORKER: Final = HERE / "commit_worker.py"
SCENARIOS: Final = ("one", "fsyncs", "eight", "eight tables", "atomic", "growth")
#: where the latency of a growing table is told; half a window on each side
POINTS: Final = (20, 100, 500, 1_000, 2_000, 5_000, 10_000, 20_000)
WINDOW: Final = 40
WARM: Final = 5
ATOMIC: Final = (1, 2, 10)
_SYNCS: Final = re.compile(r"^\s*[\d.]+\s+[\d.]+\s+\d+\s+(\d+)\s.*?(?:fsync|fdatasync|msync)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class System:
    """A system under test; ``shared``: several processes may write at once."""

    name: str
    kind: str
    engine: str = ""
    variant: str = ""
    shared: bool = True


SYSTEMS: Final = {
    s.name: s
    for s in (
        System("delta-rs", "delta-rs"),
        System("delta-rs-kept", "delta-rs", variant="kept"),
        System("ducklake-duckdb", "ducklake", "duckdb", shared=False),
        System("ducklake-sqlite", "ducklake", "sqlite"),
        System("ducklake-postgres", "ducklake", "postgres"),
        System("ducklake-postgres-inline", "ducklake", "postgres", "inline"),
        System("duckdb", "ours", "duckdb", shared=False),
        System("sqlite", "ours", "sqlite"),
        System("postgres", "ours", "postgres"),
        System("postgres-1ms", "ours", "postgres", "1ms"),
    )
}


class Bench:
    """Places for tables, and processes that commit to them."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self.asked = asked
        self.home: Path = asked.data / "commits"
        shutil.rmtree(self.home, ignore_errors=True)
        self.home.mkdir(parents=True)
        self.sockets = server.serve(asked.data)
        self.port = server.behind_latency(self.sockets, 1.0)
        self.result: dict[str, Any] = {}
        self.duck: tuple[Path, list[str]] | None = None
        if any(SYSTEMS[s].kind == "ducklake" for s in asked.systems):
            try:
                self.duck = ducklake_env.ensure(asked.data)
            except ducklake_env.NoDuckLakeError as error:
                print(f"DuckLake is left out: {error}", flush=True)
        self.systems = [SYSTEMS[s] for s in asked.systems if self.duck or SYSTEMS[s].kind != "ducklake"]

    def place(self, system: System, tag: str, tables: int) -> dict[str, Any]:
        """A fresh place with empty tables."""
        made = asdict(system) | {"folder": str(self.home / f"{system.name}-{tag}"), "sockets": self.sockets}
        made["database"] = f"bench_{system.name}_{tag}".replace("-", "_")
        made["port"] = self.port if system.variant == "1ms" else None
        made["extensions"] = self.duck[1] if self.duck else []
        shutil.rmtree(made["folder"], ignore_errors=True)
        if system.engine == "postgres":
            server.fresh_database(self.sockets, made["database"])
        self._run(made, {"task": "create", "tables": tables})
        return made

    def leave(self, place: dict[str, Any]) -> None:
        """Give back what a place holds of the server.

        Its files stay until the end: ext4 passes over inodes that were deleted a moment ago one by one, so
        whoever has the next turn would pay for it with every file.
        """
        if place["engine"] == "postgres":
            server.drop_database(self.sockets, place["database"])

    def commits(self, place: dict[str, Any], tables: list[int], **how: Any) -> dict[str, Any]:
        """One process that commits; its figures."""
        return self._run(place, self._task(tables, **how))

    def together(self, place: dict[str, Any], tables: list[list[int]], **how: Any) -> list[dict[str, Any]]:
        """Several processes that start to commit at the same moment."""
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        writers = []
        for mine in tables:
            command = self._command(place, self._task(mine, together=True, **how))
            writers.append(subprocess.Popen(command, text=True, **pipes))  # type: ignore[call-overload]
        for writer in writers:
            if writer.stdout.readline().strip() != "ready":
                raise SystemExit(f"{place['name']}: {writer.stderr.read()[-2000:]}")
        for writer in writers:
            writer.stdin.write("go\n")
            writer.stdin.flush()
        return [_figures(place, *w.communicate(), w.returncode) for w in writers]

    def check(self, place: dict[str, Any], tables: int, done: list[list[dict[str, Any]]]) -> None:
        """No row may be missing, none may be there twice, versions have to be without a hole.

        A failed call's row may be there or not on systems that cannot tell; ours may not fail.
        """
        states = self._run(place, {"task": "check", "tables": tables})["states"]
        for number, ((rows, versions), mine) in enumerate(zip(states, done, strict=True)):
            good = sum(len(d["took"]) + d["warm"] for d in mine)
            bad = sum(len(d["lost"]) for d in mine)
            most = good if place["kind"] == "ours" else good + bad
            if not good <= rows <= most:
                raise SystemExit(f"{place['name']}, t{number}: {good} commits answered, {rows} rows")
            if place["kind"] != "ducklake" and versions != rows:
                raise SystemExit(f"{place['name']}, t{number}: {rows} rows in {versions} versions")

    def _task(self, tables: list[int], **how: Any) -> dict[str, Any]:
        defaults = {"atomic": False, "together": False, "warm": WARM, "commits": 10**9, "seconds": 10**9}
        return {"task": "commit", "tables": tables} | defaults | how

    def _command(self, place: dict[str, Any], task: dict[str, Any]) -> list[str]:
        python = str(self.duck[0]) if self.duck and place["kind"] == "ducklake" else sys.executable
        return [python, str(WORKER), json.dumps({"place": place} | task)]

    def _run(self, place: dict[str, Any], task: dict[str, Any], prefix: list[str] | None = None) -> Any:
        command = [*(prefix or ()), *self._command(place, task)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return _figures(place, done.stdout, done.stderr, done.returncode)

    # ---- scenarios -------------------------------------------------------------------------------------

    def one(self) -> None:
        """One writer, one row in one file per commit."""
        took: dict[str, list[list[float]]] = {s.name: [] for s in self.systems}
        for number in range(self.asked.rounds):
            for system in self.systems:
                place = self.place(system, f"one{number}", 1)
                done = self.commits(place, [0], commits=self.asked.commits)
                self.check(place, 1, [[done]])
                self.leave(place)
                took[system.name].append(done["took"])
        figures = {}
        for name, rounds in took.items():
            every = [t for r in rounds for t in r]
            figures[name] = {
                "p50": _median(every),
                "p95": _quantile(every, 0.95),
                "rounds": [_median(r) for r in rounds],
            }
        self.result["one"] = figures
        rows = [[n, _ms(f["p50"]), _ms(f["p95"]), _spread(f["rounds"])] for n, f in figures.items()]
        self._print("One writer, one row per commit", ["p50 ms", "p95 ms", "p50 of the rounds"], rows)

    def fsyncs(self) -> None:
        """What one commit waits for on the disk, counted and not timed."""
        if shutil.which("strace") is None:
            print("\nfsyncs are not counted: there is no strace here")
            return
        rows, count = [], 40
        for system in self.systems:
            place = self.place(system, "fsyncs", 1)
            note, before = self.home / "strace", self._flushes(system)
            trace = ["strace", "-f", "-c", "-o", str(note), "-e", "trace=fsync,fdatasync,msync"]
            self._run(place, self._task([0], commits=count, warm=0), trace)
            after = self._flushes(system)
            own = sum(int(n) for n in _SYNCS.findall(note.read_text())) / count
            self.leave(place)
            self.result.setdefault("fsyncs", {})[system.name] = [own, (after - before) / count]
            rows.append([system.name, f"{own:.1f}", f"{(after - before) / count:.1f}"])
        self._print("fsync calls per commit", ["by the writer", "by the Postgres server"], rows)

    def _flushes(self, system: System) -> int:
        if system.engine != "postgres":
            return 0
        time.sleep(1.2)  # backends tell their counters once a second
        return server.wal_flushes(self.sockets)

    def eight(self) -> None:
        """Many writer processes on one table."""
        self._many("eight", "on one table", 1)

    def eight_tables(self) -> None:
        """Many writer processes, each on its own table."""
        self._many("eight tables", "on as many tables", self.asked.writers)

    def _many(self, name: str, what: str, tables: int) -> None:
        writers, seconds = self.asked.writers, self.asked.seconds
        runs: dict[str, list[dict[str, Any]]] = {}
        for number in range(self.asked.rounds):
            for system in self.systems:
                if not system.shared or system.variant == "kept":
                    continue
                place = self.place(system, f"many{number}", tables)
                mine = [[w % tables] for w in range(writers)]
                done = self.together(place, mine, seconds=seconds, warm=1)
                self.check(
                    place,
                    tables,
                    [[done[w] for w in range(writers) if w % tables == t] for t in range(tables)],
                )
                self.leave(place)
                runs.setdefault(system.name, []).append(_summary(done))
        self.result[name] = runs
        rows = []
        for system_name, found in runs.items():
            rates = [f["rate"] for f in found]
            rows.append(
                [
                    system_name,
                    f"{statistics.median(rates):.0f}",
                    _spread(rates),
                    str(sum(f["failed"] for f in found)),
                    _ms(max(f["worst"] for f in found)),
                    f"{min(f['least'] for f in found)} of {statistics.median(f['mean'] for f in found):.0f}",
                ]
            )
        head = ["commits/s", "of the rounds", "failed calls", "worst wait ms", "least served writer"]
        self._print(f"{writers} writers {what}, {seconds:g} s", head, rows)
        for system_name, found in runs.items():
            for error, count in sorted({e: n for f in found for e, n in f["errors"].items()}.items()):
                print(f"  {system_name}, {count} times: {error}")

    def atomic(self) -> None:
        """One commit over several tables."""
        took: dict[str, dict[int, list[float]]] = {}
        for number in range(self.asked.rounds):
            for system in self.systems:
                if system.kind == "delta-rs" or system.variant == "inline":
                    continue
                place = self.place(system, f"atomic{number}", max(ATOMIC))
                done: list[list[dict[str, Any]]] = [[] for _ in range(max(ATOMIC))]
                for tables in ATOMIC:
                    count = max(10, self.asked.commits // max(1, tables // 2))
                    figures = self.commits(place, list(range(tables)), atomic=True, commits=count)
                    for table in range(tables):
                        done[table].append(figures)
                    found = took.setdefault(system.name, {t: [] for t in ATOMIC})
                    found[tables].append(1000 * len(figures["took"]) / sum(figures["took"]))
                self.check(place, max(ATOMIC), done)
                self.leave(place)
        self.result["atomic"] = took
        rows = [
            [n, *(f"{statistics.median(r):.0f} [{_spread(r)}]" for r in rates.values())]
            for n, rates in took.items()
        ]
        self._print("Atomic commits per second", [f"{t} table{'s' * (t > 1)}" for t in ATOMIC], rows)

    def growth(self) -> None:
        """The latency of an append while the table grows."""
        most = self.asked.growth
        points = [p for p in POINTS if p <= most]
        rows = []
        for system in self.systems:
            if system.variant == "inline":
                continue
            place = self.place(system, "growth", 1)
            done = self.commits(place, [0], commits=most, seconds=self.asked.growth_seconds)
            self.check(place, 1, [[done]])
            self.leave(place)
            took = done["took"]
            reached = {p: _median(took[max(0, p - WINDOW) : p]) for p in points if len(took) >= p}
            self.result.setdefault("growth", {})[system.name] = reached | {"commits": len(took)}
            cells = [_ms(reached[p]) if p in reached else "-" for p in points]
            rows.append([system.name, *cells, _ms(_quantile(took, 0.99)), f"{len(took):,}"])
        head = [*(f"at {p:,}" for p in points), "p99", "commits"]
        self._print(
            f"Median ms of an append as the table grows, {self.asked.growth_seconds:g} s each", head, rows
        )

    def _print(self, title: str, head: list[str], rows: list[list[str]]) -> None:
        print(f"\n### {title}\n\nload average {os.getloadavg()[0]:.1f}\n")
        every = [["system", *head], ["---"] * (len(head) + 1), *rows]
        widths = [max(len(r[i]) for r in every) for i in range(len(head) + 1)]
        for row in every:
            print("| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |", flush=True)


def main() -> int:
    """Measure, print tables, write JSON."""
    asked = _options()
    began = time.time()
    bench = Bench(asked)
    machine = _machine(bench)
    print(json.dumps(machine), flush=True)
    for name in asked.scenarios:
        getattr(bench, name.replace(" ", "_"))()
    _goals(bench.result)
    asked.json.parent.mkdir(parents=True, exist_ok=True)
    after = {"load_after": [round(x, 2) for x in os.getloadavg()], "took_s": round(time.time() - began)}
    asked.json.write_text(json.dumps({"machine": machine | after} | bench.result, indent=1) + "\n")
    print(f"\nload average after {os.getloadavg()[0]:.1f}; all figures are in {asked.json}")
    if not asked.keep:
        shutil.rmtree(bench.home, ignore_errors=True)
    return 0


def _options() -> argparse.Namespace:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--scenarios", type=_names, default=SCENARIOS)
    options.add_argument("--systems", type=_names, default=tuple(SYSTEMS))
    options.add_argument("--rounds", type=int, default=3, help="times that each system has its turn")
    options.add_argument("--commits", type=int, default=100, help="commits of one writer in a round")
    options.add_argument("--writers", type=int, default=8)
    options.add_argument("--seconds", type=float, default=6.0, help="how long the writers write in a round")
    options.add_argument("--growth", type=int, default=1_000, help="commits of the growing table")
    options.add_argument("--growth-seconds", type=float, default=60.0, help="the most for each system")
    options.add_argument("--full", action="store_true", help="grow to 20,000 commits, whatever it takes")
    options.add_argument("--keep", action="store_true", help="leave the tables for a look at them")
    options.add_argument("--data", type=Path, default=HERE / "data")
    options.add_argument("--json", type=Path, default=HERE / "results" / "commits.json")
    asked = options.parse_args()
    for given, known in ((asked.scenarios, SCENARIOS), (asked.systems, SYSTEMS)):
        if unknown := set(given) - set(known):
            options.error(f"unknown: {', '.join(sorted(unknown))}: choose from {', '.join(known)}")
    if asked.full:
        asked.growth, asked.growth_seconds = max(POINTS), 3_600.0
    asked.data = asked.data.resolve()
    return asked


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _machine(bench: Bench) -> dict[str, Any]:
    return {
        "cores": os.cpu_count(),
        "load": [round(x, 2) for x in os.getloadavg()],
        "python": platform.python_version(),
        "versions": {p: version(p) for p in ("deltalake", "pyarrow", "duckdb", "psycopg")},
        "ducklake": f"DuckDB {ducklake_env.VERSION}" if bench.duck else None,
        "postgres": server.settings(bench.sockets),
    }


def _figures(place: dict[str, Any], out: str, err: str, code: int) -> Any:
    if code:
        raise SystemExit(f"{place['name']}: {err.strip()[-2000:]}")
    return json.loads(out.splitlines()[-1])


def _summary(done: list[dict[str, Any]]) -> dict[str, Any]:
    took = [t for d in done for t in d["took"]]
    served = [len(d["took"]) for d in done]
    errors: dict[str, int] = {}
    for d in done:
        for error, count in d["errors"].items():
            errors[error] = errors.get(error, 0) + count
    return {
        "rate": sum(len(d["took"]) / d["seconds"] for d in done),
        "p50": _median(took),
        "worst": max([*took, *(t for d in done for t in d["lost"])]),
        "failed": sum(len(d["lost"]) for d in done),
        "least": min(served),
        "mean": statistics.mean(served),
        "errors": errors,
    }


def _goals(found: dict[str, Any]) -> None:
    """The goals, as far as this run can tell."""
    print()
    if one := found.get("one"):
        peers = {n: f["p50"] for n, f in one.items() if SYSTEMS[n].kind != "ours"}
        if peers:
            best = min(peers, key=lambda n: peers[n])
            for name, figures in one.items():
                if SYSTEMS[name].kind == "ours":
                    _goal(f"one append on {name}, {best} = 1", peers[best] / figures["p50"], 1)
    eight = found.get("eight", {})
    if "postgres" in eight and "ducklake-postgres" in eight:
        ours, theirs = eight["postgres"], eight["ducklake-postgres"]
        ratio = statistics.median(f["rate"] for f in ours) / statistics.median(f["rate"] for f in theirs)
        _goal("eight writers on Postgres, DuckLake = 1", ratio, 3)
        failed, worst = sum(f["failed"] for f in ours), max(f["worst"] for f in ours)
        print(f"goal no failure and a worst wait under 1,000 ms: {failed} failures, {worst:.0f} ms")
    atomic = found.get("atomic", {})
    for engine in ("postgres", "sqlite", "duckdb"):
        if engine in atomic and f"ducklake-{engine}" in atomic:
            for tables in ATOMIC[1:]:
                ours, theirs = atomic[engine][tables], atomic[f"ducklake-{engine}"][tables]
                ratio = statistics.median(ours) / statistics.median(theirs)
                _goal(f"atomic over {tables} tables on {engine}, DuckLake = 1", ratio, 4)


def _goal(what: str, ratio: float, wanted: float) -> None:
    verdict = "reached" if ratio >= wanted else "MISSED"
    print(f"goal {what}: at least {wanted:g}, found {ratio:.2f}: {verdict}")


def _median(values: list[float]) -> float:
    return statistics.median(values) if values else float("nan")


def _quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else float("nan")


def _spread(values: list[float]) -> str:
    return f"{_ms(min(values))} .. {_ms(max(values))}"


def _ms(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


if __name__ == "__main__":
    raise SystemExit(main())
