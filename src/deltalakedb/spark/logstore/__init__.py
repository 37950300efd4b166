"""The log store that delta-spark loads: one small Java class, its jar, and the settings to use it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

#: the class, as Spark's settings name it
CLASS: Final = "io.deltalakedb.SqlLogStore"
#: the option of a read whose version is known to be published; Delta hands options on that begin with fs.
KNOWN: Final = "fs.deltalakedb.published"
SOURCE: Final = Path(__file__).with_name("SqlLogStore.java")
JAR: Final = Path(__file__).with_name("deltalakedb-logstore.jar")
