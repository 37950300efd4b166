"""The interactive prompt of ``deltasql sql``, with history and completion by readline."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from deltalakedb.cli.output import describe
from deltalakedb.cli.rows import limited, show_rows

if TYPE_CHECKING:
    from deltalakedb.catalog import Catalog
    from deltalakedb.cli.context import Invocation

_WORDS = """
    AND AS BETWEEN BY CASE COUNT DESC DESCRIBE DISTINCT ELSE END EXPLAIN FROM GROUP HAVING IN IS JOIN LEFT
    LIKE LIMIT NOT NULL ON OR ORDER SELECT SHOW TABLES THEN UNION USING VALUES WHEN WHERE WITH
"""
_VIEWS = """
    dl_v_audit dl_v_file_history dl_v_files dl_v_history dl_v_imports dl_v_metadata dl_v_mirror dl_v_protocol
    dl_v_tables dl_v_txns
"""
_COMMANDS = (".help", ".quit", ".schema", ".tables")
_HELP = """End a query with a semicolon. Tab completes names; the arrow keys find earlier queries.
  .tables        the tables of the catalog
  .schema TABLE  the columns of a table
  .quit          leave, as Ctrl-D does; Ctrl-C discards the query being typed"""
#: how many rows of a result are shown without --limit
_DEFAULT_LIMIT = 1000


class Prompt:
    """Asks for queries until the input ends."""

    def __init__(
        self, cli: Invocation, catalog: Catalog, form: str, options: dict[str, Any], limit: int | None
    ) -> None:
        self._cli, self._catalog, self._form, self._options = cli, catalog, form, options
        self._limit = limit
        self._names: list[str] = []

    def run(self) -> None:
        history = _use_readline(self._complete)
        self._cli.note(
            f"{self._catalog.uri}: read-only. A query ends with a semicolon; .help lists the commands."
        )
        lines: list[str] = []
        try:
            while True:
                try:
                    lines.append(input("deltasql> " if not lines else "     ...> "))
                except KeyboardInterrupt:
                    click.echo()
                    lines = []
                    continue
                except EOFError:
                    click.echo()
                    return
                text = "\n".join(lines).strip()
                if text.startswith("."):
                    lines = []
                    if not self._command(text):
                        return
                elif not text or text.endswith(";"):
                    lines = []
                    self._query(text)
        finally:
            if history is not None:
                _save_history(history)

    def _command(self, text: str) -> bool:
        """Run one of the prompt's own commands; False if it leaves the prompt."""
        word, _, rest = text.rstrip("; ").partition(" ")
        if word in (".quit", ".exit", ".q"):
            return False
        if word == ".tables":
            self._query("SHOW TABLES")
        elif word == ".schema" and rest.strip():
            self._query(f"DESCRIBE {rest.strip()}")
        else:
            click.echo(_HELP, err=word != ".help")
        return True

    def _query(self, text: str) -> None:
        if not text.strip("; \n"):
            return
        limit = _DEFAULT_LIMIT if self._limit is None else self._limit
        try:
            rows = self._catalog.sql(text, **self._options)
            shown = show_rows(self._cli, limited(rows, limit), self._form)
            more = " or more; --limit shows more" if shown == limit else ""
            self._cli.note(f"({shown:,} {'row' if shown == 1 else 'rows'}{more})")
        except KeyboardInterrupt:
            self._cli.note("interrupted")
        except Exception as error:
            # the prompt stays open, whatever a query does
            self._cli.error(describe(error), 0)
        sys.stdout.flush()

    def _complete(self, word: str, state: int) -> str | None:
        """Candidate number ``state`` for the word at the cursor; None after the last."""
        if state == 0:
            with suppress(Exception):  # nothing may disturb the line being typed
                self._names = self._catalog.query("SELECT name FROM dl_v_tables").column("name").to_pylist()
        found = [n for n in (*self._names, *_VIEWS.split(), *_COMMANDS) if n.lower().startswith(word.lower())]
        found += [w for w in _WORDS.split() if word and w.startswith(word.upper())]
        return sorted(found)[state] if state < len(found) else None


def _use_readline(complete: Any) -> Path | None:
    """Turn on history and completion; the history file, or None if Python has no readline."""
    try:
        import readline
    except ImportError:
        return None
    readline.set_completer(complete)
    readline.set_completer_delims(" \t\n\"'`;,()=<>+-*/")  # not dots, which are part of names
    readline.parse_and_bind("tab: complete")
    state = os.environ.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser()
    path = Path(state) / "deltasql" / "history"
    with suppress(OSError):
        readline.read_history_file(path)
    return path


def _save_history(path: Path) -> None:
    import readline

    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        readline.set_history_length(1000)
        readline.write_history_file(path)
        path.chmod(0o600)  # queries may hold secrets
