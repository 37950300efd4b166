"""Where settings come from: arguments, environment variables, and one file."""

from __future__ import annotations

import grp
import json
import os
import pwd
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import BaseModel

from deltalakedb.exceptions import ConfigError

PREFIX: Final = "DELTASQL_"
#: ``Source.value_at`` of a setting that a source does not set
UNSET: Final = object()

#: section -> its keys; None if it takes any key
Sections = Mapping[str, frozenset[str] | None]
Keys = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Source:
    """The values of one source, by section and key. The environment has no name: each variable has one."""

    values: Mapping[str, Any] = field(repr=False)
    name: str | None

    def value_at(self, path: Keys) -> Any:
        """The value at a path, or the one above it that is not a section, or UNSET."""
        at: Any = self.values
        for key in path:
            if not isinstance(at, Mapping):
                return at
            if key not in at:
                return UNSET
            at = at[key]
        return at

    def origin(self, path: Keys) -> str:
        """The file, the variable, or ``argument``: where a user changes the value."""
        if self.name is not None:
            return self.name
        if path == ("catalog", "uri") and not os.environ.get(variable(path)):
            return variable(path[:1])
        return variable(path) + ("__*" if len(path) == 1 and path != ("storage",) else "")


def variable(path: Keys) -> str:
    """The environment variable of a setting."""
    path = path[:1] if path[:1] == ("storage",) else path
    return PREFIX + "__".join(part.upper() for part in path)


def merge(sources: tuple[Source, ...]) -> dict[str, Any]:
    """The values of all sources; the first source that sets a value wins."""
    merged: dict[str, Any] = {}
    for source in reversed(sources):
        merged = _updated(merged, source.values)
    return merged


def _updated(old: Any, new: Any) -> Any:
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return new
    return {**old, **{key: _updated(old.get(key), value) for key, value in new.items()}}


def read_arguments(sections: Mapping[str, Any]) -> Source:
    """Dicts, section objects, of which only what was set counts, or the address of the default catalog."""
    values: dict[str, Any] = {}
    for name, section in sections.items():
        if isinstance(section, BaseModel):
            section = {key: getattr(section, key) for key in section.model_fields_set}
        values[name.rstrip("_")] = _expand_catalog(name, section)
    return Source(values, "argument")


def read_environment(known: Sections) -> Source:
    """The variables ``DELTASQL_SECTION__KEY``; an empty one counts as unset.

    Other ``DELTASQL_`` variables are ignored unless they look like a misspelt setting.
    """
    values: dict[str, Any] = {}
    for name, text in os.environ.items():
        if not name.startswith(PREFIX) or not text:
            continue
        section, delimiter, key = name[len(PREFIX) :].lower().partition("__")
        if section not in known:
            _refuse_misspelt(name, section, known, nested=bool(delimiter))
        elif known[section] is None:
            values[section] = _json_object(name, text)
        elif key:
            values.setdefault(section, {})[key] = text
        elif section == "catalog":
            values.setdefault(section, {}).setdefault("uri", text)
        else:
            raise ConfigError(f"{name} is a section", suggestion=f"set {name}__KEY")
    return Source(values, None)


def _refuse_misspelt(name: str, section: str, known: Sections, *, nested: bool) -> None:
    if nested:
        raise ConfigError(f"{name}: unknown section", suggestion=nearest((section,), known))
    for head, keys in known.items():
        key = section.removeprefix(f"{head}_")
        if keys and key in keys:
            raise ConfigError(f"{name}: unknown setting", suggestion=f"did you mean {variable((head, key))}?")


def _json_object(name: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        form = '{"s3://bucket/": {"region": "eu-west-1"}}'
        raise ConfigError(f"{name} is not a JSON object", suggestion=f"write it like {form}")
    return value


def read_file(path: str | os.PathLike[str] | None) -> Source:
    """A file: the given one, else that of ``DELTASQL_CONFIG``, else the first of the default ones.

    A file that was only found in the current folder may have been put there by another user: it must belong
    to this user, and cannot refer to environment variables, which would send them to a server of its choice.
    """
    label = "" if path is not None else f"{PREFIX}CONFIG: "
    named = path if path is not None else os.environ.get(f"{PREFIX}CONFIG") or None
    chosen = named if named is not None else _default_file()
    if chosen is None:
        return Source({}, "")
    file = Path(chosen).expanduser()
    found_here = named is None and not file.is_absolute()
    try:
        with file.open(encoding="utf-8") as stream:
            if found_here:
                _check_owner(file, os.fstat(stream.fileno()))
            text = stream.read()
    except UnicodeDecodeError:
        raise ConfigError(f"{label}{file} is not UTF-8 text", suggestion="save it as UTF-8") from None
    except OSError as error:
        reason = error.strerror or type(error).__name__
        hint = "check the path and its permissions"
        raise ConfigError(f"{label}{file} cannot be read: {reason}", suggestion=hint) from error
    values = _parse(file, text)
    if not isinstance(values, dict):
        raise ConfigError(f"{file} has no sections", suggestion="write [pool], and below it max_size = 8")
    sections = {str(name): _expand_catalog(str(name), section) for name, section in values.items()}
    if found_here:
        _refuse_references(file, sections.get("catalog"))
    return Source(sections, str(file))


def _default_file() -> Path | None:
    home = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "deltasql"
    names = (Path("deltasql"), home / "config")
    files = [name.with_suffix(suffix) for name in names for suffix in (".toml", ".yaml", ".yml")]
    return next((file for file in files if file.is_file()), None)


def _check_owner(file: Path, status: os.stat_result) -> None:
    """Refuse a file in the current folder that another user may have put there or changed."""
    trusted = (0, os.geteuid())
    link, folder = file.lstat(), Path.cwd().stat()
    if status.st_uid not in trusted or link.st_uid not in trusted:
        fault = "belongs to another user"
    elif status.st_mode & 0o002 or (status.st_mode & 0o020 and not _is_private_group(status.st_gid)):
        fault = "can be changed by other users"
    elif folder.st_uid not in trusted or (folder.st_mode & 0o002 and not folder.st_mode & stat.S_ISVTX):
        fault = "is in a folder of another user, or one that every user can change"
    else:
        return
    raise ConfigError(
        f"{file.absolute()} {fault}, so it is not read",
        suggestion=f"if you trust it: chown it to yourself and `chmod go-w {file}`, or name it: "
        f"`--config {file}` or {PREFIX}CONFIG={file}; else delete it or work in another folder",
    )


def _is_private_group(gid: int) -> bool:
    """Whether the user is the only member of a group, as is usual with the umask 002."""
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    members = {*group.gr_mem, *(other.pw_name for other in pwd.getpwall() if other.pw_gid == gid)}
    return members == {user.pw_name}


def _refuse_references(file: Path, catalog: Any) -> None:
    uri = catalog.get("uri") if isinstance(catalog, Mapping) else None
    if isinstance(uri, str) and "${" in uri:
        raise ConfigError(
            f"{file}: catalog.uri refers to an environment variable; a file that was found in the current "
            "folder may not do that",
            suggestion=f"name the file: `--config {file}` or {PREFIX}CONFIG={file}; or put the address into "
            f"{PREFIX}CATALOG or ~/.config/deltasql/config.toml",
        )


def _parse(file: Path, text: str) -> Any:
    if file.suffix not in (".toml", ".yaml", ".yml"):
        raise ConfigError(f"{file} is neither TOML nor YAML", suggestion="name it .toml, .yaml or .yml")
    try:
        if file.suffix == ".toml":
            return tomllib.loads(text)
        return {} if (values := yaml.safe_load(text)) is None else values
    except tomllib.TOMLDecodeError as error:
        fault = f"TOML: {error}"
    except yaml.MarkedYAMLError as error:
        fault = f"YAML: {error.problem}"
        if (mark := error.problem_mark) is not None:
            fault += f" (at line {mark.line + 1}, column {mark.column + 1})"
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        fault = f"YAML: {type(error).__name__}"
    # Raised outside of the handlers: the parsers' errors contain the text, which may contain a secret.
    raise ConfigError(f"{file} is not {fault}", suggestion="correct the syntax there")


def _expand_catalog(name: str, section: Any) -> Any:
    """``catalog = "deltasql://…"`` is short for its ``uri``."""
    is_address = name == "catalog" and section is not None and not isinstance(section, Mapping)
    return {"uri": section} if is_address else section


def nearest(path: Keys, known: Sections) -> str:
    """A hint for an unknown section or key: the most similar name, else all names."""
    keys = known.get(path[0]) if len(path) > 1 else None
    choices = sorted(known if keys is None else keys)
    close = get_close_matches(path[-1], choices, n=1, cutoff=0.5)
    where = "the sections are" if keys is None else f"[{path[0]}] has"
    return f"did you mean {close[0]}?" if close else f"{where} {', '.join(choices)}"
