"""The Java that Spark would start: where it is, and whether it is new enough."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from deltalakedb.exceptions import SparkSetupError

#: Spark 4 starts with nothing older.
OLDEST: Final = 17
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_GET_ONE = (
    f"install a Java {OLDEST} runtime (on Debian: apt-get install default-jre-headless), or set JAVA_HOME"
)


def check_java() -> int:
    """The major version of the Java that Spark would start.

    Raises:
        SparkSetupError: There is none, it does not run, or it is too old.
    """
    program = _program()
    try:
        told = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=60, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError) as error:
        raise SparkSetupError(
            f"Spark needs Java, and {program} does not run: {error}", suggestion=_GET_ONE
        ) from error
    found = _VERSION.search(told.stderr + told.stdout)
    if found is None:
        raise SparkSetupError(f"Spark needs Java, and {program} tells no version", suggestion=_GET_ONE)
    if (major := int(found[1])) < OLDEST:
        raise SparkSetupError(
            f"Spark 4 needs Java {OLDEST} or newer, and {program} is Java {major}", suggestion=_GET_ONE
        )
    return major


def _program() -> str:
    # in the order of Spark's own launcher
    if home := os.environ.get("JAVA_HOME"):
        program = Path(home) / "bin" / "java"
        if not program.is_file():
            raise SparkSetupError(
                f"Spark needs Java, and JAVA_HOME={home} holds no bin/java", suggestion=_GET_ONE
            )
        return str(program)
    if (found := shutil.which("java")) is None:
        raise SparkSetupError("Spark needs Java, and there is none on the PATH", suggestion=_GET_ONE)
    return found
