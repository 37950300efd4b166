"""What stock's post-commit hooks ask for; the mirror does those jobs, a scratch table none of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from deltalake import PostCommitHookProperties

from deltalakedb.exceptions import ArgumentTypeError

if TYPE_CHECKING:
    from collections.abc import Iterable

#: for delta-rs on a scratch table: a checkpoint of it, or a clean-up, would be work for nothing
QUIET: Final = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


@dataclass(frozen=True, slots=True)
class Hooks:
    """What is to follow a commit.

    Attributes:
        create_checkpoint: Write a checkpoint where one is due.
        cleanup_expired_logs: Clean the log up after a checkpoint; None leaves it to the table's properties.
    """

    create_checkpoint: bool = True
    cleanup_expired_logs: bool | None = None

    @classmethod
    def of(cls, properties: Any) -> Hooks:
        """The hooks that stock's ``PostCommitHookProperties`` ask for; None asks for nothing special."""
        if properties is None:
            return cls()
        found = properties.create_checkpoint, properties.cleanup_expired_logs
        if not all(isinstance(choice, bool | None) for choice in found):
            raise ArgumentTypeError(f"post-commit hooks are switched on or off by a bool: {found}")
        return cls(bool(found[0]), found[1])

    @classmethod
    def all_of(cls, several: Iterable[Hooks]) -> Hooks:
        """The hooks of several operations in one commit: what one of them forbids does not happen."""
        found = list(several)
        cleanups = {h.cleanup_expired_logs for h in found}
        cleanup = False if False in cleanups else True if True in cleanups else None
        return cls(all(h.create_checkpoint for h in found), cleanup)


#: a checkpoint where one is due, a clean-up where the table's properties ask for it
DEFAULT: Final = Hooks()
