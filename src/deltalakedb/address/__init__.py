"""``deltasql://`` addresses: parsed, validated, written back, and never shown with their password."""

from deltalakedb.address.address import (
    BAD_CHARACTER,
    ENGINES,
    MAX_NAME,
    Address,
    Engine,
    is_deltasql,
    validate_table_name,
)
from deltalakedb.address.options import OPTIONS, is_local
from deltalakedb.address.parser import parse_address

__all__ = ["BAD_CHARACTER", "ENGINES", "MAX_NAME", "OPTIONS", "Address", "Engine"]
__all__ += ["is_deltasql", "is_local", "parse_address", "validate_table_name"]
