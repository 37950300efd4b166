"""Build the log store's jar from its source with the compiler that Spark brings: no JDK is needed.

``make logstore`` runs it; the jar is written into the package.
"""

from __future__ import annotations

import io
import os
import sys
import zipfile
from pathlib import Path
from typing import Any, Final

from deltalakedb.exceptions import DeltaSqlError, SparkSetupError
from deltalakedb.extras import require
from deltalakedb.spark.jars import check_java, fetch_jars
from deltalakedb.spark.logstore import JAR, SOURCE

#: a fixed date, so that the same source always gives the same bytes
_TIME: Final = (1980, 1, 1, 0, 0, 0)


def compile_classes(source: str) -> dict[str, bytes]:
    """Compile one Java source; the classes by name.

    Raises:
        SparkSetupError: It does not compile.
    """
    check_java()
    home = Path(require("pyspark", "spark", "Spark").__file__ or "").parent / "jars"
    gateways = require("py4j.java_gateway", "spark", "Spark")
    beside = [str(jar) for jar in fetch_jars() if "delta-storage" in jar.name]
    port = gateways.launch_gateway(
        jarpath=str(next(home.glob("py4j-*.jar"))),
        classpath=os.pathsep.join([str(home / "*"), *beside]),
        die_on_exit=True,
    )
    gateway = gateways.JavaGateway(gateway_parameters=gateways.GatewayParameters(port=port))
    try:
        compiler = gateway.jvm.org.codehaus.janino.SimpleCompiler()
        # no debugging information: line numbers would tie the bytes to the source's layout
        compiler.setDebuggingInformation(False, False, False)
        compiler.cook(source)
        found: Any = compiler.getBytecodes()
        return {str(name): bytes(found.get(name)) for name in sorted(found.keySet())}
    except gateways.Py4JJavaError as error:
        raise SparkSetupError(f"the log store does not compile: {error.java_exception}") from error
    finally:
        gateway.shutdown()


def build_jar(classes: dict[str, bytes]) -> bytes:
    """A jar of some classes; equal classes give equal bytes."""
    out = io.BytesIO()
    manifest = b"Manifest-Version: 1.0\r\nAutomatic-Module-Name: io.deltalakedb\r\n\r\n"
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as jar:
        jar.writestr(_entry("META-INF/MANIFEST.MF"), manifest)
        for name, code in sorted(classes.items()):
            jar.writestr(_entry(f"{name.replace('.', '/')}.class"), code)
    return out.getvalue()


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, _TIME)
    entry.external_attr = 0o644 << 16
    entry.create_system = 3
    return entry


def _main() -> int:
    try:
        made = build_jar(compile_classes(SOURCE.read_text("utf-8")))
    except DeltaSqlError as error:
        print(error, file=sys.stderr)
        return 1
    changed = not JAR.exists() or JAR.read_bytes() != made
    JAR.write_bytes(made)
    print(f"{JAR.name}: {len(made)} bytes, {'written' if changed else 'unchanged'}")
    return 0


if __name__ == "__main__":
    sys.exit(_main())
