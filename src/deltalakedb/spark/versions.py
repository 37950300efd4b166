"""Which PySpark and delta-spark are installed, and whether they are the pair that is tested together."""

from __future__ import annotations

from importlib import metadata
from typing import Final

from deltalakedb.exceptions import MissingExtraError, SparkSetupError
from deltalakedb.extras import pip_line

SPARK: Final = "4.2"
DELTA: Final = "4.4.0"
SCALA: Final = "2.13"
#: Delta's jar as Maven knows it; every other jar comes with Spark or hangs on this one.
COORDINATE: Final = f"io.delta:delta-spark_{SPARK}_{SCALA}:{DELTA}"


def check_versions() -> None:
    """See that the installed packages fit each other, without importing them.

    Raises:
        MissingExtraError: PySpark or delta-spark is not installed.
        SparkSetupError: Another version than the one that fits is installed.
    """
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
                f"{package} {found} is installed, and {package} {wanted} is the one that fits",
                suggestion=pip_line("spark").replace("install", "install --upgrade"),
            )
