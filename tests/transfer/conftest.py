"""Imports of these tests run in this process, also where another test has started Spark in it."""

from __future__ import annotations

import pytest

from deltalakedb.transfer.importing import api, options


@pytest.fixture(autouse=True)
def no_active_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """``auto`` takes Spark where a session is active."""
    for module in (options, api):
        monkeypatch.setattr(module, "active_session", lambda: None)
