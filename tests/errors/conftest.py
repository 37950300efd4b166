"""Fixtures of the bad-input suite: nothing stays open, and every error is checked to be presentable."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from deltalakedb.metastore.database import close_all

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _leave_nothing_open() -> Iterator[None]:
    yield
    close_all()
