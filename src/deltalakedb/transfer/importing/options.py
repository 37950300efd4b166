"""What a caller asks of an import."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from deltalakedb.address import parse_address
from deltalakedb.exceptions import InvalidArgumentError
from deltalakedb.settings import get_config
from deltalakedb.table.locations import normal_location
from deltalakedb.transfer.importing.engines import EngineOptions
from deltalakedb.transfer.verifying.report import FILE_LEVELS, check_level

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from deltalakedb.address import Address
    from deltalakedb.transfer.importing.report import ImportProgress
    from deltalakedb.transfer.verifying.report import Level

History: TypeAlias = Literal["auto", "checkpoint", "full"]


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """The arguments of ``import_table``, checked.

    Attributes:
        history: Which versions.
        verify: How thoroughly the load is compared with the log.
        batch_size: Rows of the checkpoint in one transaction; None for the setting.
        rate_limit: File actions a second at most, 0 for no limit; None for the setting.
        engine: Who loads it.
        storage_options: Options for the object store, as the caller gave them.
        progress: Called now and then with how far it is.
        following: The table stays in the hands of other writers.
    """

    history: History = "auto"
    verify: Level = "digest"
    batch_size: int | None = None
    rate_limit: int | None = None
    engine: EngineOptions = field(default_factory=EngineOptions)
    storage_options: Mapping[str, str] | None = None
    progress: Callable[[ImportProgress], None] | None = None
    following: bool = False

    def __post_init__(self) -> None:
        check_level(self.verify, FILE_LEVELS)
        if self.rate < 0:
            raise InvalidArgumentError(f"rate_limit must be 0 or more, not {self.rate}")

    @property
    def rate(self) -> int:
        """The rate limit in force; 0 is none."""
        return get_config().import_.rate_limit if self.rate_limit is None else self.rate_limit

    def storage_for(self, location: str) -> dict[str, str] | None:
        """The options for the object store of a location."""
        return get_config().storage_options_for(location, self.storage_options)


def import_target(path: str, uri: str) -> tuple[Address, str]:
    """The address that an import goes to, and the location it comes from, both checked."""
    address = parse_address(uri)
    address.require_table()
    location = normal_location(path)
    if address.location and normal_location(address.location) != location:
        raise InvalidArgumentError(
            f"the address has location={address.location}, but the table is at {location}",
            table=address.table,
            suggestion="leave location= out of the address",
        )
    return address, location
