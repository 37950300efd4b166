"""Where results go: words and colour for people, plain lines for a pipe, one JSON document for programs."""

from __future__ import annotations

import json
import sys
from abc import ABC, abstractmethod
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from deltalakedb.cli.render import clean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from rich.console import JustifyMethod


#: numbers and times stay whole on a narrow terminal; names and paths give way
_WHOLE = ("COMMITTED", "FILES", "ROWS", "SIZE", "STATE", "VERSION")


class Advance(Protocol):
    """Moves a progress bar."""

    def __call__(self, done: int, total: int, now: str = ..., /) -> None:
        """Report how much of how much is done, and the label if it changes."""


def _unseen(done: int, total: int, now: str = "") -> None:
    """Show no progress."""


class _Stdout(Console):
    """A console that raises for a closed pipe; the command ends without an error then."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


class Screen:
    """What a view can draw. Colour and boxes on a terminal, aligned plain lines anywhere else."""

    def __init__(self) -> None:
        self.console = _Stdout(
            file=sys.stdout, highlight=False, markup=False, emoji=False, soft_wrap=not sys.stdout.isatty()
        )

    def line(self, text: str = "", style: str | None = None) -> None:
        """One line of text."""
        self.console.print(Text(clean(text), style=style or ""))

    def fields(self, pairs: Sequence[tuple[str, str | None]]) -> None:
        """Names and values below each other; a missing value leaves its line out."""
        shown = [(name, value) for name, value in pairs if value]
        width = max((len(name) for name, _ in shown), default=0)
        for name, value in shown:
            first, *more = clean(value or "").split("\n")
            self.console.print(Text.assemble((f"{name:<{width}}  ", "cyan"), first))
            for line in more:
                self.console.print(Text(" " * (width + 2) + line))

    def table(
        self, headers: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = ()
    ) -> None:
        """Rows under headers; those named in ``right`` are set to the right."""
        cells = [[clean(cell) for cell in row] for row in rows]
        if self.console.is_terminal:
            table = Table(box=None, pad_edge=False, header_style="bold cyan")
            for header in headers:
                justify: JustifyMethod = "right" if header in right else "left"
                table.add_column(header, justify=justify, overflow="fold", no_wrap=header in _WHOLE)
            for row in cells:
                table.add_row(*(Text(cell) for cell in row))
            self.console.print(table)
            return
        widths = [max(len(row[i]) for row in [list(headers), *cells]) for i in range(len(headers))]
        for row in [list(headers), *cells]:
            padded = [
                cell.rjust(width) if header in right else cell.ljust(width)
                for cell, width, header in zip(row, widths, headers, strict=True)
            ]
            self.line("  ".join(padded).rstrip())

    def tree(self, title: str, branches: Mapping[str, Any]) -> None:
        """Nested names as a tree."""
        root = Tree(Text(clean(title), style="bold"), guide_style="dim")
        _grow(root, branches)
        self.console.print(root)


def _grow(tree: Tree, branches: Mapping[str, Any]) -> None:
    for name, below in branches.items():
        _grow(tree.add(Text(clean(name))), below)


class Output(ABC):
    """Takes what a command found out and shows it."""

    @abstractmethod
    def result(
        self, document: Any, view: Callable[[Screen], None], *, brief: Sequence[str] | None = None
    ) -> None:
        """Show a command's result.

        Args:
            document: The whole result as plain data.
            view: Draws it for people.
            brief: The lines that remain under ``--quiet``; nothing if None.
        """

    @abstractmethod
    def error(self, error: Mapping[str, Any], code: int) -> None:
        """Show why a command failed."""

    @abstractmethod
    def note(self, text: str) -> None:
        """Print a note beside the result."""

    @contextmanager
    def progress(self, label: str) -> Iterator[Advance]:
        """A function to call with what is done, what there is to do, and another label if it changes."""
        del label
        yield _unseen


class TextOutput(Output):
    """For people, and for pipes that people look at."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet

    def result(
        self, document: Any, view: Callable[[Screen], None], *, brief: Sequence[str] | None = None
    ) -> None:
        """Draw the view, or only the brief lines."""
        del document
        if not self.quiet:
            view(Screen())
            return
        for line in brief or ():
            click.echo(clean(line))

    def error(self, error: Mapping[str, Any], code: int) -> None:
        """Print the message, the table and the suggestion."""
        del code
        console = _stderr()
        console.print(Text.assemble(("Error: ", "bold red"), clean(error["message"])))
        if error["table"] is not None:
            at = "" if error["version"] is None else f", version {error['version']}"
            console.print(Text(f"  at table {clean(error['table'])}{at}"))
        if error["suggestion"]:
            console.print(Text(f"  → {clean(error['suggestion'])}", style="yellow"))

    def note(self, text: str) -> None:
        """A line beside the result, on stderr."""
        if not self.quiet:
            _stderr().print(Text(clean(text), style="dim"))

    @contextmanager
    def progress(self, label: str) -> Iterator[Advance]:
        """A bar on a terminal, a line for every tenth anywhere else; both on stderr."""
        console = _stderr()
        if self.quiet:
            yield _unseen
        elif console.is_terminal:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
            )
            with Progress(*columns, console=console, transient=True) as bar:
                task = bar.add_task(clean(label), total=None)

                def move(done: int, total: int, now: str = label) -> None:
                    bar.update(task, completed=done, total=total, description=clean(now))

                yield move
        else:
            tenths, before = -1, label

            def line(done: int, total: int, now: str = label) -> None:
                nonlocal tenths, before
                reached = 10 * done // max(total, 1)
                if reached > tenths or now != before:
                    tenths, before = reached, now
                    console.print(f"{clean(now)}: {done} of {total}")

            yield line


class JsonOutput(Output):
    """One document on stdout, whatever happens."""

    def result(
        self, document: Any, view: Callable[[Screen], None], *, brief: Sequence[str] | None = None
    ) -> None:
        """Print the document."""
        del view, brief
        click.echo(json.dumps(document, indent=2, ensure_ascii=False))

    def error(self, error: Mapping[str, Any], code: int) -> None:
        """Print the error as the document."""
        click.echo(json.dumps({**error, "exit_code": code}, indent=2, ensure_ascii=False))

    def note(self, text: str) -> None:
        """Programs need no notes."""


def _stderr() -> Console:
    return Console(
        file=sys.stderr, highlight=False, markup=False, emoji=False, soft_wrap=not sys.stderr.isatty()
    )
