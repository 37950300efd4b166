"""Commands about the settings: config show, validate and init."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from deltalakedb.cli import render
from deltalakedb.cli.options import PREVIEWING, command, common, flag
from deltalakedb.cli.output import Item, Rows
from deltalakedb.exceptions import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deltalakedb.cli.context import Invocation
    from deltalakedb.settings import Config, Setting


@click.group("config")
@common
def config() -> None:
    """Show, check and create the configuration.

    \b
    Examples:
      deltasql config show
      deltasql config validate --config deltasql.toml
      deltasql config init --catalog deltasql://sqlite//srv/lake/meta.db
    """


def _settings(cli: Invocation) -> Config:
    """The settings of this run, with the catalog of ``--catalog`` as an argument."""
    from deltalakedb.settings import Config

    return Config.load(cli.config, **({} if cli.catalog is None else {"catalog": cli.catalog_address()}))


def _origin(setting: Setting) -> tuple[str, str | None]:
    """What sets a value, and the file, variable or option by which a user changes it."""
    if setting.kind == "argument":
        return "option", "--catalog"
    return setting.kind, None if setting.kind == "default" else setting.origin


@command("show", group=config, short_help="Show every setting, and where it comes from.")
@click.argument("names", metavar="[SETTING]...", nargs=-1)
@flag("--changed", "Only settings that differ from their default.")
def show(cli: Invocation, names: tuple[str, ...], changed: bool) -> None:
    """Show the settings with their values and origins: default, file, environment or option.

    SETTING is a name such as pool.max_size, or a section such as pool. Passwords are masked.

    \b
    Examples:
      deltasql config show
      deltasql config show pool publish.mode
      deltasql config show --changed --json
    """
    settings = _settings(cli)
    every = settings.describe()
    for name in names:
        if not any(_is_in(s, name) for s in every):
            raise click.UsageError(f"there is no setting {name!r}: `deltasql config show` lists all")
    found = [
        s
        for s in every
        if (not names or any(_is_in(s, name) for name in names)) and not (changed and s.kind == "default")
    ]
    document: list[dict[str, Any]] = []
    for s in found:
        origin, source = _origin(s)
        entry = {"name": s.name, "value": s.value, "origin": origin, "source": source}
        document.append({**entry, "variable": s.variable, "help": s.help})
    rows = [(d["name"], d["value"] or None, d["origin"], d["source"]) for d in document]
    read = f"Configuration file: {settings.file}" if settings.file else "No configuration file was read."
    view: list[Item] = (
        [Rows("SETTING|VALUE|ORIGIN|SOURCE", rows)] if rows else ["Every setting is a default."]
    )
    brief = [f"{d['name']}={d['value']}" for d in document]
    cli.show({"file": settings.file, "settings": document}, [*view, (read, "dim")], brief)


def _is_in(setting: Setting, name: str) -> bool:
    return f"{setting.name}.".startswith(f"{name}.")


@command("validate", group=config, short_help="Check the configuration without connecting to anything.")
def validate(cli: Invocation) -> None:
    """Check the file, the variables and the address of every named catalog, without connecting to anything.

    Exit code 2 if something is wrong; the error names the file or variable and the setting.

    \b
    Examples:
      deltasql config validate
      deltasql config validate --config /etc/deltasql.toml --json
    """
    settings = _settings(cli)
    faults: dict[str, str | None] = {}
    addresses = {}
    for name in settings.catalogs:
        try:
            addresses[name] = settings.catalog_address(name).to_uri()
        except ConfigError as error:
            faults[error.message] = error.suggestion
    if faults:
        hints = "; ".join(dict.fromkeys(hint for hint in faults.values() if hint))
        raise ConfigError("\n".join(faults), suggestion=hints)
    changed = sum(s.kind != "default" for s in settings.describe())
    default = settings.catalog.uri
    document: dict[str, Any] = {
        "ok": True,
        "file": settings.file,
        "catalog": None if default is None else default.to_uri(),
        "catalogs": addresses,
        "changed_settings": changed,
    }
    fields: dict[str, str | None] = {"file": settings.file, "catalog": document["catalog"]}
    fields |= {f"catalogs.{name}": address for name, address in addresses.items()}
    line = f"The configuration is valid: {render.many(changed, 'setting')} changed."
    cli.show(document, [line, fields])


@command("init", PREVIEWING, group=config, short_help="Write a configuration file with every setting.")
@click.argument("file", metavar="[FILE]", required=False)
@flag("--user", "Write ~/.config/deltasql/config.toml, which is read in every folder.")
def init(cli: Invocation, file: str | None, user: bool, dry_run: bool) -> None:
    """Write a TOML file that lists every setting with its default, commented out.

    FILE is deltasql.toml in the current folder unless given. The address of --catalog becomes the default
    catalog. An existing file is not overwritten. Only you can read the file, since it may have a password.

    \b
    Examples:
      deltasql config init
      deltasql config init --user --catalog deltasql://postgres/ada@db.example.com/lake/meta
      deltasql config init --dry-run
    """
    from deltalakedb.address import parse_address
    from deltalakedb.settings import user_folder

    if user and file is not None:
        raise click.UsageError("give FILE or --user, not both")
    path = user_folder() / "config.toml" if user else Path(file or "deltasql.toml")
    if path.suffix != ".toml":
        raise click.UsageError(f"{path} must end in .toml: `config init` writes TOML")
    if cli.catalog is not None:
        if parse_address(cli.catalog).is_table:
            raise click.UsageError("--catalog needs a catalog's address, got a table's")
        if "${" in cli.catalog and file is None and not user:
            raise click.UsageError(
                "deltasql.toml in the current folder must not refer to variables (${…}): pass --user or FILE"
            )
    text = "\n".join([*_template(cli.catalog), ""])
    shown = "\n".join(_template(None if cli.catalog is None else parse_address(cli.catalog).to_uri()))
    if not dry_run:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise ConfigError(
                f"{path} already exists", suggestion="change it, or name another file: `config init FILE`"
            ) from None
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
    document = {"file": str(path), "created": not dry_run, "dry_run": dry_run, "text": shown}
    view: list[Item] = [shown, (f"Would be written to {path}.", "dim")] if dry_run else [f"Wrote {path}."]
    cli.show(document, view, [str(path)])


def _template(catalog: str | None) -> Iterator[str]:
    """The lines of a file with every setting; only the catalog is set, if there is one."""
    from deltalakedb.settings import Config, Section

    yield "# Settings of deltasql. Commented lines show the defaults."
    for field, info in Config.model_fields.items():
        name, kind = info.alias or field, info.annotation
        if not (isinstance(kind, type) and issubclass(kind, Section)):
            yield from ("", f"# {info.description}", *_EXAMPLES[name])
            continue
        yield from ("", f"[{name}]")
        for key, setting in kind.model_fields.items():
            yield f"# {setting.description}"
            if (name, key) == ("catalog", "uri") and catalog is not None:
                yield f"uri = {json.dumps(catalog, ensure_ascii=False)}"
            elif setting.default is None:
                yield f"# {key} ="
            else:
                yield f"# {key} = {json.dumps(setting.default, ensure_ascii=False)}"


#: examples of the sections whose keys users choose
_EXAMPLES = {
    "catalogs": ("[catalogs]", '# prod = "deltasql://postgres/ada@db.example.com/lake/meta"'),
    "storage": ('# [storage."s3://bucket/"]', '# region = "eu-west-1"'),
}
