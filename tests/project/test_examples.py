"""The examples on the pages run as they are, each page in a folder of its own."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from deltalakedb.cli.main import cli
from support.places import S3Server
from support.s3 import s3_options

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
#: the pages whose examples are written as doctests are run by test_reference_pages.py
PAGES = [
    ROOT / "README.md",
    *(p for p in sorted(DOCS.rglob("*.md")) if p.parent.name not in ("adr", "reference")),
]


@pytest.fixture(autouse=True)
def _fresh_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("DELTASQL_CONFIG", "DELTASQL_CATALOG", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)


def run_python(text: str, names: dict[str, Any], page: Path) -> None:
    exec(compile(text, str(page), "exec"), names)


def run_console(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs the lines behind a ``$``: commands of ours, and variables for the rest of the page."""
    for line in text.splitlines():
        if not line.startswith("$ "):
            continue
        program, *words = shlex.split(line[2:])
        if program == "export":
            monkeypatch.setenv(*words[0].split("=", 1))
            continue
        assert program == "deltasql", f"the test runs deltasql only, not: {line}"
        result = CliRunner().invoke(cli, words)
        assert result.exit_code == 0, f"{line}\n{result.output}"


def has_examples(page: Path) -> bool:
    blocks = BLOCK.finditer(page.read_text("utf-8"))
    return any(b["language"] == "python" or "$ deltasql" in b["text"] for b in blocks)


def run_page(page: Path, monkeypatch: pytest.MonkeyPatch, replace: tuple[str, str] = ("", "")) -> int:
    text = page.read_text("utf-8").replace(*replace) if replace[0] else page.read_text("utf-8")
    names: dict[str, Any] = {"__name__": "example"}
    ran = 0
    for block in BLOCK.finditer(text):
        if block["language"] == "python":
            run_python(block["text"], names, page)
            ran += 1
        elif block["language"] == "console" and "$ deltasql" in block["text"]:
            run_console(block["text"], monkeypatch)
            ran += 1
    return ran


#: pages that need a server or a session, with tests of their own
APART = ("use-postgres.md", "use-object-stores.md", "use-spark.md", "first-ten-minutes.md")
HERE = [page for page in PAGES if page.name not in APART and has_examples(page)]


@pytest.mark.parametrize("page", HERE, ids=lambda p: p.stem)
def test_the_examples_of_a_page_run_on_sqlite(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_page(page, monkeypatch) > 0


@pytest.mark.parametrize("engine_name", ["postgres"], indirect=True)
def test_the_examples_of_the_postgres_page_run(catalog_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    page = DOCS / "how-to" / "use-postgres.md"
    assert run_page(page, monkeypatch, ("deltasql://postgres/lake/meta", catalog_uri)) > 0


def test_the_examples_of_the_page_about_object_stores_run(monkeypatch: pytest.MonkeyPatch) -> None:
    server = S3Server()
    try:
        server.client.create_bucket(Bucket="bucket")
        for name, value in s3_options(server.endpoint).items():
            if name.startswith("AWS_"):
                monkeypatch.setenv(name, value)
        assert run_page(DOCS / "how-to" / "use-object-stores.md", monkeypatch) == 3
    finally:
        server.stop()


#: what differs from run to run: times, sizes, ids, folders, users, column widths
VARIES = (
    (r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME"),
    (r"[\d.,]+ (B|KiB|MiB|bytes|s)\b", "SIZE"),
    (r"(?<=\w )\d\.\d", "SECONDS"),
    (r"[0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]{32}", "ID"),
    (r"/\S*(?=/lake)", "/HOME"),
    (r"\S+@\S+", "USER"),
    (r" +", " "),
)


def steady(text: str) -> list[str]:
    for pattern, instead in VARIES:
        text = re.sub(pattern, instead, text)
    return [line.rstrip() for line in text.splitlines()]


def test_the_transcript_of_the_first_ten_minutes_is_what_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = DOCS / "start" / "first-ten-minutes.md"
    names: dict[str, Any] = {"__name__": "example"}
    printed = ""
    for block in BLOCK.finditer(page.read_text("utf-8")):
        match block["language"]:
            case "python":
                run_python(block["text"], names, page)
                printed = capsys.readouterr().out
            case "text" if not block["text"].startswith("$"):
                assert printed == block["text"]
            case "console":
                for command, expected in re.findall(
                    r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block["text"], re.MULTILINE
                ):
                    program, *words = shlex.split(command)
                    if program == "export":
                        monkeypatch.setenv(*words[0].split("=", 1))
                    else:
                        assert steady(CliRunner().invoke(cli, words).output) == steady(expected), command


def test_the_program_of_the_transcript_is_that_of_the_readme() -> None:
    pages = (ROOT / "README.md", DOCS / "start" / "first-ten-minutes.md")
    first, second = (
        next(b["text"] for b in BLOCK.finditer(p.read_text("utf-8")) if b["language"] == "python")
        for p in pages
    )
    assert first == second


def pages() -> list[Path]:
    return [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]


def test_links_between_pages_lead_somewhere() -> None:
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in pages()
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text("utf-8"))
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert broken == []


def test_the_index_leads_to_every_page() -> None:
    index = (DOCS / "index.md").read_text("utf-8")
    listed = {(DOCS / target).resolve() for target in re.findall(r"\]\(([^)#\s]+)\)", index)}
    apart = [p for p in DOCS.rglob("*.md") if "adr" not in p.parts and p.name != "index.md"]
    assert [str(p.relative_to(DOCS)) for p in apart if p not in listed] == []


def test_the_examples_of_the_spark_page_run(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # the run's session is used, and stays
    page = DOCS / "how-to" / "use-spark.md"
    monkeypatch.setattr(type(spark), "stop", lambda self: None)
    assert run_page(page, monkeypatch) == 5
