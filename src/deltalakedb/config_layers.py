"""Where settings come from: each source as a layer of values that knows how to name a value's place."""

from __future__ import annotations

import difflib
import grp
import json
import os
import pwd
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import BaseModel

from deltalakedb.exceptions import ConfigError
from deltalakedb.redaction import redact

__all__ = ["Layer", "arguments", "environment", "explain", "file_layer", "variable"]

PREFIX: Final = "DELTASQL_"
_SECRET_PLACES: Final = frozenset({("catalog",), ("catalog", "uri"), ("storage",)})

Known = Mapping[str, frozenset[str] | None]


@dataclass(frozen=True, slots=True)
class Layer:
    """Values of one source; ``origin`` is None for the environment, where each value has its own name."""

    values: Mapping[str, Any] = field(repr=False)
    origin: str | None

    def has(self, path: tuple[str, ...]) -> bool:
        """True where this source sets the value at the path, or something above or below it."""
        at: Any = self.values
        for key in path:
            if not isinstance(at, Mapping):
                return True
            if key not in at:
                return False
            at = at[key]
        return True

    def value_of(self, path: tuple[str, ...]) -> Any:
        """The value at the path, or the one above that stands in its way."""
        at: Any = self.values
        for key in path:
            if not isinstance(at, Mapping):
                break
            at = at[key]
        return at

    def origin_of(self, path: tuple[str, ...]) -> str:
        """Where a value was set, in words that a user can go to."""
        if self.origin is not None:
            return self.origin
        if path == ("catalog", "uri") and not os.environ.get(variable(path)):
            path = path[:1]
        elif len(path) == 1 and path != ("storage",):
            return f"{variable(path)}__*"
        return variable(path)

    def place_of(self, path: tuple[str, ...]) -> str:
        """The same for a message: a file or argument needs the key beside it, a variable's name holds it."""
        where = self.origin_of(path)
        return where if self.origin is None or not path else f"{where}: {'.'.join(path)}"


def variable(path: tuple[str, ...]) -> str:
    """The environment variable of a setting."""
    path = path[:1] if path[:1] == ("storage",) else path
    return PREFIX + "__".join(part.upper() for part in path)


def arguments(sections: Mapping[str, Any]) -> Layer:
    """The layer of arguments: dicts, section objects (only what was set on them counts), or an address."""
    values: dict[str, Any] = {}
    for name, section in sections.items():
        if isinstance(section, BaseModel):
            section = {key: getattr(section, key) for key in section.model_fields_set}
        values[name.rstrip("_")] = _spread(name, section)
    return Layer(values, "argument")


def environment(known: Known) -> Layer:
    """The layer of ``DELTASQL_SECTION__KEY`` variables; empty ones count as unset.

    Other ``DELTASQL_`` names are left alone unless they look like a setting that was misspelt.
    """
    values: dict[str, Any] = {}
    for name, text in os.environ.items():
        if not name.startswith(PREFIX) or not text:
            continue
        section, delimiter, key = name[len(PREFIX) :].lower().partition("__")
        if section not in known:
            _refuse_misspelt(name, section, known, nested=bool(delimiter))
        elif known[section] is None:
            values[section] = _json(name, text)
        elif key:
            values.setdefault(section, {})[key] = text
        elif section == "catalog":
            values.setdefault(section, {}).setdefault("uri", text)
        else:
            raise ConfigError(f"{name} names a section", suggestion=f"set {name}__KEY")
    return Layer(values, None)


def file_layer(path: str | os.PathLike[str] | None) -> Layer:
    """The layer of a file: the given one, that of ``DELTASQL_CONFIG``, or the first of the usual ones.

    A file that is only found in the current folder may be anybody's: it must belong to the user, and it
    cannot refer to environment variables, which would send them to a server of its choice.
    """
    named_by = "" if path is not None else f"{PREFIX}CONFIG: "
    named = path if path is not None else os.environ.get(f"{PREFIX}CONFIG") or None
    chosen = named if named is not None else _usual_file()
    if chosen is None:
        return Layer({}, "")
    file = Path(chosen).expanduser()
    found_here = named is None and not file.is_absolute()
    try:
        with file.open(encoding="utf-8") as stream:
            if found_here:
                _check_owner(file, os.fstat(stream.fileno()))
            text = stream.read()
    except UnicodeDecodeError:
        raise ConfigError(f"{named_by}{file} is not UTF-8 text", suggestion="save it as UTF-8") from None
    except OSError as error:
        reason = error.strerror or type(error).__name__
        hint = "check the path, and who may read it"
        raise ConfigError(f"{named_by}{file} cannot be read: {reason}", suggestion=hint) from error
    values = _parse(file, text)
    if values is None:
        values = {}
    if not isinstance(values, dict):
        raise ConfigError(f"{file} holds no sections", suggestion="write [pool] and below it max_size = 8")
    sections = {str(name): _spread(str(name), section) for name, section in values.items()}
    if found_here:
        _refuse_references(file, sections.get("catalog"))
    return Layer(sections, str(file))


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
    """Whether a group has the user as its only member, as where the usual umask is 002."""
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
            f"{file}: catalog.uri refers to an environment variable, and a file that is found in the current "
            "folder may not",
            suggestion=f"name the file: `--config {file}` or {PREFIX}CONFIG={file}; or put the address into "
            f"{PREFIX}CATALOG or ~/.config/deltasql/config.toml",
        )


def explain(errors: list[Any], layers: tuple[Layer, ...], known: Known) -> ConfigError:
    """Turn pydantic's findings into one error that names each place, without any secret value."""
    faults, hints = [], []
    for error in errors:
        path = tuple(str(part) for part in error["loc"] if part != "[key]")
        layer = next((layer for layer in layers if layer.values and layer.has(path)), None)
        place = layer.place_of(path) if layer else ".".join(path)
        if error["type"] == "extra_forbidden":
            faults.append(f"{place}: there is no such setting")
            hints.append(_nearest(path, known))
            continue
        reason = str(error.get("ctx", {}).get("error", "")) or error["msg"]
        shown = ""
        if layer and len(path) > 1 and not _is_secret(path):
            shown = f", not {redact(repr(layer.value_of(path)))[:80]}"
        faults.append(f"{place}: {reason[:1].lower()}{reason[1:]}{shown}")
    hint = "; ".join(dict.fromkeys(hints)) or "correct it; docs/reference/configuration.md lists all settings"
    return ConfigError("\n".join(faults), suggestion=hint)


def _is_secret(path: tuple[str, ...]) -> bool:
    """Whether the value of a setting may be a secret, whatever its type: then errors do not show it."""
    pair = f"{path[-1]}=value"
    return path in _SECRET_PLACES or path[0] == "storage" or redact(pair) != pair


def _spread(name: str, section: Any) -> Any:
    """``catalog = "deltasql://…"`` is short for its ``uri``."""
    is_address = name == "catalog" and section is not None and not isinstance(section, Mapping)
    return {"uri": section} if is_address else section


def _nearest(path: tuple[str, ...], known: Known) -> str:
    inner = known.get(path[0]) if len(path) > 1 else None
    choices = sorted(inner if inner is not None else known)
    close = difflib.get_close_matches(path[-1], choices, n=1, cutoff=0.5)
    where = f"[{path[0]}] has" if inner is not None else "there are"
    return f"did you mean {close[0]}?" if close else f"{where} {', '.join(choices)}"


def _refuse_misspelt(name: str, section: str, known: Known, *, nested: bool) -> None:
    if nested:
        raise ConfigError(f"{name}: there is no such section", suggestion=_nearest((section,), known))
    head = next((s for s, keys in known.items() if keys and section.removeprefix(f"{s}_") in keys), None)
    if head is not None:
        right = variable((head, section.removeprefix(f"{head}_")))
        raise ConfigError(f"{name}: there is no such setting", suggestion=f"did you mean {right}?")


def _json(name: str, text: str) -> Any:
    form = '{"s3://bucket/": {"region": "eu-west-1"}}'
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ConfigError(f"{name} is not a JSON object", suggestion=f"write it like {form}")
    return value


def _usual_file() -> Path | None:
    home = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "deltasql"
    here = [Path(f"deltasql.{suffix}") for suffix in ("toml", "yaml", "yml")]
    usual = [*here, *(home / f"config.{suffix}" for suffix in ("toml", "yaml", "yml"))]
    return next((file for file in usual if file.is_file()), None)


def _parse(file: Path, text: str) -> Any:
    if file.suffix not in (".toml", ".yaml", ".yml"):
        raise ConfigError(f"{file} is neither TOML nor YAML", suggestion="name it .toml, .yaml or .yml")
    try:
        return tomllib.loads(text) if file.suffix == ".toml" else yaml.safe_load(text)
    except tomllib.TOMLDecodeError as error:
        fault = f"TOML: {error}"
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        fault = f"YAML: {error.problem}" + (
            f" (at line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        )
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        fault = f"YAML: {type(error).__name__}"
    # Raised out here, since the parsers' errors hold the text, and that may hold a secret.
    raise ConfigError(f"{file} is not {fault}", suggestion="correct the syntax there")
