"""What is missing for Spark is said in one line, with what to do; and nothing is fetched to find out."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from typing import TYPE_CHECKING, Any

import pytest

from deltalakedb.exceptions import InvalidArgumentError, MissingExtraError, SparkSetupError
from deltalakedb.settings import Config, use_config
from deltalakedb.spark import jars, session
from deltalakedb.spark.jars import check_java, check_versions

if TYPE_CHECKING:
    from pathlib import Path


def fake_java(folder: Path, script: str) -> Path:
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return folder


def told(error: pytest.ExceptionInfo[Any]) -> str:
    """The message, which is one line, and the way out, which is another."""
    assert "\n" not in error.value.message
    assert error.value.suggestion
    return f"{error.value.message} {error.value.suggestion}"


def test_a_missing_java_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SparkSetupError, match="none on the PATH") as caught:
        check_java()
    assert "Java 17" in told(caught)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(SparkSetupError, match=r"JAVA_HOME=.*holds no bin/java"):
        check_java()


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'openjdk version \"11.0.2\" 2019-01-15' >&2", "is Java 11"),
        ("echo 'java version \"1.8.0_381\"' >&2", "is Java 8"),
        ("echo hello", "reports no version"),
        ("exit 3", "does not run"),
    ],
)
def test_a_java_that_does_not_fit_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, reason: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path, script)))
    with pytest.raises(SparkSetupError, match=reason) as caught:
        check_java()
    assert "JAVA_HOME" in told(caught)


def test_a_newer_java_is_fine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path, "echo 'openjdk version \"21\" 2023-09-19' >&2")))
    assert check_java() == 21


def test_versions_that_do_not_fit_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"pyspark": "3.5.1", "delta-spark": "4.4.0"}
    monkeypatch.setattr(metadata, "version", installed.__getitem__)
    with pytest.raises(SparkSetupError, match=r"pyspark 3\.5\.1 is installed, but pyspark 4\.2") as caught:
        session()
    assert "pip install" in told(caught)
    installed |= {"pyspark": "4.2.7", "delta-spark": "4.4.1"}
    with pytest.raises(SparkSetupError, match=r"delta-spark 4\.4\.1 is installed"):
        check_versions()
    installed["delta-spark"] = "4.4.0"
    check_versions()


def test_a_missing_package_is_told_with_its_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(MissingExtraError, match="pyspark is needed") as caught:
        session()
    assert "pip install 'deltalakedb[spark]'" in told(caught)


def test_missing_jars_are_told_and_found_in_the_folder_of_the_settings(tmp_path: Path) -> None:
    with use_config(Config(spark={"jars": str(tmp_path)})):
        for act in (jars.find_jars, jars.fetch_jars):
            with pytest.raises(SparkSetupError, match=f"not in {tmp_path}") as caught:
                act()
            assert "deltalakedb.spark.jars" in told(caught)
        mine = tmp_path / "delta-spark_4.2_2.13-4.4.0.jar"
        mine.touch()
        assert jars.find_jars() == jars.fetch_jars() == [mine]


def test_jars_that_cannot_be_fetched_are_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    # Spark's launcher starts this Java, which fails as a resolver without a network does
    script = """case "$1" in -version) echo 'openjdk version "17.0.1"' >&2;; *)
    echo 'java.lang.RuntimeException: [unresolved dependency: io.delta#delta-spark]' >&2; exit 1;; esac"""
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "java", script)))
    with pytest.raises(SparkSetupError, match=r"cannot be fetched from Maven.*unresolved") as caught:
        jars.fetch_jars()
    assert "DELTASQL_SPARK__JARS" in told(caught)
    assert list((tmp_path / "deltasql" / "jars").iterdir()) == [], "nothing half is left"
    assert jars._main() == 1
    assert "cannot be fetched" in capsys.readouterr().err


def test_a_master_beside_a_remote_server_makes_no_sense() -> None:
    with pytest.raises(InvalidArgumentError, match="not both"):
        session("local[1]", remote="sc://localhost")


def test_nothing_of_spark_is_imported_before_it_is_used() -> None:
    script = "import sys, deltalakedb, deltalakedb.spark.sessions; assert 'pyspark' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_session_has_delta_and_is_completed_when_it_runs_already(spark: Any) -> None:
    again = session(config={"spark.sql.shuffle.partitions": "2"})
    assert again.sparkContext is spark.sparkContext
    assert "DeltaSparkSessionExtension" in again.conf.get("spark.sql.extensions")
    assert again.conf.get("spark.sql.session.timeZone") == "UTC"
    assert again.conf.get("spark.ui.enabled") == "false"
