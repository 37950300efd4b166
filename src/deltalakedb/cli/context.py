"""What every command starts from: its common options, settings, and the catalog that is meant."""

from __future__ import annotations

import re
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
from deltalakedb.exceptions import CatalogNotFoundError, ConfigError, TableMissingError
from deltalakedb.redaction import redact

# wrong usage is reported without importing settings, databases and Arrow, which takes time
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from deltalakedb.catalog import Catalog
    from deltalakedb.settings import Config


#: a catalog's name in the configuration, and a table of it; a URL has slashes after its colon
_NAME = re.compile("[A-Za-z][A-Za-z0-9_-]*")
_IN_CATALOG = re.compile(f"({_NAME.pattern}):(?!//)(.+)")


def is_location(target: str) -> bool:
    """Whether a TABLE is a path or URL: names have no slashes."""
    return "/" in target or target in (".", "..", "~")


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
        if self.catalog is None:
            if (default := self.settings().catalog.uri) is not None:
                return default
            raise click.UsageError(
                "no catalog is named: use --catalog deltasql://sqlite//path/meta.db, set DELTASQL_CATALOG, "
                'or set uri = "deltasql://…" below [catalog] in deltasql.toml'
            )
        if _NAME.fullmatch(self.catalog):
            return self.settings().catalog_address(self.catalog)
        address = parse_address(self.catalog)
        if address.is_table:
            raise click.UsageError(
                f"--catalog needs a catalog's address, and {address.to_uri()} is a table's"
            )
        return address

    def is_default(self, address: Address) -> bool:
        """Whether commands without ``--catalog`` use this catalog."""
        default = self.settings().catalog.uri
        return default is not None and default.absolute() == address

    def table_address(self, target: str, *, new: bool = False) -> Address:
        """The address of a TABLE: a name, an address, ``catalog:name``, or a registered table's location.

        Every command that takes a TABLE comes by here. The catalog is only opened to find a location.

        Args:
            target: What the user wrote.
            new: The table need not exist, so it has no location to be found by.
        """
        if is_deltasql(target):
            if self.catalog is not None:
                raise click.UsageError("give the table's full address or --catalog with its name, not both")
            address = parse_address(target)
            address.require_table()
            return address
        if (named := _IN_CATALOG.fullmatch(target)) is not None:
            if self.catalog is not None:
                raise click.UsageError(f"give {target} or --catalog with the table's name, not both")
            catalog, target = self._named_catalog(*named.groups()), named[2]
        else:
            catalog = self.catalog_address()
        if new or not is_location(target):
            return catalog.with_table(target)
        with self.open_catalog(catalog) as opened:
            if (found := opened.find(location=target)) is None:
                raise TableMissingError(
                    f"no table of {catalog.to_uri()} is at {target}",
                    suggestion="`deltasql list` shows the tables; `deltasql import` imports one in place",
                )
        return catalog.with_table(found.name)

    def _named_catalog(self, name: str, table: str) -> Address:
        try:
            return self.settings().catalog_address(name)
        except ConfigError as error:
            hint = f"{error.suggestion}; a table that is itself called {name}:{table} needs its address"
            raise ConfigError(error.message, suggestion=hint) from error

    def one_catalog(self, targets: Sequence[str]) -> tuple[Address, list[str]]:
        """The catalog of some tables, and their names in it; the default catalog if there are none."""
        tables = [self.table_address(target) for target in targets]
        address, *others = {t.catalog for t in tables} or {self.catalog_address()}
        if others:
            raise click.UsageError("the tables are in several catalogs: name the tables of one at a time")
        return address, [t.require_table() for t in tables]

    @contextmanager
    def open_catalog(
        self, address: Address | None = None, *, create: bool = False, dry_run: bool = False
    ) -> Iterator[Catalog]:
        """The catalog, closed again at the end.

        Without ``create`` a missing one is not created, whatever the settings say: a command that only reads
        must not answer a typing error with an empty catalog. With ``dry_run`` it only could be created.
        """
        from deltalakedb.catalog import Catalog
        from deltalakedb.settings import use_config

        address = (address or self.catalog_address()).catalog
        with use_config(self.settings(create=None if create else False)):
            try:
                opened = Catalog(address, create=create and not dry_run)
            except CatalogNotFoundError as error:
                if create:
                    raise
                raise CatalogNotFoundError(
                    f"there is no catalog at {address.to_uri()}",
                    suggestion=f"check the address, or create it with `deltasql init '{address.to_uri()}'`",
                ) from error
            with opened as catalog:
                yield catalog

    def table_names(self) -> list[str]:
        """The names of all tables, for completion: without Arrow and delta-rs, whose import takes time."""
        from deltalakedb.metastore.database import Database

        with Database.open(self.catalog_address(), self.settings(create=False)) as database:
            return [name for (name,) in database.rows(database.sql("tables", "names"))]

    def version_of(self, catalog: Catalog, name: str, side: int | datetime | None) -> int | None:
        """The version that a version or a time means; None for the newest."""
        if side is None or isinstance(side, int):
            return side
        return catalog.log(name).version_at(int(side.timestamp() * 1000))

    @contextmanager
    def open_tables(self, targets: Sequence[str]) -> Iterator[tuple[Catalog, list[str]]]:
        """The open catalog of some tables and their names in it; the default catalog if there are none."""
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
