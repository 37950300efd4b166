"""Delta's jars for Spark: fetched once by Spark's own resolver, then taken from a folder.

Run ``python -m deltalakedb.spark.jars`` to fetch them before they are needed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from deltalakedb.config import get_config
from deltalakedb.exceptions import DeltaSqlError, SparkSetupError
from deltalakedb.extras import require
from deltalakedb.spark.java import check_java
from deltalakedb.spark.versions import COORDINATE, DELTA, check_versions

#: What Spark brings itself: its own copies come first on the class path, so others would never be used.
_IN_SPARK: Final = (
    "com.fasterxml.jackson.core",
    "com.github.luben",
    "com.google.code.findbugs",
    "commons-pool",
    "io.airlift",
    "org.apache.hadoop",
    "org.apache.logging.log4j",
    "org.apache.parquet",
    "org.locationtech.jts",
    "org.roaringbitmap",
    "org.slf4j",
    "org.xerial.snappy",
)
_COMMAND: Final = f"{Path(sys.executable).name} -m deltalakedb.spark.jars"


def folder() -> Path:
    """Where the jars lie: the setting ``spark.jars``, else a folder of this version in the user's cache."""
    if (chosen := get_config().spark.jars) is not None:
        return Path(chosen).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "deltasql" / "jars" / COORDINATE.replace(":", "-")


def find_jars() -> list[Path]:
    """The jars at hand.

    Raises:
        SparkSetupError: The folder has no delta-spark in it.
    """
    found = sorted(folder().glob("*.jar"))
    if not any("delta-spark_" in jar.name and jar.name.endswith(f"-{DELTA}.jar") for jar in found):
        named = get_config().spark.jars is not None
        raise SparkSetupError(
            f"Delta's jars for Spark are not in {folder()}",
            suggestion="put them there, or leave the setting spark.jars (DELTASQL_SPARK__JARS) out and "
            f"fetch them, once: {_COMMAND}"
            if named
            else f"fetch them, once: {_COMMAND}",
        )
    return found


def fetch_jars() -> list[Path]:
    """The jars, fetched from Maven where they are not at hand.

    Spark's own resolver fetches them, so its settings in ``spark-defaults.conf`` (``spark.jars.ivySettings``,
    ``spark.jars.repositories``) and those of Java hold here too.

    Raises:
        SparkSetupError: Java is missing, or the jars cannot be fetched.
    """
    try:
        return find_jars()
    except SparkSetupError:
        if get_config().spark.jars is not None:
            raise
    check_versions()
    check_java()
    target = folder()
    target.parent.mkdir(parents=True, exist_ok=True)
    # whole or not at all: a folder appears under its name when every jar is in it
    with tempfile.TemporaryDirectory(prefix=".fetching-", dir=target.parent) as scratch:
        _resolve(Path(scratch))
        shutil.rmtree(target, ignore_errors=True)
        try:
            (Path(scratch) / "jars").rename(target)
        except OSError:
            if not target.is_dir():  # else somebody else was as quick
                raise
    return find_jars()


def _resolve(scratch: Path) -> None:
    home = Path(require("pyspark", "spark", "Spark").__file__ or "").parent
    nothing = scratch / "nothing.py"
    nothing.touch()
    command = [str(home / "bin" / "spark-submit"), "--master", "local[1]", "--packages", COORDINATE]
    command += ["--exclude-packages", ",".join(f"{group}:*" for group in _IN_SPARK)]
    command += ["--conf", f"spark.jars.ivy={scratch}", str(nothing)]
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    done = subprocess.run(  # noqa: S603
        command, env=environment, capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode != 0:
        reasons = [line.strip() for line in done.stderr.splitlines() if "xception" in line or "rror" in line]
        raise SparkSetupError(
            f"{COORDINATE} cannot be fetched from Maven: {reasons[0] if reasons else 'no reason is given'}",
            suggestion="check the network, or name a folder that has Delta's jars by DELTASQL_SPARK__JARS",
        )


def _main() -> int:
    try:
        jars = fetch_jars()
    except DeltaSqlError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 1
    print(f"Delta's jars for Spark ({len(jars)}) are in {folder()}")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(_main())
