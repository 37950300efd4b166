"""Pipelines as programs: ``python -m deltalakedb.spark.pipelines import|verify|checkpoint|vacuum-list …``.

The same works by ``spark-submit``, which then says where Spark runs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from deltalakedb.exceptions import DeltaSqlError
from deltalakedb.extras import require
from deltalakedb.spark.checkpointing import checkpoint
from deltalakedb.spark.listing import vacuum_list
from deltalakedb.spark.loading import start
from deltalakedb.transfer.importing.api import import_table
from deltalakedb.transfer.verifying.verifier import verify_table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

    from deltalakedb.transfer.importing.report import ImportProgress

#: exit codes, as `deltasql` has them
_FAILED, _DIFFERS = 1, 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one pipeline; the exit code is as `deltasql` has it."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options, _session(options)))
    except DeltaSqlError as error:
        _say(str(error))
        return _FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m deltalakedb.spark.pipelines", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="PIPELINE")

    def add(name: str, run: Callable[..., int], about: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=about, description=about)
        made.set_defaults(run=run)
        made.add_argument("--master", help="where Spark runs, such as local[*] or spark://host:7077")
        made.add_argument("--remote", help="a Spark Connect server, such as sc://host:15002")
        made.add_argument("--json", action="store_true", help="print one JSON document")
        return made

    one = add("import", _import, "Take over a plain Delta table.")
    one.add_argument("path")
    one.add_argument("address", help="the table's deltasql:// address")
    one.add_argument("--history", choices=["auto", "checkpoint", "full"], default="auto")
    one.add_argument("--verify", choices=["counts", "digest", "full", "data"], default="digest")
    one.add_argument("--batch-size", type=int)
    one.add_argument("--catch-up", action="store_true")
    one = add("verify", _verify, "Compare a table with its log.")
    one.add_argument("address")
    one.add_argument("--level", choices=["counts", "digest", "full", "data"], default="digest")
    one = add("checkpoint", _checkpoint, "Write a checkpoint in parts, by executors.")
    one.add_argument("address")
    one.add_argument("--rows-per-part", type=int)
    one = add("vacuum-list", _vacuum_list, "List what a vacuum with a full scan would delete.")
    one.add_argument("address")
    one.add_argument("--retention-hours", type=int)
    one.add_argument("--output", help="write the list there, as Parquet")
    return parser


def _session(options: argparse.Namespace) -> SparkSession:
    if options.master is None and options.remote is None and "PYSPARK_GATEWAY_PORT" in os.environ:
        # spark-submit has decided on everything, and no pipeline needs Delta's jars
        made: SparkSession = require("pyspark.sql", "spark", "Spark").SparkSession.builder.getOrCreate()
        return made
    return start(master=options.master, remote=options.remote)


def _import(options: argparse.Namespace, spark: SparkSession) -> int:
    shown = _Lines(options)

    def tell(progress: ImportProgress) -> None:
        rate = f"{progress.rate:,.0f} files/s" if progress.rate else ""
        left = "" if progress.seconds_left is None else f"about {progress.seconds_left:.0f} s left"
        shown(progress.phase, progress.done, progress.total, rate, left)

    done = import_table(
        options.path,
        options.address,
        history=options.history,
        verify=options.verify,
        batch_size=options.batch_size,
        catch_up=options.catch_up,
        engine="spark",
        spark=spark,
        progress=tell,
    )
    _tell(
        options,
        done.to_dict(),
        f"{done.action} {done.location} as {done.table}: version {done.version}, {done.num_files:,} files, "
        f"{done.seconds:g} s, digest {done.digest}",
    )
    return 0


def _verify(options: argparse.Namespace, spark: SparkSession) -> int:
    report = verify_table(options.address, options.level, engine="spark", spark=spark)
    _tell(
        options,
        report.to_dict(),
        f"{report.table}, version {report.version}, {report.num_files:,} files: "
        + ("log and catalog agree" if report.ok else f"{report.num_differences:,} differences"),
    )
    return 0 if report.ok else _DIFFERS


def _checkpoint(options: argparse.Namespace, spark: SparkSession) -> int:
    shown = _Lines(options)
    more = {} if options.rows_per_part is None else {"rows_per_part": options.rows_per_part}
    done = checkpoint(
        spark, options.address, progress=lambda have, total: shown("parts", have, total), **more
    )
    _tell(
        options,
        asdict(done),
        f"a {done.kind} checkpoint of version {done.version}: {done.num_add_files:,} files in "
        f"{len(done.paths)} parts, {done.size_in_bytes:,} bytes",
    )
    return 0


def _vacuum_list(options: argparse.Namespace, spark: SparkSession) -> int:
    done = vacuum_list(spark, options.address, retention_hours=options.retention_hours, output=options.output)
    _tell(
        options,
        asdict(done),
        f"{done.num_files:,} files of {done.table} with {done.size_bytes:,} bytes would go, "
        f"{done.num_unknown:,} of them known to no version" + (f"; see {done.output}" if done.output else ""),
    )
    if done.paths is not None and not options.json:
        for path in done.paths:
            sys.stdout.write(f"{path}\n")
    return 0


class _Lines:
    """Progress as lines on stderr, a few a minute."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._quiet, self._last, self._text = options.json, 0.0, ""

    def __call__(self, what: str, done: int, total: int, *more: str) -> None:
        text = ", ".join(filter(None, [f"{what}: {done:,} of {total:,}", *more]))
        now = time.monotonic()
        if self._quiet or text == self._text or (now - self._last < 2 and done < total):
            return
        self._last, self._text = now, text
        _say(text)


def _tell(options: argparse.Namespace, document: Any, line: str) -> None:
    sys.stdout.write((json.dumps(document, default=str) if options.json else line) + "\n")


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(main())
