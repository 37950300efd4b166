"""What a command shows: words and colour for people, lines for a pipe, JSON for programs; exit codes."""

from __future__ import annotations

import difflib
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import IntEnum
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol, Self, TextIO, TypeAlias

import click

from deltalakedb.cli.render import clean, count, many
from deltalakedb.exceptions import (
    AddressError,
    CommitFailedError,
    ConfigError,
    ConflictError,
    DeltaSqlError,
    InvalidArgumentError,
    PredicateError,
    QueryError,
    TableFrozenError,
    VerificationError,
    engine_text,
)

# rich takes time to import, and `--help` shows nothing with it
if TYPE_CHECKING:
    from deltalakedb.mirror.drift import Difference
    from deltalakedb.transfer.reports import VerifyReport


class ExitCode(IntEnum):
    """What a command's end means to a script, with the words of the reference."""

    meaning: str

    OK = 0, "fine"
    ERROR = 1, "an error"
    USAGE = 2, "wrong usage: an argument, an address, a condition or a setting"
    DRIFT = 3, "drift: `_delta_log` or the location differs from the catalog"
    CONFLICT = 4, "another writer was first"
    FROZEN = 5, "a table is frozen, or its log has diverged"
    TRY_AGAIN = 75, "try again later: busy, full or unreachable"
    INTERRUPTED = 130, "interrupted by Ctrl-C"

    def __new__(cls, value: int, meaning: str = "") -> Self:
        self = int.__new__(cls, value)
        self._value_ = value
        self.meaning = meaning
        return self


def exit_code(error: BaseException) -> ExitCode:
    """The exit code that an error ends a command with."""
    match error:
        case (
            AddressError()
            | ConfigError()
            | InvalidArgumentError()
            | PredicateError()
            | QueryError()
            | click.UsageError()
        ):
            return ExitCode.USAGE
        case ConflictError():  # transient too, and still has a code of its own
            return ExitCode.CONFLICT
        case TableFrozenError():
            return ExitCode.FROZEN
        case VerificationError():
            return ExitCode.DRIFT
        case DeltaSqlError():
            return ExitCode.TRY_AGAIN if error.transient else ExitCode.ERROR
    return ExitCode.CONFLICT if isinstance(error, CommitFailedError) else ExitCode.ERROR


class Interrupted(click.Abort):
    """Ctrl-C during work that another run continues."""

    def __init__(self, message: str, suggestion: str) -> None:
        super().__init__(message)
        self.message, self.suggestion = message, suggestion


def describe(error: BaseException) -> dict[str, Any]:
    """An error as plain data: the document that ``--json`` prints."""
    if isinstance(error, DeltaSqlError):
        found = error.to_dict()
        return found | {
            "message": engine_text(error.message),
            "suggestion": error.command or error.suggestion,
        }
    kind = type(error).__name__
    # texts of delta-rs and of drivers are for developers
    message, suggestion = f"an unexpected error stopped the command ({kind})", None
    if isinstance(error, click.ClickException):
        message = error.format_message()
        if isinstance(error, click.UsageError):
            # the command's own help is the best advice on its usage
            kind = "UsageError"
            suggestion = f"`{error.ctx.command_path} --help` shows how it is used" if error.ctx else None
            if (similar := _similar_command(error)) is not None:
                message, suggestion = message.partition(" Did you mean")[0], similar
    elif isinstance(error, OSError):
        message = f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")
        suggestion = "check the path and its permissions"
    else:
        suggestion = "run it again with --debug, which shows the error itself, and report it"
    return DeltaSqlError(message, suggestion=suggestion).to_dict() | {"error": kind}


_UNKNOWN_COMMAND = re.compile(r"No such command '(.*)'")


def _similar_command(error: click.UsageError) -> str | None:
    """What an unknown command may be meant to be."""
    unknown = _UNKNOWN_COMMAND.match(error.message)
    if unknown is None or error.ctx is None or not isinstance(group := error.ctx.command, click.Group):
        return None
    near = difflib.get_close_matches(unknown[1], group.list_commands(error.ctx), n=3)
    commands = " or ".join(f"`{error.ctx.command_path} {name}`" for name in near)
    return f"did you mean {commands}?" if near else None


NO_TABLES = "The catalog holds no tables."
#: the first rows of a table, which decide how wide its columns are
_MEASURED = 1000
#: numbers and times stay whole on a narrow terminal; names and paths give way
_WHOLE = ("COMMITTED", "FILES", "ROWS", "SIZE", "STATE", "VERSION")


class Rows(NamedTuple):
    """A table: headers separated by ``|``, ``>`` after those of right-aligned columns; None is a dash.

    Rows are drawn as they come: the widths of a long table are those of its first rows.
    """

    headers: str
    rows: Iterable[Sequence[object]]

    @property
    def columns(self) -> list[tuple[str, bool]]:
        """The headers, and whether their columns are right-aligned."""
        return [(h.removesuffix(">"), h.endswith(">")) for h in self.headers.split("|")]


class DataRows(NamedTuple):
    """The same for data, whose columns may have any names."""

    columns: Sequence[tuple[str, bool]]
    rows: Iterable[Sequence[object]]


#: what a command shows to people: a line, a line with a style, names with values, or a table
Item: TypeAlias = str | tuple[str, str] | Mapping[str, str | None] | Rows | DataRows


def view_reports(reports: Sequence[VerifyReport]) -> Iterator[Item]:
    """Comparisons of tables with their logs."""
    if not reports:
        yield NO_TABLES
    for report in reports:
        what = f"{report.table}, version {report.version}, {many(report.num_files, 'file')}"
        if report.ok:
            if report.versions_checked > 1:
                what += f", {many(report.versions_checked, 'version')}"
            if report.rows_checked:
                what += f", {many(report.rows_checked, 'row')}"
            yield f"{what}: the catalog matches the log ({report.level})."
            continue
        yield f"{what}: {many(report.num_differences, 'difference')}", "bold red"
        yield difference_rows(report.differences)
        if report.num_differences > len(report.differences):
            yield f"and {count(report.num_differences - len(report.differences))} more"


def difference_rows(found: Iterable[Difference]) -> Rows:
    return Rows("VERSION>|KIND|PATH|DETAIL", [(d.version, d.kind, d.path or None, d.detail) for d in found])


class Advance(Protocol):
    """Moves a progress bar."""

    def __call__(self, done: int, total: int, now: str = ..., /) -> None:
        """Report how much of how much is done, and the label if it changes."""


class _Console:
    """Colour and boxes on a terminal, plain lines anywhere else; raises for a closed pipe."""

    def __init__(self, file: TextIO) -> None:
        from rich.console import Console

        self.rich = Console(
            file=file, highlight=False, markup=False, emoji=False, soft_wrap=not file.isatty()
        )
        self.rich.on_broken_pipe = _raise_broken_pipe  # type: ignore[method-assign]

    def write_line(self, text: str, style: str = "") -> None:
        self.write_parts((clean(text), style))

    def write_parts(self, *parts: tuple[str, str]) -> None:
        from rich.text import Text

        self.rich.print(Text.assemble(*parts))

    def draw(self, item: Item) -> None:
        match item:
            case str():
                self.write_line(item)
            case Rows() | DataRows():
                self._table(item)
            case (text, style):
                self.write_line(text, style)
            case _:
                self._fields(item)

    def _fields(self, pairs: Mapping[str, str | None]) -> None:
        """Names and values below each other; a missing value leaves its line out."""
        shown = {name: value for name, value in pairs.items() if value}
        width = max(map(len, shown), default=0)
        for name, value in shown.items():
            first, *more = clean(value).split("\n")
            self.write_parts((f"{name:<{width}}  ", "cyan"), (first, ""))
            for line in more:
                self.write_parts((" " * (width + 2) + line, ""))

    def _table(self, table: Rows | DataRows) -> None:
        headers = [clean(header) for header, _ in table.columns]
        right = [is_right for _, is_right in table.columns]
        rows = (["-" if cell is None else cell for cell in row] for row in table.rows)
        first = [[clean(str(cell)) for cell in row] for row in islice(rows, _MEASURED)]
        if self.rich.is_terminal and len(first) < _MEASURED:
            from rich.table import Table
            from rich.text import Text

            drawn = Table(box=None, pad_edge=False, header_style="bold cyan")
            for header, is_right in zip(headers, right, strict=True):
                justify = "right" if is_right else "left"
                drawn.add_column(header, justify=justify, overflow="fold", no_wrap=header in _WHOLE)  # type: ignore[arg-type]
            for row in first:
                drawn.add_row(*map(Text, row))
            self.rich.print(drawn)
            return
        widths = [max(map(len, column)) for column in zip(headers, *first, strict=True)]
        pattern = "  ".join(f"%{'' if r else '-'}{w}s" for w, r in zip(widths, right, strict=True))
        # a long table takes seconds if every line is styled on its own
        lines: Iterator[Sequence[object]] = chain([headers], first, rows)
        while some := list(islice(lines, _MEASURED)):
            self.rich.file.write(clean("".join([(pattern % tuple(row)).rstrip() + "\n" for row in some])))


def _raise_broken_pipe() -> NoReturn:
    raise BrokenPipeError


def _print_json(document: Any) -> None:
    click.echo(json.dumps(document, indent=2, ensure_ascii=False, default=_plain))


def _plain(report: Any) -> Any:
    return report.to_dict() if hasattr(report, "to_dict") else asdict(report)


@dataclass
class Output:
    """Shows what a command found: to people, to a pipe, or as JSON."""

    json: bool = False
    quiet: bool = False

    def show(self, document: Any, view: str | Iterable[Item], brief: Iterable[str] = ()) -> None:
        """Show a command's result.

        Args:
            document: The whole result: plain data and reports; or a function that makes it.
            view: What people see.
            brief: The lines that remain under ``--quiet``.
        """
        if self.json:
            _print_json(document() if callable(document) else document)
        elif self.quiet:
            for line in brief:
                click.echo(clean(line))
        else:
            console = _Console(sys.stdout)
            for item in [view] if isinstance(view, str) else view:
                console.draw(item)

    def error(self, error: Mapping[str, Any], code: int) -> None:
        if self.json:
            _print_json({**error, "exit_code": code})
            return
        console = _Console(sys.stderr)
        console.write_parts(("Error: ", "bold red"), (clean(error["message"]), ""))
        if error["table"] is not None:
            at = "" if error["version"] is None else f", version {error['version']}"
            console.write_line(f"  at table {error['table']}{at}")
        if error["suggestion"]:
            console.write_line(f"  → {error['suggestion']}", "yellow")

    def note(self, text: str) -> None:
        """Print a line beside the result, on stderr; programs need none."""
        if not self.json and not self.quiet:
            _Console(sys.stderr).write_line(text, "dim")

    @contextmanager
    def progress(self, label: str) -> Iterator[Advance]:
        """A bar on a terminal, a line for every tenth anywhere else; both on stderr."""
        console = _Console(sys.stderr)
        if self.json or self.quiet:
            yield lambda done, total, now="": None  # noqa: ARG005
        elif console.rich.is_terminal:
            from rich.progress import (
                BarColumn,
                MofNCompleteColumn,
                Progress,
                TextColumn,
                TimeElapsedColumn,
                TimeRemainingColumn,
            )

            text, bar, done_of = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
            times = TimeElapsedColumn(), TimeRemainingColumn()
            with Progress(text, bar, done_of, *times, console=console.rich, transient=True) as shown:
                task = shown.add_task(clean(label), total=None)

                def move(done: int, total: int, now: str = label) -> None:
                    shown.update(task, completed=done, total=total, description=clean(now))

                yield move
        else:
            tenths, before = -1, label

            def line(done: int, total: int, now: str = label) -> None:
                nonlocal tenths, before
                reached = 10 * done // max(total, 1)
                if reached > tenths or now != before:
                    tenths, before = reached, now
                    console.write_line(f"{now}: {done} of {total}")

            yield line
