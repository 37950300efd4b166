"""Places without links: two spellings of one folder are told to be one."""

from __future__ import annotations

import os


class RealPlaces:
    """Finds the folders that locations lead to; the folders above them are resolved once."""

    def __init__(self) -> None:
        self._above: dict[str, str] = {}

    def of(self, location: str) -> str:
        """The location without links; the URL of an object store, and what is not there, as it is."""
        above, name = os.path.split(location)
        if not location.startswith(os.sep) or not name:
            return location
        if os.path.islink(location):  # noqa: PTH114 - asked for every table of a catalog
            return os.path.realpath(location)
        if (real := self._above.get(above)) is None:
            real = self._above[above] = os.path.realpath(above)
        return os.path.join(real, name)  # noqa: PTH118


def real_location(location: str) -> str:
    """One location without links."""
    return RealPlaces().of(location)
