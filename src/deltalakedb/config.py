"""Temporary: the old name of ``deltalakedb.settings``, until every room imports the new one."""

from deltalakedb.settings import *  # noqa: F403
