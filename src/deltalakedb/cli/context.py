"""What every command starts from: its common options, settings, and the catalog that is meant."""

from __future__ import annotations

import shlex
import signal
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from deltalakedb.address import Address, is_deltasql, parse_address
from deltalakedb.cli.output import ExitCode, Interrupted, Output
from deltalakedb.exceptions import CatalogNotFoundError
from deltalakedb.redaction import redact

# wrong usage is reported without importing settings, databases and Arrow, which takes time
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from deltalakedb.catalog import Catalog
    from deltalakedb.settings import Config


@dataclass
class Invocation(Output):
    """One run of the command, filled by the common options, before or after the command."""

    yes: bool = False
    debug: bool = False
    catalog: str | None = None
    config: str | None = None
    words: Sequence[str] = ()

    def settings(self, *, create: bool | None = None, auto_migrate: bool | None = None) -> Config:
        """The settings of this run: file and environment, overridden by what the command itself decides."""
        from deltalakedb.settings import Config

        own = {"create": create, "auto_migrate": auto_migrate}
        return Config.load(self.config, catalog={k: v for k, v in own.items() if v is not None})

    def catalog_address(self) -> Address:
        """The catalog of ``--catalog``, ``DELTASQL_CATALOG`` or the configuration file, in this order."""
        if self.catalog is not None:
            address = parse_address(self.catalog)
            if address.is_table:
                raise click.UsageError(
                    f"--catalog needs a catalog's address, and {address.to_uri()} is a table's"
                )
            return address
        if (default := self.settings().catalog.uri) is not None:
            return default
        raise click.UsageError(
            "no catalog is named: use --catalog deltasql://sqlite//path/meta.db, set DELTASQL_CATALOG, "
            'or write catalog = "deltasql://…" into deltasql.toml'
        )

    def is_default(self, address: Address) -> bool:
        """Whether commands without ``--catalog`` use this catalog."""
        default = self.settings().catalog.uri
        return default is not None and default.absolute() == address

    def table_address(self, target: str) -> Address:
        """A table by its full address, or by its name in the catalog that is meant."""
        if not is_deltasql(target):
            return self.catalog_address().with_table(target)
        if self.catalog is not None:
            raise click.UsageError("give the table's full address or --catalog with its name, not both")
        address = parse_address(target)
        address.require_table()
        return address

    def one_catalog(self, targets: Sequence[str]) -> tuple[Address, list[str]]:
        """The catalog of some tables, and their names in it; the catalog that is meant if there are none."""
        tables = [self.table_address(target) for target in targets]
        address, *others = {t.catalog for t in tables} or {self.catalog_address()}
        if others:
            raise click.UsageError("the tables are in several catalogs: name the tables of one at a time")
        return address, [t.require_table() for t in tables]

    @contextmanager
    def open_catalog(self, address: Address | None = None, *, create: bool = False) -> Iterator[Catalog]:
        """The catalog, closed again at the end.

        Without ``create`` a missing one is not created, whatever the settings say: a command that only reads
        must not answer a typing error with an empty catalog.
        """
        from deltalakedb.catalog import Catalog
        from deltalakedb.settings import use_config

        address = (address or self.catalog_address()).catalog
        with use_config(self.settings(create=None if create else False)):
            try:
                opened = Catalog(address, create=create)
            except CatalogNotFoundError as error:
                if create:
                    raise
                raise CatalogNotFoundError(
                    f"there is no catalog at {address.to_uri()}",
                    suggestion="check the address, or create the catalog with `deltasql init`",
                ) from error
            with opened as catalog:
                yield catalog

    @contextmanager
    def open_tables(self, targets: Sequence[str]) -> Iterator[tuple[Catalog, list[str]]]:
        """The catalog of some tables and their names in it; the catalog that is meant if there are none."""
        address, names = self.one_catalog(targets)
        with self.open_catalog(address) as catalog:
            yield catalog, names

    @contextmanager
    def resumable(self, kept: str) -> Iterator[None]:
        """Answer Ctrl-C with the command that continues the work."""
        try:
            yield
        except KeyboardInterrupt as interrupt:
            command = redact(shlex.join(["deltasql", *self.words]))
            raise Interrupted(f"interrupted: {kept}", f"run `{command}` to continue") from interrupt

    def confirm(self, question: str) -> None:
        """Ask before a change, unless ``--yes`` is given; a no ends the command with exit code 1."""
        if self.yes:
            return
        if not sys.stdin.isatty():
            raise click.UsageError("not a terminal: pass --yes to continue")
        if not click.confirm(question, err=True):
            self.note("Nothing was changed.")
            raise click.exceptions.Exit(ExitCode.ERROR)


@contextmanager
def stop_on_signal() -> Iterator[threading.Event]:
    """An event that Ctrl-C and SIGTERM set, so that a command that runs on can finish its round."""
    stop = threading.Event()
    before = {s: signal.signal(s, lambda *_: stop.set()) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
