"""What all actions share: fields by their JSON names, checked on the way in, and unknown fields kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias

from deltalakedb.exceptions import ProtocolError
from deltalakedb.protocol.json_text import JsonValue

JsonDict: TypeAlias = dict[str, Any]

_NOTHING: Mapping[str, Any] = {}
_BIGGEST = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields(JsonValue):
    """Shared by all values: JSON field names, unknown fields, and which fields a value must have."""

    extra: Mapping[str, Any] = field(default_factory=dict)

    #: attribute -> name in the log's JSON
    _names: ClassVar[Mapping[str, str]] = _NOTHING
    #: attributes without which the value is meaningless
    _required: ClassVar[frozenset[str]] = frozenset()
    #: what readers assume where a writer left a field out
    _assumed: ClassVar[Mapping[str, Any]] = _NOTHING

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Build the value from the JSON object inside an action; unknown fields go to ``extra``.

        Raises:
            ProtocolError: A required field is missing, or a field has the wrong type.
        """
        plan = _plan(cls)
        readers = plan.readers
        known: JsonDict = dict(cls._assumed)
        rest: JsonDict = {}
        for key, value in data.items():
            if (entry := readers.get(key)) is None:
                rest[key] = value
            elif value is not None:
                attr, exact, read = entry
                known[attr] = value if type(value) is exact else read(value, key)
        if not cls._required.issubset(known):
            missing = sorted(cls._names[a] for a in cls._required - known.keys())
            raise ProtocolError(f"{cls.__name__} lacks {', '.join(missing)}")
        return cls(**known, extra=rest)

    def to_dict(self) -> JsonDict:
        """The JSON object inside the action: known fields in the protocol's order, then unknown ones."""
        out: JsonDict = {}
        plan = _plan(type(self))
        for name, value in zip(plan.names, plan.values(self), strict=True):
            if value is None:
                continue
            kind = type(value)
            out[name] = value if kind is str or kind is int or kind is bool else _plain(value)
        out.update(self.extra)
        return out


class _Plan(NamedTuple):
    """How a class is read and written, worked out once from its annotations."""

    #: name in the JSON -> attribute, the type that needs no reader, the reader
    readers: Mapping[str, tuple[str, type, Callable[[Any, str], Any]]]
    names: tuple[str, ...]
    values: Callable[[Any], tuple[Any, ...]]


_PLANS: dict[type[Fields], _Plan] = {}


def _plan(cls: type[Fields]) -> _Plan:
    if (plan := _PLANS.get(cls)) is None:
        readers = {}
        for f in fields(cls):
            if f.name in cls._names:
                exact, read = _READERS[str(f.type).removesuffix(" | None")]
                readers[cls._names[f.name]] = (f.name, exact, read)
        attrs = tuple(cls._names)
        values = attrgetter(*attrs) if attrs else lambda _: ()
        plan = _PLANS[cls] = _Plan(readers, tuple(cls._names.values()), values)
    return plan


def _plain(value: Any) -> Any:
    if isinstance(value, Fields):
        return value.to_dict()
    return list(value) if isinstance(value, tuple) else dict(value) if isinstance(value, Mapping) else value


def _wrong(name: str, wanted: str, value: Any) -> ProtocolError:
    return ProtocolError(f"{name} must be {wanted}, not {type(value).__name__}")


def _read_str(value: Any, name: str) -> str:
    if isinstance(value, str):
        return value
    raise _wrong(name, "a string", value)


def _read_int(value: Any, name: str) -> int:
    number: int
    if type(value) is int:
        number = value
    elif isinstance(value, float) and value.is_integer():
        number = int(value)
    else:
        raise _wrong(name, "an integer", value)
    if -_BIGGEST - 1 <= number <= _BIGGEST:
        return number
    raise ProtocolError(f"{name} does not fit 64 bits")


def _read_bool(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return value
    raise _wrong(name, "true or false", value)


def _read_strings(value: Any, name: str) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise _wrong(name, "an array of strings", value)
    return tuple(_read_str(v, name) for v in value)


def _read_map(value: Any, name: str) -> Mapping[str, str | None]:
    """A map of strings; pairs are what Parquet readers give for one."""
    try:
        found: dict[str, Any] = value if type(value) is dict else dict(value)
    except (TypeError, ValueError):
        raise _wrong(name, "an object", value) from None
    for v in found.values():
        if v is not None and type(v) is not str:
            return {key: _text(v, f"{name}.{key}") for key, v in found.items()}
    return found


def _text(value: Any, name: str) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int | float):
        return repr(value)
    raise _wrong(name, "a string", value)


class _Never:
    """A type that no value has: the reader always looks."""


_READERS: dict[str, tuple[type, Callable[[Any, str], Any]]] = {
    "str": (str, _read_str),
    "int": (_Never, _read_int),
    "bool": (bool, _read_bool),
    "tuple[str, ...]": (_Never, _read_strings),
    "Mapping[str, str]": (_Never, _read_map),
    "Mapping[str, str | None]": (_Never, _read_map),
}


def nested(cls: type[Fields]) -> type[Fields]:
    """Let other values have a field of type ``cls``."""

    def read(value: Any, name: str) -> Fields | None:
        if not isinstance(value, Mapping):
            raise _wrong(name, "an object", value)
        # Parquet readers may give a struct of nulls for a null struct
        return None if value and all(v is None for v in value.values()) else cls.from_dict(value)

    _READERS[cls.__name__] = (_Never, read)
    return cls
