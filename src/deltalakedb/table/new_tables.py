"""What new tables get that delta-rs cannot give them: in-commit timestamps, and the fence."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from deltalakedb.protocol.actions import Action, Metadata, Protocol
from deltalakedb.protocol.rules import IN_COMMIT_TIMESTAMPS, is_on
from deltalakedb.protocol.upgrades import FENCE, with_writer_features
from deltalakedb.table.hooks import DEFAULT, QUIET, Hooks
from deltalakedb.table.places import is_local

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltalakedb.config import Config

_FEATURE = "inCommitTimestamp"
#: since when commits carry their time, where that is not version 0
_SINCE = ("delta.inCommitTimestampEnablementVersion", "delta.inCommitTimestampEnablementTimestamp")


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a caller of ``create`` or ``write_deltalake`` wants of us rather than of delta-rs.

    Attributes:
        in_commit_timestamps: Whether commits carry their own time; None leaves it to the settings.
        hooks: What is to follow the commit.
    """

    in_commit_timestamps: bool | None = None
    hooks: Hooks = DEFAULT


#: nothing special
PLAIN: Final = Wishes()


def taken_out(options: dict[str, Any]) -> Wishes:
    """Take out of stock's options what delta-rs would refuse, or do on the scratch table."""
    hooks = Hooks.of(options.pop("post_commithook_properties", None))
    asked = None
    if (given := options.get("configuration")) and IN_COMMIT_TIMESTAMPS in given:
        rest = {k: v for k, v in given.items() if k != IN_COMMIT_TIMESTAMPS}
        options["configuration"] = rest or None
        asked = str(given[IN_COMMIT_TIMESTAMPS]).lower() == "true"
    return Wishes(asked, hooks)


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
    features = [_FEATURE] if found else []
    if config.catalog.fence and before is None:
        features.append(FENCE)
    if not features:
        return tuple(actions)
    return tuple(
        with_writer_features(a, features)
        if isinstance(a, Protocol)
        else _timed(a, before)
        if isinstance(a, Metadata) and found
        else a
        for a in actions
    )


def _timed(metadata: Metadata, before: Metadata | None) -> Metadata:
    since = {}
    if before is not None and is_on(before, IN_COMMIT_TIMESTAMPS):
        since = {key: before.configuration[key] for key in _SINCE if key in before.configuration}
    configuration = {**metadata.configuration, IN_COMMIT_TIMESTAMPS: "true", **since}
    return replace(metadata, configuration=configuration)
