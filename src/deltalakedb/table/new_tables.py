"""What new tables get that delta-rs cannot give them: named features, in-commit timestamps, the fence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from deltalakedb.exceptions import UnsupportedFeatureError
from deltalakedb.protocol.actions import Action, Add, Metadata, Protocol
from deltalakedb.protocol.features import FENCE, OURS, features_named, reader_features, with_features
from deltalakedb.protocol.properties import (
    IN_COMMIT_TIMESTAMPS,
    ROW_TRACKING,
    check_properties,
    enablement,
    is_on,
    mapping_mode,
    unknown_names,
    without_feature_names,
)
from deltalakedb.protocol.row_tracking import with_row_columns
from deltalakedb.table.hooks import DEFAULT, QUIET, Hooks
from deltalakedb.table.places import is_local

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltalakedb.config import Config

_FEATURE = "inCommitTimestamp"
_MAPPING = "columnMapping"


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a caller of ``create`` or ``write_deltalake`` wants of us rather than of delta-rs.

    Attributes:
        in_commit_timestamps: Whether commits carry their own time; None leaves it to the settings.
        row_tracking: Whether rows have ids that stay.
        features: Features that were asked for by name, or by a property that delta-rs does not act on.
        hooks: What is to follow the commit.
        hint: What to do where delta-rs refuses the rest.
        kept: Writer features that the engine which makes the table sees to.
    """

    in_commit_timestamps: bool | None = None
    row_tracking: bool = False
    features: tuple[str, ...] = ()
    hooks: Hooks = DEFAULT
    hint: str | None = None
    kept: frozenset[str] = frozenset()


_HINT = "set properties of your own afterwards: alter.set_table_properties({…}, raise_if_not_exists=False)"

#: nothing special
PLAIN: Final = Wishes()


def taken_out(options: dict[str, Any], *, table: str | None = None) -> Wishes:
    """Take out of stock's options what delta-rs would refuse, or do on the scratch table.

    Raises:
        InvalidArgumentError: A property cannot have the value that is given.
        UnsupportedFeatureError: A feature is asked for that could not be written here.
    """
    hooks = Hooks.of(options.pop("post_commithook_properties", None))
    given = options.get("configuration")
    if not given or not isinstance(given, Mapping):
        return Wishes(hooks=hooks)  # delta-rs refuses what it cannot read
    check_properties(given, table=table)
    features = features_named(given, also=OURS, table=table)
    rest = without_feature_names(given)
    timed, tracked = rest.pop(IN_COMMIT_TIMESTAMPS, None), rest.pop(ROW_TRACKING, None)
    options["configuration"] = rest or None
    return Wishes(
        None if timed is None else _is_true(timed),
        _is_true(tracked),
        features,
        hooks,
        _HINT if unknown_names(rest) else None,
    )


def _is_true(value: str | None) -> bool:
    return str(value).strip().lower() == "true"


def quiet(options: dict[str, Any]) -> dict[str, Any]:
    """Options for delta-rs on a scratch table."""
    return {**options, "post_commithook_properties": QUIET}


def granted(
    actions: Sequence[Action],
    wishes: Wishes,
    config: Config,
    location: str,
    *,
    before: Metadata | None = None,
) -> tuple[Action, ...]:
    """A new table's first actions, or those that replace one, with what was wished for and is set.

    Args:
        actions: What delta-rs made.
        wishes: What the caller wants.
        config: The settings, for what the caller did not say.
        location: The table's root.
        before: The metadata of the table that is replaced.
    """
    if not any(isinstance(a, Protocol) for a in actions):
        return tuple(actions)  # rows are replaced, the table stays what it is
    found = wishes.in_commit_timestamps
    if found is None:
        setting = config.catalog.in_commit_timestamps
        found = setting == "always" or (setting == "remote" and not is_local(location))
        # a table that is replaced goes on telling its times as before
        found = found or (before is not None and is_on(before, IN_COMMIT_TIMESTAMPS))
    features = [
        *wishes.features,
        *_lost(actions),
        *([_FEATURE] if found else []),
        *(["rowTracking"] if wishes.row_tracking else []),
    ]
    if config.catalog.fence and before is None:
        features.append(FENCE)
    if not features:
        return tuple(actions)
    return tuple(_granted(a, features, wishes, before, timed=found) for a in actions)


def _lost(actions: Sequence[Action]) -> list[str]:
    """The feature of mapped columns, which delta-rs forgets where a column or a property brings others.

    Raises:
        UnsupportedFeatureError: It has written files already, by names that readers would not find.
    """
    metadata = next((a for a in actions if isinstance(a, Metadata)), None)
    protocol = next((a for a in actions if isinstance(a, Protocol)), None)
    mode = "none" if metadata is None else mapping_mode(metadata)
    if protocol is None or mode == "none" or _MAPPING in reader_features(protocol):
        return []
    if any(isinstance(a, Add) for a in actions):
        raise UnsupportedFeatureError(
            f"delta-rs does not map the columns of this data, though delta.columnMapping.mode is {mode!r}",
            suggestion="create the table empty, by DeltaTable.create, and append to it",
            features=(_MAPPING,),
        )
    return [_MAPPING]


def _granted(
    action: Action, features: Sequence[str], wishes: Wishes, before: Metadata | None, *, timed: bool
) -> Action:
    if isinstance(action, Protocol):
        return with_features(action, features)
    if not isinstance(action, Metadata):
        return action
    if wishes.row_tracking:
        switched = {**action.configuration, ROW_TRACKING: "true"}
        action = with_row_columns(replace(action, configuration=switched))
    return _timed(action, before) if timed else action


def _timed(metadata: Metadata, before: Metadata | None) -> Metadata:
    since = enablement(before) if before is not None and is_on(before, IN_COMMIT_TIMESTAMPS) else {}
    configuration = {**metadata.configuration, IN_COMMIT_TIMESTAMPS: "true", **since}
    return replace(metadata, configuration=configuration)
