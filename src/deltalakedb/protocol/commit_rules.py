"""What the protocol demands of one commit."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from deltalakedb.exceptions import ProtocolError
from deltalakedb.protocol.actions import Action, Add, Cdc, DomainMetadata, Metadata, Protocol, Remove, Txn
from deltalakedb.protocol.dv import resolve_dv
from deltalakedb.protocol.features import NAMEABLE, check_writable
from deltalakedb.protocol.paths import canonical_path
from deltalakedb.protocol.properties import APPEND_ONLY, is_on

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from deltalakedb.protocol.paths import TablePaths

_T = TypeVar("_T")


def check_commit(
    actions: Sequence[Action],
    *,
    version: int,
    protocol: Protocol | None,
    metadata: Metadata | None,
    paths: TablePaths,
    also: Collection[str] = (),
    own_commit: bool = True,
) -> tuple[Protocol, Metadata]:
    """Refuse a commit that the protocol forbids.

    Args:
        actions: The commit's actions.
        version: The version it would become.
        protocol: The table's protocol before it, None for version 0.
        metadata: The table's metadata before it, None for version 0.
        paths: Where the table's files may be, and its name.
        also: Writer features whose duties the caller fulfils itself.
        own_commit: False for a commit that another writer has made already: only its form is checked.

    Returns:
        Protocol and metadata as they are after the commit.

    Raises:
        ProtocolError: A rule is broken.
        UnsupportedFeatureError: The table has a feature that is not written here.
    """
    for kind in (Metadata, Protocol):
        if (count := sum(isinstance(a, kind) for a in actions)) > 1:
            what = f"a commit holds at most one {kind.__name__} action, this one {count}"
            raise ProtocolError(what, table=paths.table, version=version)
    protocol_after = next((a for a in actions if isinstance(a, Protocol)), protocol)
    metadata_after = next((a for a in actions if isinstance(a, Metadata)), metadata)
    if protocol_after is None or metadata_after is None:
        what = "version 0 must carry protocol and metaData"
        raise ProtocolError(what, table=paths.table, version=version)
    commit = _Commit(actions, version, protocol_after, metadata, paths, also)
    for rule in _WRITE_RULES if own_commit else _FORM_RULES:
        rule(commit)
    return protocol_after, metadata_after


@dataclass(frozen=True, slots=True)
class _Commit:
    """A commit that is judged: its protocol counts, and the metadata of the table before it."""

    actions: Sequence[Action]
    version: int
    protocol: Protocol
    metadata_before: Metadata | None
    paths: TablePaths
    also: Collection[str]

    def error(self, message: str, suggestion: str | None = None) -> ProtocolError:
        return ProtocolError(message, table=self.paths.table, version=self.version, suggestion=suggestion)


def _supported_features(commit: _Commit) -> None:
    # a feature that is only named asks nothing of a commit without files, but all of those that follow
    bare = commit.version > 0 and not any(isinstance(a, Add | Remove | Cdc) for a in commit.actions)
    also = {*commit.also, *NAMEABLE} if bare else commit.also
    check_writable(commit.protocol, table=commit.paths.table, also=also)


def _unique_files(commit: _Commit) -> None:
    for name, kind in (("add", Add), ("remove", Remove)):
        keys = [a.key for a in commit.actions if isinstance(a, kind)]
        if len(set(keys)) < len(keys):
            raise commit.error(f"the file {_repeated(keys)[0]} appears twice as {name}")


def _one_vector(commit: _Commit) -> None:
    check_one_vector(commit.actions, commit.paths, version=commit.version)


def _places(commit: _Commit) -> None:
    check_places(commit.actions, commit.paths)


def _unique_names(commit: _Commit) -> None:
    for what, names in (
        ("application id", [a.app_id for a in commit.actions if isinstance(a, Txn)]),
        ("metadata domain", [a.domain for a in commit.actions if isinstance(a, DomainMetadata)]),
    ):
        if len(set(names)) < len(names):
            raise commit.error(
                f"the {what} {_repeated(names)!r} appears twice; each may appear once in a commit"
            )


def _append_only(commit: _Commit) -> None:
    # as the table was: the commit that removes rows may switch it on, as a replaced table does, but not off
    before = commit.metadata_before
    if before is None or not is_on(before, APPEND_ONLY):
        return
    if any(isinstance(a, Remove) and a.data_change for a in commit.actions):
        raise commit.error(
            "the table is append-only (delta.appendOnly): rows cannot be removed or replaced",
            "append instead, or set delta.appendOnly to false",
        )


_Rule: TypeAlias = "Callable[[_Commit], None]"
#: what holds for the commits of every writer
_FORM_RULES: Final[tuple[_Rule, ...]] = (_unique_files, _one_vector, _places)
_WRITE_RULES: Final[tuple[_Rule, ...]] = (_supported_features, *_FORM_RULES, _unique_names, _append_only)


def _repeated(values: Iterable[_T]) -> _T:
    return next(value for value, count in Counter(values).items() if count > 1)


def check_one_vector(actions: Iterable[Action], paths: TablePaths, *, version: int) -> None:
    """Refuse a commit that adds one data file under several deletion vectors: its rows would count twice."""
    seen: dict[str, str] = {}
    for action in actions:
        if isinstance(action, Add):
            path = canonical_path(action.path)
            if seen.setdefault(path, action.dv_id) != action.dv_id:
                raise ProtocolError(
                    f"the file {path} is added twice, with different deletion vectors",
                    table=paths.table,
                    version=version,
                    suggestion="a version holds a data file once: have the writer remove the other entry",
                )


def check_places(actions: Iterable[Action], paths: TablePaths) -> None:
    """Refuse actions that name files, deletion vectors included, where the table may have none.

    Raises:
        OutsidePathError: A file is outside of the table's root, and the settings do not allow that.
        ProtocolError: A path or a deletion vector is malformed.
    """
    for action in actions:
        if isinstance(action, Add | Remove | Cdc):
            paths.resolve(action.path)
            if not isinstance(action, Cdc) and action.deletion_vector is not None:
                resolve_dv(paths, action.deletion_vector)
