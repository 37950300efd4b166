"""Imports of these tests run in this process, also where another test has started Spark in it."""

from __future__ import annotations

import pytest

from deltalakedb.transfer import choosing


@pytest.fixture(autouse=True)
def no_active_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """``auto`` takes Spark where a session is active."""
    monkeypatch.setattr(choosing, "active_session", lambda: None)
