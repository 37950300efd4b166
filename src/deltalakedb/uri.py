"""Temporary: the old name of ``deltalakedb.address``, until every room imports the new one."""

from deltalakedb.address import *  # noqa: F403
