"""What Spark needs on this machine: PySpark and delta-spark, Java, and Delta's jars.

The jars are fetched once by Spark's own resolver and then taken from a folder. Run
``python -m deltalakedb.spark.jars`` to fetch them before they are needed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Final

from deltalakedb.exceptions import DeltaSqlError, MissingExtraError, SparkSetupError
from deltalakedb.extras import pip_line, require
from deltalakedb.settings import get_config

SPARK: Final = "4.2"
DELTA: Final = "4.4.0"
#: Delta's jar as Maven knows it; every other jar comes with Spark or is a dependency of this one
COORDINATE: Final = f"io.delta:delta-spark_{SPARK}_2.13:{DELTA}"
#: the oldest Java that Spark 4 supports
OLDEST_JAVA: Final = 17
_JAVA_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
#: Spark brings these itself: its own copies come first on the class path, so others would never be used
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


def check_versions() -> None:
    """Check that the installed packages fit each other, without importing them."""
    for package, wanted in (("pyspark", SPARK), ("delta-spark", DELTA)):
        try:
            found = metadata.version(package)
        except metadata.PackageNotFoundError as error:
            raise MissingExtraError(
                f"{package} is needed for Spark and is not installed",
                suggestion=pip_line("spark"),
                module=package,
                extra="spark",
            ) from error
        if found != wanted and not found.startswith(f"{wanted}."):
            raise SparkSetupError(
                f"{package} {found} is installed, but {package} {wanted} is required",
                suggestion=pip_line("spark").replace("install", "install --upgrade"),
            )


def check_java() -> int:
    """The major version of the Java that Spark would start; SparkSetupError if it is missing or too old."""
    # in the order of Spark's own launcher
    home = os.environ.get("JAVA_HOME")
    program = f"{home}/bin/java" if home else shutil.which("java")
    if program is None:
        why = "there is none on the PATH"
    elif not Path(program).is_file():
        why = f"JAVA_HOME={home} holds no bin/java"
    else:
        command = [program, "-version"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)  # noqa: S603
        except (OSError, subprocess.SubprocessError) as error:
            why = f"{program} does not run: {error}"
        else:
            found = _JAVA_VERSION.search(done.stderr + done.stdout)
            if found is not None and int(found[1]) >= OLDEST_JAVA:
                return int(found[1])
            why = f"{program} is Java {found[1]}" if found else f"{program} reports no version"
    hint = "on Debian: apt-get install default-jre-headless"
    raise SparkSetupError(
        f"Spark needs Java {OLDEST_JAVA} or newer, and {why}",
        suggestion=f"install Java {OLDEST_JAVA} or newer ({hint}), or set JAVA_HOME",
    )


def folder() -> Path:
    """The folder of the jars: the setting ``spark.jars``, or one for this version in the user's cache."""
    if (chosen := get_config().spark.jars) is not None:
        return Path(chosen).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "deltasql" / "jars" / COORDINATE.replace(":", "-")


def find_jars() -> list[Path]:
    """The jars that are there already; SparkSetupError if delta-spark is not among them."""
    found = sorted(folder().glob("*.jar"))
    if not any("delta-spark_" in jar.name and jar.name.endswith(f"-{DELTA}.jar") for jar in found):
        hint = f"fetch them, once: {_COMMAND}"
        if get_config().spark.jars is not None:
            hint = f"put them there, or leave the setting spark.jars (DELTASQL_SPARK__JARS) out and {hint}"
        raise SparkSetupError(f"Delta's jars for Spark are not in {folder()}", suggestion=hint)
    return found


def fetch_jars() -> list[Path]:
    """The jars, fetched from Maven if they are not there yet.

    Spark's own resolver fetches them, so its settings in ``spark-defaults.conf`` (``spark.jars.ivySettings``,
    ``spark.jars.repositories``) and those of Java apply.
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
    # renamed when every jar is in it, so that no incomplete folder is ever used
    with tempfile.TemporaryDirectory(prefix=".fetching-", dir=target.parent) as scratch:
        _resolve(Path(scratch))
        shutil.rmtree(target, ignore_errors=True)
        try:
            (Path(scratch) / "jars").rename(target)
        except OSError:
            if not target.is_dir():  # else another process was faster
                raise
    return find_jars()


def _resolve(scratch: Path) -> None:
    home = Path(require("pyspark", "spark", "Spark").__file__ or "").parent
    nothing = scratch / "nothing.py"
    nothing.touch()
    command = [str(home / "bin" / "spark-submit"), "--master", "local[1]", "--packages", COORDINATE]
    command += ["--exclude-packages", ",".join(f"{group}:*" for group in _IN_SPARK)]
    command += ["--conf", f"spark.jars.ivy={scratch}", str(nothing)]
    own = {"SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    environment = os.environ | own
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
